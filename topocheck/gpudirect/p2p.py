"""GPUDirect P2P of an ordered pair of GPUs.

The least evidence that makes each road `yes`:

* NVLink: active links between the two (directly or through NVSwitch), NVML's P2P status OK for read and for write
  (or CUDA's can-access-peer where NVML does not say), MIG off on both, and no fabric registration that is
  unfinished or failed. ACS and the IOMMU have no say on this road.
* PCIe on bare metal: the same word of NVML or CUDA, MIG off, and the IOMMU off or in identity mode for both GPUs.
  ACS that cannot be read (no root) does not take the `yes` back, since peer access works either way there; it is
  told. ACS that redirects, a translating IOMMU, or a way between sockets makes it `degraded`.
* PCIe in a guest: the same word of NVML or CUDA and the P2P clique by which the hypervisor promises that the host
  lets the two GPUs talk. Without a clique the host decides unseen: `unknown`.
"""

from __future__ import annotations

import msgspec

from topocheck.gpudirect.ground import (
    Ground,
    acs_between,
    acs_evidence,
    acs_fix,
    fabric_trouble,
    iommu_of,
    said,
    undriven,
    verdict_of,
)
from topocheck.gpudirect.types import P2pVerdict
from topocheck.knowledge.products import p2p_code
from topocheck.model.base import Evidence, Missing, Reason, ReasonStep, known
from topocheck.model.gpu import P2pStatus
from topocheck.topology.paths import product_of
from topocheck.topology.types import Gpu, Path

_NEVER_ASKED = Missing(Reason.NOT_RECORDED, "never asked")


def judge_pair(g: Ground, a: Gpu, b: Gpu, path: Path) -> P2pVerdict:
    """Return the verdict of the ordered pair `a` -> `b`."""
    road = "nvlink" if path.nvlinks else "pcie"
    blocked = [s for s in (undriven(a, g), undriven(b, g)) if s is not None]
    if blocked:
        steps = blocked
    else:
        split, steps = _partition(a, b), _permission(g, a, b)
        if split:
            # MIG is the cause: advice about the refusal would lead elsewhere.
            steps = [msgspec.structs.replace(s, fix=None) for s in steps]
        steps += split
        steps += _nvlink(a, b, path) if road == "nvlink" else _pcie(g, a, b, path)
        by_product = sold_without(a, b) and not _NO_PRODUCT_MATTER.intersection(_codes(g, a, b).values())
        if by_product and road == "pcie" and not split and verdict_of(steps) == "no":
            steps = [_of_the_product(s) for s in steps]
    verdict = verdict_of(steps)
    return P2pVerdict(
        from_=a.address,
        to=b.address,
        from_label=a.label,
        to_label=b.label,
        verdict=verdict,
        road="none" if verdict == "no" or blocked else road,
        reasons=tuple(steps),
    )


def sold_without(a: Gpu, b: Gpu) -> bool:
    """Tell whether one of two GPUs is of a product sold without peer access over PCIe."""
    return any(p is not None and p.p2p_pcie is False for p in (product_of(a), product_of(b)))


_NO_PRODUCT_MATTER = {"OK", "DR", "U"}
"""P2P codes of a driver that permits it (a patched one does), was told to refuse, or does not know."""


def _of_the_product(step: ReasonStep) -> ReasonStep:
    """Return a step of a pair that its product keeps apart: neither a driver nor a setting helps."""
    why = "; the product is sold without peer access over PCIe" if step.effect == "no" else ""
    return msgspec.structs.replace(step, text=step.text + why, fix=None)


def _permission(g: Ground, a: Gpu, b: Gpu) -> list[ReasonStep]:
    """What NVML and CUDA say of the pair, spelt out."""
    nvml, cuda = g.node.nvml, g.node.cuda
    codes = _codes(g, a, b)
    quoted = {
        kind: said(nvml, f"DeviceGetP2PStatus({a.index}, {b.index}, {('read', 'write').index(kind)})", code)
        for kind, code in codes.items()
    }
    steps = []
    for code in dict.fromkeys(codes.values()):
        kinds = [k for k, c in codes.items() if c == code]
        if code == "OK":
            steps += [ReasonStep(f"NVML permits peer {k}s", "yes", quoted[k]) for k in kinds]
            continue
        meaning, fix = p2p_code(code) or (f"NVML answers with a code not known here ({code})", "update topocheck")
        effect = "unknown" if code == "U" or p2p_code(code) is None else "no"
        text = f"peer {' and '.join(f'{k}s' for k in kinds)} refused, {code}: {meaning}"
        steps.append(ReasonStep(text, effect, tuple(e for k in kinds for e in quoted[k]), fix))
    peer = next((p for p in cuda.peers if p.from_address == a.address and p.to_address == b.address), None)
    if peer is not None and not isinstance(peer.can_access, Missing):
        name = f"DeviceCanAccessPeer({_ordinal(a)}, {_ordinal(b)})"
        heard = said(cuda, name, peer.can_access)
        if peer.can_access:
            steps.append(ReasonStep("CUDA permits peer access", "info" if len(codes) == 2 else "yes", heard))
        else:
            steps.append(ReasonStep("CUDA refuses peer access", "no", heard))
    elif len(codes) < 2:
        steps.append(_no_word(a, b))
    return steps


def _codes(g: Ground, a: Gpu, b: Gpu) -> dict[str, str]:
    """Return NVML's codes for `read` and `write`, those that it gave."""
    nvml = g.node.nvml
    status = next((s for s in nvml.p2p if s.from_address == a.address and s.to_address == b.address), None)
    return {kind: code for kind in ("read", "write") if not isinstance(code := _code(status, kind), Missing)}


def _code(status: P2pStatus | None, kind: str) -> str | Missing:
    if status is None:
        return _NEVER_ASKED
    return status.read if kind == "read" else status.write


def _ordinal(gpu: Gpu) -> str:
    return str(gpu.cuda.ordinal) if gpu.cuda is not None else "?"


def _no_word(a: Gpu, b: Gpu) -> ReasonStep:
    hint = "; the product is sold without peer access over PCIe" if sold_without(a, b) else ""
    return ReasonStep(f"neither NVML nor CUDA says whether peer access is permitted{hint}", "unknown")


def _partition(a: Gpu, b: Gpu) -> list[ReasonStep]:
    """MIG takes peer access away (NVIDIA Multi-Instance GPU User Guide, application considerations)."""
    return [
        ReasonStep(
            f"{x.label} is split by MIG, and MIG devices have no peer access",
            "no",
            said(x.nvml, "DeviceGetMigMode", "enabled"),
            f"nvidia-smi -i {x.index} -mig 0 (stops everything that runs on it)",
        )
        for x in (a, b)
        if x.nvml is not None and x.nvml.mig_current is True
    ]


def _nvlink(a: Gpu, b: Gpu, path: Path) -> list[ReasonStep]:
    hop = path.hops[0] if path.hops else None
    text = hop.text if hop is not None else f"{path.nvlinks} NVLinks"
    steps = [ReasonStep(f"they are joined by {text}", "yes", (_links(a, path),))]
    steps += [s for s in (fabric_trouble(x) for x in (a, b)) if s is not None]
    return steps


def _links(a: Gpu, path: Path) -> Evidence:
    """Quote how many links NVML calls active, and how many of them lead to the other GPU."""
    active = sum(x.active is True for x in a.nvml.nvlinks) if a.nvml is not None else 0
    return Evidence(
        f"NVML {a.address} DeviceGetNvLinkState, DeviceGetNvLinkRemotePciInfo",
        f"{active} active, {path.nvlinks} of them towards {path.to_label}",
    )


def _pcie(g: Ground, a: Gpu, b: Gpu, path: Path) -> list[ReasonStep]:
    steps = [_way(path)]
    if g.guest:
        return steps + _guest(g, a, b)
    iommu = iommu_of(g, a.address, b.address)
    acs = acs_between(g, a.address, b.address)
    if iommu.mode == "translated":
        steps.append(
            ReasonStep(
                "the IOMMU translates DMA: peer traffic goes up to it, may be slow, and on some machines arrives wrong",
                "degraded",
                iommu.evidence,
                "boot with iommu=pt (or the IOMMU off), and prove the data with a checked copy",
            )
        )
    elif iommu.mode == "unknown":
        steps.append(ReasonStep("whether an IOMMU translates DMA is not known", "unknown"))
    else:
        steps.append(ReasonStep(f"no IOMMU translates DMA ({iommu.mode})", "info", iommu.evidence))
    if acs.redirecting:
        steps.append(
            ReasonStep(
                "ACS sends peer traffic up to the root complex and back",
                "degraded",
                acs_evidence(acs.redirecting),
                acs_fix(acs.redirecting),
            )
        )
    elif acs.unread and iommu.mode != "off":
        names = ", ".join(p.address for p in acs.unread)
        steps.append(
            ReasonStep(f"ACS of {names} needs root to read; if it redirects, peer copies make a detour", "info")
        )
    steps += _window(a, b)
    return steps


def _way(path: Path) -> ReasonStep:
    """What the class of the PCIe way means for peer traffic."""
    word = path.pcie_class
    if isinstance(word, Missing):
        return ReasonStep(f"their place in the PCI tree is not known ({word.detail or word.reason})", "info")
    text = {
        "X": "they sit on one board",
        "PIX": "they share a PCIe switch",
        "PXB": "they share a tree of PCIe switches",
        "PHB": "peer traffic crosses one host bridge",
        "NODE": "peer traffic crosses two host bridges of one NUMA node",
    }.get(word, "peer traffic crosses two host bridges of one NUMA node")
    crosses = path.crosses_nodes
    if isinstance(crosses, Missing):
        text = f"peer traffic crosses host bridges, and NUMA nodes or not: {crosses.detail or crosses.reason}"
    elif crosses:
        text = "peer traffic crosses the interconnect between NUMA nodes, which is slower and shared"
    quoted = (Evidence("PCI tree", f"{path.from_} - {path.to}: {word}"),)
    return ReasonStep(text, "degraded" if crosses is True else "info", quoted)


def _guest(g: Ground, a: Gpu, b: Gpu) -> list[ReasonStep]:
    """The hypervisor's word: NVIDIA's P2P clique capability in the GPUs' config space (QEMU x-nv-gpudirect-clique)."""
    cliques = [x.pci.p2p_clique if x.pci is not None else _NEVER_ASKED for x in (a, b)]
    known_ones = [c for c in cliques if not isinstance(c, Missing)]
    quoted = tuple(
        Evidence(f"{x.address} P2P clique", str(c)) for x, c in zip((a, b), cliques, strict=True) if known(c)
    )
    if len(known_ones) == 2 and known_ones[0] == known_ones[1]:
        return [ReasonStep("the hypervisor puts both in one P2P clique", "info", quoted)]
    if known_ones:
        return [
            ReasonStep(
                "the hypervisor does not put both in one P2P clique",
                "no",
                quoted,
                "the host decides: it would have to give both the same x-nv-gpudirect-clique",
            )
        ]
    return [
        ReasonStep(
            "this is a guest without a P2P clique: the host's ACS and IOMMU decide, and cannot be seen from here",
            "unknown",
            said(g.node.system, "hypervisor", g.node.system.hypervisor),
            "ask the host's keeper; prove it with a checked copy",
        )
    ]


def _window(a: Gpu, b: Gpu) -> list[ReasonStep]:
    """A window to memory that is smaller than the memory (PCIe resizable BAR)."""
    steps = []
    for x in (a, b):
        if (
            x.nvml is None
            or isinstance(x.nvml.bar1_total_bytes, Missing)
            or isinstance(x.nvml.memory_total_bytes, Missing)
        ):
            continue
        if x.nvml.bar1_total_bytes < x.nvml.memory_total_bytes // 2:
            size = x.nvml.bar1_total_bytes >> 20
            steps.append(
                ReasonStep(
                    f"the window to {x.label}'s memory (BAR1) is {size} MiB, smaller than the memory",
                    "info",
                    said(x.nvml, "DeviceGetBAR1MemoryInfo", x.nvml.bar1_total_bytes),
                    "turn on Above 4G decoding and Resizable BAR in the firmware setup",
                )
            )
    return steps
