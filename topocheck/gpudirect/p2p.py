"""GPUDirect P2P of an ordered pair of GPUs.

The least evidence that makes each path `yes`:

* NVLink: active links between the two (directly or through NVSwitch), NVML's P2P status OK for read and for write
  (or CUDA's can-access-peer where NVML does not say), MIG off on both, and no fabric registration that is
  unfinished or failed. ACS and the IOMMU have no say on this path.
* PCIe on bare metal: the same word of NVML or CUDA, MIG off, and the IOMMU off or in identity mode for both GPUs.
  ACS that cannot be read (no root) does not take the `yes` back, since peer access works either way there; it is
  told. ACS that redirects, a translating IOMMU, or a way between sockets makes it `degraded`.
* PCIe in a guest: the same word of NVML or CUDA and the P2P clique by which the hypervisor promises that the host
  lets the two GPUs talk. Without a clique the host decides unseen: `unknown`.
"""

from __future__ import annotations

import msgspec

from topocheck.gpudirect import detours
from topocheck.gpudirect.inputs import (
    Ground,
    fabric_trouble,
    no_translation,
    once,
    pcie_path,
    said,
    undriven,
    verdict_of,
)
from topocheck.gpudirect.types import Link, P2pVerdict, PciePath
from topocheck.knowledge.products import p2p_code
from topocheck.model.base import Effect, Evidence, Missing, Reason, ReasonStep, is_lost, known
from topocheck.model.gpu import P2pStatus, raw_p2p_code
from topocheck.topology.paths import product_of
from topocheck.topology.types import Gpu, Path

_NEVER_ASKED = Missing(Reason.NOT_RECORDED, "never asked")


class _Own(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU brings into every pair it is part of.

    Attributes:
        blocked: it is lost, given away or not driven.
        split: MIG disables peer access.
        sold_without: its product has no peer access over PCIe.
        fabric: the NVLink fabric has not taken it in.
        window: its window to memory is small.
        active: number of active NVLinks.
        asks_nvml, asks_cuda: the beginning of the calls about it and another, as they are quoted.
    """

    blocked: tuple[ReasonStep, ...]
    split: tuple[ReasonStep, ...]
    sold_without: bool
    fabric: tuple[ReasonStep, ...]
    window: tuple[ReasonStep, ...]
    active: int
    asks_nvml: str
    asks_cuda: str


@once
def _own(g: Ground, gpu: Gpu) -> _Own:
    blocked, fabric = undriven(g, gpu), fabric_trouble(g, gpu)
    return _Own(
        blocked=() if blocked is None else (blocked,),
        split=_partition(gpu),
        sold_without=sold_without(gpu, gpu),
        fabric=() if fabric is None else (fabric,),
        window=_window(gpu),
        active=sum(x.active is True for x in gpu.nvml.nvlinks) if gpu.nvml is not None else 0,
        asks_nvml=f"DeviceGetP2PStatus({gpu.index}, ",
        asks_cuda=f"DeviceCanAccessPeer({_ordinal(gpu)}, ",
    )


def judge_pair(g: Ground, a: Gpu, b: Gpu, path: Path) -> P2pVerdict:
    """Return the verdict of the ordered pair `a` -> `b`."""
    link: Link = "nvlink" if path.nvlinks else "pcie"
    passed = None if path.nvlinks or g.guest else pcie_path(g, a.address, b.address)
    first, second = _own(g, a), _own(g, b)
    blocked = [*first.blocked, *second.blocked]
    if blocked:
        steps = blocked
    else:
        status = g.statuses.get((a.address, b.address))
        codes = _codes(status)
        split, steps = [*first.split, *second.split], _permission(g, a, b, codes, first)
        if len(codes) < 2 or path.nvlinks_untold is not None:
            steps += _untold(status, path)
        if split:
            # MIG is the cause: advice about the refusal would lead elsewhere.
            steps = [msgspec.structs.replace(s, fix=None) for s in steps]
        steps += split
        if link == "nvlink":
            steps += [_joined(a, first.active, path), *first.fabric, *second.fabric]
        else:
            steps += _pcie(g, a, b, path, passed)
            # A guest's window is the host's matter.
            steps += () if g.guest else (*first.window, *second.window)
        by_product = link == "pcie" and (first.sold_without or second.sold_without) and not split
        if by_product and not _NO_PRODUCT_MATTER.intersection(codes.values()) and verdict_of(steps) == "no":
            steps = [_of_the_product(s) for s in steps]
    verdict = verdict_of(steps)
    return P2pVerdict(
        from_=a.address,
        to=b.address,
        from_label=a.label,
        to_label=b.label,
        verdict=verdict,
        link="none" if verdict == "no" or blocked else link,
        reasons=tuple(steps),
        pcie=passed,
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


def _permission(g: Ground, a: Gpu, b: Gpu, codes: dict[str, str], first: _Own) -> list[ReasonStep]:
    """What NVML and CUDA say of the pair, spelt out; `first` is what `a` brings."""
    nvml, cuda = g.node.nvml, g.node.cuda
    read, write = f"{first.asks_nvml}{b.index}, 0)", f"{first.asks_nvml}{b.index}, 1)"
    if codes == _BOTH_OK and read not in nvml.raw and write not in nvml.raw:
        # As on nearly every pair of a healthy machine; of regular answers no raw ones are kept.
        start = f"{nvml.source} " if nvml.source else ""
        steps = [
            ReasonStep(_PERMITTED["read"], "yes", (Evidence(start + read, _RAW_OK),)),
            ReasonStep(_PERMITTED["write"], "yes", (Evidence(start + write, _RAW_OK),)),
        ]
    else:
        names = {"read": read, "write": write}
        quoted = {k: said(nvml, names[k], raw_p2p_code(c)) for k, c in codes.items()}
        steps = _by_code(codes, quoted, g.guest)
    can_access = g.peers.get((a.address, b.address))
    if can_access is True or can_access is False:
        heard = said(cuda, f"{first.asks_cuda}{_ordinal(b)})", can_access)
        if can_access:
            steps.append(ReasonStep("CUDA permits peer access", "info" if len(codes) == 2 else "yes", heard))
        else:
            steps.append(ReasonStep("CUDA refuses peer access", "no", heard))
    elif len(codes) < 2:
        steps.append(_no_word(a, b))
    return steps


def _by_code(codes: dict[str, str], quoted: dict[str, tuple[Evidence, ...]], guest: bool) -> list[ReasonStep]:
    """Spell out NVML's codes; a code that it gives for reads and writes is reported once."""
    steps = []
    for code in dict.fromkeys(codes.values()):
        kinds = [k for k, c in codes.items() if c == code]
        if code == "OK":
            steps += [ReasonStep(_PERMITTED[k], "yes", quoted[k]) for k in kinds]
            continue
        meaning, fix = p2p_code(code, guest) or (
            f"NVML answers with a code not known here ({code})",
            "update topocheck",
        )
        effect: Effect = "unknown" if code == "U" or p2p_code(code) is None else "no"
        text = f"peer {' and '.join(f'{k}s' for k in kinds)} refused, {code}: {meaning}"
        steps.append(ReasonStep(text, effect, tuple(e for k in kinds for e in quoted[k]), fix))
    return steps


_RAW_OK = raw_p2p_code("OK")
_BOTH_OK = {"read": "OK", "write": "OK"}
_PERMITTED = {k: f"NVML permits peer {k}s" for k in ("read", "write")}


def _untold(status: P2pStatus | None, path: Path) -> list[ReasonStep]:
    """Name the answers about the pair that were lost, each of which might have been a refusal."""
    steps = []
    for kind, code in (("reads", status.read), ("writes", status.write)) if status is not None else ():
        if isinstance(code, Missing) and is_lost(code):
            steps.append(
                ReasonStep(f"whether NVML permits peer {kind} could not be read ({code.reason.value})", "unknown")
            )
    if path.nvlinks_untold is not None and not path.nvlinks:
        steps.append(ReasonStep(f"whether NVLink joins them could not be read ({path.nvlinks_untold})", "unknown"))
    return steps


def _codes(status: P2pStatus | None) -> dict[str, str]:
    """Return NVML's codes for `read` and `write`, those that it gave."""
    if status is None:
        return {}
    read, write = status.read, status.write
    codes = {} if isinstance(read, Missing) else {"read": read}
    if not isinstance(write, Missing):
        codes["write"] = write
    return codes


def _ordinal(gpu: Gpu) -> str:
    return str(gpu.cuda.ordinal) if gpu.cuda is not None else "?"


def _no_word(a: Gpu, b: Gpu) -> ReasonStep:
    hint = "; the product is sold without peer access over PCIe" if sold_without(a, b) else ""
    return ReasonStep(f"neither NVML nor CUDA says whether peer access is permitted{hint}", "unknown")


def _partition(gpu: Gpu) -> tuple[ReasonStep, ...]:
    """MIG disables peer access (NVIDIA Multi-Instance GPU User Guide, application considerations)."""
    mig = gpu.nvml.mig_current if gpu.nvml is not None else False
    if isinstance(mig, Missing) and is_lost(mig):
        return (ReasonStep(f"whether MIG splits {gpu.label} could not be read ({mig.reason.value})", "unknown"),)
    if gpu.nvml is None or mig is not True:
        return ()
    return (
        ReasonStep(
            f"{gpu.label} is split by MIG, and MIG devices have no peer access",
            "no",
            said(gpu.nvml, "DeviceGetMigMode", "enabled"),
            f"nvidia-smi -i {gpu.index} -mig 0 (stops everything that runs on it)",
        ),
    )


def _joined(a: Gpu, active: int, path: Path) -> ReasonStep:
    """Quote how many links NVML calls active, and how many of them lead to the other GPU."""
    hop = path.hops[0] if path.hops else None
    text = hop.text if hop is not None else f"{path.nvlinks} NVLinks"
    quoted = Evidence(
        f"NVML {a.address} DeviceGetNvLinkState, DeviceGetNvLinkRemotePciInfo",
        f"{active} active, {path.nvlinks} of them towards {path.to_label}",
    )
    return ReasonStep(f"they are joined by {text}", "yes", (quoted,))


def _pcie(g: Ground, a: Gpu, b: Gpu, path: Path, passed: PciePath | None) -> list[ReasonStep]:
    if passed is None:
        return [_way(path), *detours.guest_untold(g), *_guest(g, a, b)]
    translated = "the IOMMU translates DMA: peer traffic goes up to it, may be slow, and on some machines arrives wrong"
    checked = f"{no_translation(g.node)} (or the IOMMU off), and prove the data with a checked copy"
    return [
        _way(path),
        *detours.guest_untold(g),
        detours.by_iommu(passed, translated, checked, lambda: "unknown"),
        *detours.by_acs(passed, "peer traffic", "peer copies make"),
    ]


_TWO_BRIDGES = "peer traffic crosses two host bridges of one NUMA node"
_CROSSED = {
    "X": "they sit on one board",
    "PIX": "they share a PCIe switch",
    "PXB": "they share a tree of PCIe switches",
    "PHB": "peer traffic crosses one host bridge",
}


def _way(path: Path) -> ReasonStep:
    """What the class of the PCIe way means for peer traffic."""
    word = path.pcie_class
    if isinstance(word, Missing):
        return ReasonStep(f"their place in the PCI tree is not known ({word.detail or word.reason})", "info")
    text = _CROSSED.get(word, _TWO_BRIDGES)
    crosses = path.crosses_nodes
    if isinstance(crosses, Missing) and is_lost(crosses):
        return ReasonStep(f"whether their way crosses NUMA nodes could not be read ({crosses})", "unknown")
    if isinstance(crosses, Missing):
        text = f"peer traffic crosses host bridges, and NUMA nodes or not: {crosses.detail or crosses.reason}"
    elif crosses:
        text = "peer traffic crosses the interconnect between NUMA nodes, which is slower and shared"
    quoted = (Evidence("PCI tree", f"{path.from_} - {path.to}: " + word),)
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
            "ask the host's administrator; prove it with a checked copy",
        )
    ]


def _window(gpu: Gpu) -> tuple[ReasonStep, ...]:
    """A window to memory that is smaller than the memory (PCIe resizable BAR)."""
    nvml = gpu.nvml
    mib = detours.small_window_mib(nvml)
    if nvml is None or mib is None:
        return ()
    text = f"the window to {gpu.label}'s memory (BAR1) is {mib} MiB, smaller than the memory"
    quoted = said(nvml, "DeviceGetBAR1MemoryInfo", nvml.bar1_total_bytes)
    return (ReasonStep(text, "info", quoted, detours.LARGER_WINDOW),)
