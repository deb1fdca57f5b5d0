"""What lies on the way of peer traffic by PCIe: ACS, the IOMMU, host bridges, a hypervisor."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.p2p import status_evidence, subject_of
from topocheck.checks.p2p_pairs import GpuPair, permitted_by_pcie, rdma_ways
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.subjects import is_guest, listed
from topocheck.gpudirect.ground import Ground, acs_between, acs_evidence, iommu_of, survey
from topocheck.model.base import Finding, State
from topocheck.model.pci import PciDevice
from topocheck.topology.types import Gpu, Nic

_ACROSS = ("PHB", "NODE", "SYS")
"""Classes in which peer traffic crosses a host bridge."""


def _in_use(context: Context) -> tuple[list[GpuPair], list[tuple[Gpu, Nic]]]:
    """Return the GPU pairs that use PCIe peer access and the GPU-NIC pairs that use GPUDirect RDMA.

    Raises:
        NotApplicableError: there are none.
    """
    peers = permitted_by_pcie(context)
    remote = [(g, n) for g, n, _ in rdma_ways(context)]
    if not peers and not remote:
        raise not_applicable("no peer traffic goes by PCIe here (NVLink, a single GPU, or no peer access)")
    return peers, remote


def _ports(g: Ground, ways: list[tuple[str, str]]) -> tuple[dict[str, PciDevice], dict[str, PciDevice]]:
    """Return (redirecting, unread) ports on some ways, by address."""
    redirecting: dict[str, PciDevice] = {}
    unread: dict[str, PciDevice] = {}
    for a, b in ways:
        acs = acs_between(g, a, b)
        redirecting |= {p.address: p for p in acs.redirecting}
        unread |= {p.address: p for p in acs.unread}
    return redirecting, unread


@check(
    "p2p.acs-redirect",
    title="ACS sends peer traffic up to the root complex",
    severity=State.FAIL,
    reads=("/sys/bus/pci/devices/*/config, ACS control (root only)",),
)
def acs_redirect(context: Context) -> Iterator[Finding]:
    """ACS sends peer traffic up to the root complex.

    Looks at:
        The ACS control word of the root and downstream ports between two GPUs that use PCIe peer access, and between
        a GPU and its nearest RDMA NIC. Only ReqRedir and CmpltRedir redirect; SrcValid or UpstreamFwd alone do not.

    Why it matters:
        Peer packets make a detour over the root complex and, with an IOMMU, through it. Copies run at a fraction of
        the link; on some machines collectives hang or data arrives wrong while every status says OK.

    Fix:
        Clear ReqRedir and CmpltRedir on the named ports: now with setpci as root (gone after a boot), for good in
        the firmware setup, with a unit at boot, or with `pci=disable_acs_redir=...` (kernel 4.19; from 6.11
        `pci=config_acs=...`). disable_acs_redir clears the request, completion and egress bits and leaves
        UpstreamFwd, which does no harm. The price: devices are no longer isolated from each other, so not on hosts
        that pass devices to guests.

    Does not apply:
        In a guest: there the host needs ACS for isolation, and never clears it; use ATS in the NIC instead. NVLink
        traffic passes no PCIe port. Without root the words cannot be read, and the answer is unknown.
    """
    if is_guest(context):
        raise not_applicable("ACS belongs to the host and keeps guests apart; it is not to be cleared for a guest")
    peers, remote = _in_use(context)
    g = survey(context.node, context.topology)
    for what, ways, state in (
        ([p.labels for p in peers], [(p.a.address, p.b.address) for p in peers], State.FAIL),
        ([f"{x.label}-{n.label}" for x, n in remote], [(x.address, n.address) for x, n in remote], State.WARN),
    ):
        hit = [i for i, (a, b) in enumerate(ways) if acs_between(g, a, b).redirecting]
        if not hit:
            continue
        redirecting, _ = _ports(g, [ways[i] for i in hit])
        yield Finding(
            id="p2p.acs-redirect",
            state=state,
            subject=subject_of([peers[i] for i in hit]) if state is State.FAIL else "node",
            title=f"ACS redirects peer traffic of {listed(what[i] for i in hit)} at {listed(redirecting)}",
            consequence="peer copies detour over the root complex: slow, and on some machines hanging or wrong",
            evidence=acs_evidence(redirecting.values()),
            rule="ReqRedir (bit 2) or CmpltRedir (bit 3) of the ACS control word is set on a port between the two",
            fix=_clear(redirecting),
        )
    _, unread = _ports(g, [(p.a.address, p.b.address) for p in peers] + [(x.address, n.address) for x, n in remote])
    if unread:
        yield Finding(
            id="p2p.acs-redirect",
            state=State.UNKNOWN,
            subject="node",
            title=f"whether ACS redirects peer traffic at {listed(unread, 4)} needs root to read",
            consequence="if it does, peer copies are slow and may hang, and nothing else would tell",
            evidence=tuple(e for p in list(unread.values())[:4] for e in p.evidence("config")),
            rule="the ACS control word stands beyond byte 64 of config space",
            fix="run topocheck as root to have it judged",
        )


def _clear(ports: dict[str, PciDevice]) -> str:
    first = next(iter(ports.values()))
    word = first.acs_control_word if isinstance(first.acs_control_word, int) else 0
    every = ";".join(ports)
    return (
        f"as root, now and until the next boot, on each of these ports: setpci -s {first.address} "
        f"ECAP_ACS+6.w={word & ~0b1100:04x}; for good: in the firmware setup, or boot with "
        f"pci=disable_acs_redir={every} (leaves UpstreamFwd set, which does no harm). Price: the devices below are no "
        "longer isolated from each other"
    )


@check(
    "p2p.iommu-translates",
    title="The IOMMU translates peer traffic",
    severity=State.WARN,
    reads=("/sys/kernel/iommu_groups/*/type", "/proc/cmdline", "/sys/class/iommu"),
)
def iommu_translates(context: Context) -> Iterator[Finding]:
    """The IOMMU translates peer traffic.

    Looks at:
        The type of the IOMMU groups of GPUs that use PCIe peer access below one switch, and of GPUs and NICs that
        use GPUDirect RDMA. `identity` passes addresses through; `DMA` and `DMA-FQ` translate.

    Why it matters:
        Translated peer packets must go up to the IOMMU and back: slow, and on some machines wrong or hanging.

    Fix:
        Boot with `iommu=pt` (pass-through), or switch the IOMMU off where nothing needs it. The price: devices can
        reach all of memory, so not on hosts that pass devices to guests by trust alone.

    Does not apply:
        Where no peer traffic goes by PCIe (NVLink between all GPUs and no RDMA NIC; Grace), and in a guest. Pairs
        across host bridges are `p2p.unproven-across-host-bridges`.
    """
    if is_guest(context):
        raise not_applicable("the IOMMU that matters is the host's")
    peers, remote = _in_use(context)
    g = survey(context.node, context.topology)
    near = [(p.labels, p.a.address, p.b.address) for p in peers if p.path.pcie_class not in _ACROSS]
    near += [(f"{x.label}-{n.label}", x.address, n.address) for x, n in remote]
    found = [(labels, iommu_of(g, a, b)) for labels, a, b in near]
    hit = [(labels, x) for labels, x in found if x.mode == "translated"]
    if hit:
        yield Finding(
            id="p2p.iommu-translates",
            state=State.WARN,
            subject="node",
            title=f"the IOMMU translates the peer traffic of {listed(labels for labels, _ in hit)}",
            consequence="peer copies and GPUDirect RDMA are slow, and on some machines hang or arrive wrong",
            evidence=tuple(dict.fromkeys(e for _, x in hit[:2] for e in x.evidence)),
            rule="group type is DMA or DMA-FQ, not identity, where peer traffic goes by PCIe",
            fix="boot with iommu=pt, or the IOMMU off where nothing needs it (devices then reach all of memory)",
        )
    elif any(x.mode == "unknown" for _, x in found):
        yield Finding(
            id="p2p.iommu-translates",
            state=State.UNKNOWN,
            subject="node",
            title="whether an IOMMU translates peer traffic cannot be told",
            consequence="if it does, peer copies are slow and may hang",
            rule="/sys/kernel/iommu_groups or the kernel's options must say",
            fix="look at /proc/cmdline and /sys/kernel/iommu_groups on the host, outside the container",
        )


@check(
    "p2p.unproven-across-host-bridges",
    title="Peer access is offered across host bridges while the IOMMU translates",
    severity=State.WARN,
    reads=("NVML DeviceGetP2PStatus", "/sys/kernel/iommu_groups/*/type"),
)
def unproven_across_host_bridges(context: Context) -> Iterator[Finding]:
    """Peer access is offered across host bridges while the IOMMU translates.

    Looks at:
        Pairs of GPUs without a common switch for which NVML says OK, and the type of their IOMMU groups.

    Why it matters:
        On some machines such copies report success and deliver other bytes: every status says yes, training
        diverges. Nothing but a copy whose bytes are compared can tell.

    Fix:
        Run `topocheck bw`, which compares the bytes. Boot with `iommu=pt` or the IOMMU off; until then
        `NCCL_P2P_DISABLE=1`, at the cost of copies through host memory.

    Does not apply:
        With the IOMMU off or in identity mode, below one switch (`p2p.iommu-translates`), and in a guest.
    """
    if is_guest(context):
        raise not_applicable("the IOMMU that matters is the host's")
    g = survey(context.node, context.topology)
    across = [p for p in permitted_by_pcie(context) if p.path.pcie_class in _ACROSS]
    if not across:
        raise not_applicable("no PCIe peer access across host bridges")
    hit = [(p, x) for p in across if (x := iommu_of(g, p.a.address, p.b.address)).mode == "translated"]
    if hit:
        found = [p for p, _ in hit]
        yield Finding(
            id="p2p.unproven-across-host-bridges",
            state=State.WARN,
            subject=subject_of(found),
            title=f"peer access of {listed(p.labels for p in found)} crosses host bridges "
            f"({'/'.join(sorted({str(p.path.pcie_class) for p in found}))}) while the IOMMU translates: unproven",
            consequence="on some machines such copies report success and deliver wrong bytes",
            evidence=status_evidence(context, found[:1]) + hit[0][1].evidence,
            rule="peer access across host bridges with a group type other than identity",
            fix="boot with iommu=pt (or the IOMMU off) and prove the pair with `topocheck bw`; until then "
            "NCCL_P2P_DISABLE=1, at the cost of copies through host memory",
        )
