"""What lies on the way of peer traffic by PCIe: ACS, the IOMMU, host bridges, a hypervisor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.acs import acs_clear, ports_between
from topocheck.checks.shared.common import is_guest, listed
from topocheck.checks.shared.fixes import Fix, first_fitting, in_container, is_root, on_node
from topocheck.checks.shared.p2p_pairs import (
    GpuPair,
    coherent_ways,
    devices_of,
    permitted_by_pcie,
    rdma_in_use,
    status_evidence,
    subject_of,
)
from topocheck.checks.sources import GPUDIRECT, PEERS, Needs
from topocheck.gpudirect.inputs import acs_evidence, no_translation
from topocheck.gpudirect.types import IommuMode, PciePath, RdmaVerdict
from topocheck.model.base import NEEDS_ROOT, Finding, Missing, State
from topocheck.model.pci import PciDevice

_ACROSS = ("PHB", "NODE", "SYS")
"""Classes in which peer traffic crosses a host bridge."""


class _Way(msgspec.Struct, frozen=True):
    """A pair whose traffic goes by PCIe, as `GPU0-GPU1` or `GPU0-mlx5_0`, and what it passes."""

    labels: str
    ends: tuple[str, str]
    passed: PciePath


def _in_use(context: Context) -> tuple[list[GpuPair], list[_Way]]:
    """Return the GPU pairs that use PCIe peer access and the GPU-NIC pairs that use GPUDirect RDMA.

    Raises:
        NotApplicableError: there are none.
    """
    peers = list(permitted_by_pcie(context))
    found = rdma_in_use(context)
    if not peers and not found:
        raise not_applicable("no peer traffic goes by PCIe here (NVLink, a single GPU, or no peer access)")
    return peers, _to_nics(found)


def _to_nics(found: Iterable[RdmaVerdict]) -> list[_Way]:
    return [_Way(f"{v.from_label}-{v.to_label}", (v.from_, v.to), v.pcie) for v in found if v.pcie is not None]


def _ways(pairs: Iterable[GpuPair]) -> list[_Way]:
    return [_Way(p.labels, (p.a.address, p.b.address), p.passed) for p in pairs if p.passed is not None]


def _above_nics(context: Context) -> Iterator[Finding]:
    """Yield the finding about NICs whose own ports redirect what they send to a GPU that is joined to its CPU.

    The GPU's PCIe link is a placeholder, and its ports have no say; the NIC's link is the way of the data.
    """
    hit: dict[str, PciDevice] = {}
    ways = []
    for gpu, nic in coherent_ways(context):
        own = context.topology.chains.get(nic.address, ())
        passed = [p for p in ports_between(context, gpu.address, nic.address) if p.address in own]
        found = {p.address: p for p in passed if not isinstance(p.acs, Missing) and p.acs.redirects}
        if found:
            hit |= found
            ways.append(f"{gpu.label}-{nic.label}")
    if hit:
        yield Finding(
            state=State.WARN,
            subject="node",
            title=f"ACS redirects GPUDirect RDMA of {listed(ways)} at the NICs' ports {listed(hit)}",
            consequence="collectives between nodes are slower, and DMA-BUF may be refused",
            evidence=acs_evidence(hit.values()),
            rule="ReqRedir (bit 2) or CmpltRedir (bit 3) of the ACS control register is set on a port above the NIC",
            fix=_on_node(context, acs_clear(context, hit, hit.values())),
        )


@check(
    "p2p.acs-redirect",
    title="ACS sends peer traffic up to the root complex",
    severity=State.FAIL,
    reads=("/sys/bus/pci/devices/*/config, ACS control (root only)",),
    needs=Needs((*PEERS, *GPUDIRECT, "gpu", "iommu", "node"), ("config",)),
)
def acs_redirect(context: Context) -> Iterator[Finding]:
    """ACS sends peer traffic up to the root complex.

    Looks at:
        The ACS control word of the root and downstream ports between two GPUs that use PCIe peer access, and between
        a GPU and its nearest RDMA NIC. Ports below a switch count only where both devices share a switch: where they
        do not, what one sends leaves its switch upwards in any case, and root ports alone count. Only ReqRedir and
        CmpltRedir redirect; SrcValid or UpstreamFwd alone do not.

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
    above = list(_above_nics(context))
    yield from above
    if above or coherent_ways(context):
        peers, remote = list(permitted_by_pcie(context)), _to_nics(rdma_in_use(context))
    else:
        peers, remote = _in_use(context)
    between = [p for p in peers if p.passed is not None and p.passed.acs.redirecting]
    for hit, subject, devices, state in (
        (_ways(between), subject_of(between), devices_of(between), State.FAIL),
        ([w for w in remote if w.passed.acs.redirecting], "node", (), State.WARN),
    ):
        if not hit:
            continue
        redirecting = {p.address: p for w in hit for p in w.passed.acs.redirecting}
        yield Finding(
            state=state,
            subject=subject,
            devices=devices,
            title=f"ACS redirects peer traffic of {listed(w.labels for w in hit)} at {listed(redirecting)}",
            consequence="peer copies go through the root complex: slow, and on some machines they hang or corrupt data",
            evidence=acs_evidence(redirecting.values()),
            rule="ReqRedir (bit 2) or CmpltRedir (bit 3) of the ACS control register is set on a port between the two",
            fix=_with_setting(_on_node(context, acs_clear(context, redirecting, _passed(context, hit))), state),
        )
    unread = {p.address: p for w in (*_ways(peers), *remote) for p in w.passed.acs.unread}
    if unread:
        yield Finding(
            state=State.UNKNOWN,
            subject="node",
            title=f"ACS settings of {listed(unread, 4)} are readable by root only",
            consequence="where ACS redirects peer traffic, peer copies are slow and may hang",
            evidence=tuple(e for p in list(unread.values())[:4] for e in p.evidence("config")),
            rule="the ACS control register is beyond byte 64 of config space",
            fix=first_fitting(context, *_READ),
        )


def _passed(context: Context, ways: Iterable[_Way]) -> list[PciDevice]:
    """Return every port on some ways, those that redirect nothing too."""
    return [p for w in ways for p in ports_between(context, *w.ends)]


def _with_setting(fix: str | None, state: State) -> str | None:
    """Add NCCL's own way round for GPUs and NICs; between GPUs it is NCCL_P2P_DISABLE, which other findings name."""
    if fix is None or state is State.FAIL:
        return fix
    return f"{fix}. Until then NCCL_NET_GDR_LEVEL=LOC keeps NCCL from it, at the cost of copies through host memory"


_READ = (
    Fix(
        "run topocheck on the node, outside this container: the ports' registers are not readable here",
        (in_container, is_root),
    ),
    Fix(NEEDS_ROOT),
)


def _on_node(context: Context, fix: str | None) -> str | None:
    return None if fix is None else on_node(context, fix)


@check(
    "p2p.iommu-translates",
    title="The IOMMU translates peer traffic",
    severity=State.WARN,
    reads=("/sys/kernel/iommu_groups/*/type", "/proc/cmdline", "/sys/class/iommu"),
    needs=Needs((*PEERS, *GPUDIRECT, "gpu", "iommu"), ("node",)),
)
def iommu_translates(context: Context) -> Iterator[Finding]:
    """The IOMMU translates peer traffic.

    Looks at:
        The type of the IOMMU groups of GPUs that use PCIe peer access below one switch, and of GPUs and NICs that
        use GPUDirect RDMA. `identity` passes addresses through; `DMA` and `DMA-FQ` translate.

    Why it matters:
        Translated peer packets must go up to the IOMMU and back: slow, and on some machines wrong or hanging.

    Fix:
        Boot with `iommu=pt` (pass-through; on Arm `iommu.passthrough=1`), or switch the IOMMU off where nothing needs
        it. The price: devices can reach all of memory, so not on hosts that pass devices to guests by trust alone.

    Does not apply:
        Where no peer traffic goes by PCIe (NVLink between all GPUs and no RDMA NIC; Grace), and in a guest. Pairs
        across host bridges are `p2p.unverified-across-host-bridges`.
    """
    if is_guest(context):
        raise not_applicable("the IOMMU that matters is the host's")
    peers, remote = _in_use(context)
    found = _ways(p for p in peers if p.path.pcie_class not in _ACROSS) + remote
    hit = [w for w in found if w.passed.iommu.mode is IommuMode.TRANSLATED]
    if hit:
        yield Finding(
            state=State.WARN,
            subject="node",
            title=f"the IOMMU translates the peer traffic of {listed(w.labels for w in hit)}",
            consequence="peer copies and GPUDirect RDMA are slow, and on some machines hang or arrive wrong",
            evidence=tuple(dict.fromkeys(e for w in hit[:2] for e in w.passed.iommu.evidence)),
            rule="group type is DMA or DMA-FQ, not identity, where peer traffic goes by PCIe",
            fix=on_node(
                context,
                f"{no_translation(context.node)}, or the IOMMU off where nothing needs it (devices then reach all of "
                "memory)",
            ),
        )
    elif any(w.passed.iommu.mode is IommuMode.UNKNOWN for w in found):
        yield Finding(
            state=State.UNKNOWN,
            subject="node",
            title="whether an IOMMU translates peer traffic cannot be determined",
            consequence="if it does, peer copies are slow and may hang",
            rule="/sys/kernel/iommu_groups or the kernel's options must say",
            fix="check /proc/cmdline and /sys/kernel/iommu_groups on the host, outside the container",
        )


@check(
    "p2p.unverified-across-host-bridges",
    title="Peer access is offered across host bridges while the IOMMU translates",
    severity=State.WARN,
    reads=("NVML DeviceGetP2PStatus", "/sys/kernel/iommu_groups/*/type"),
    needs=Needs((*PEERS,), ("iommu", "node")),
)
def unproven_across_host_bridges(context: Context) -> Iterator[Finding]:
    """Peer access is offered across host bridges while the IOMMU translates.

    Looks at:
        Pairs of GPUs without a common switch for which NVML says OK, and the type of their IOMMU groups.

    Why it matters:
        On some machines such copies report success and deliver other bytes: every status says yes, training
        diverges. Nothing but a copy whose bytes are compared can tell.

    Fix:
        Run `topocheck bw`, which compares the bytes. Boot with `iommu=pt` (on Arm `iommu.passthrough=1`) or the IOMMU
        off; until then `NCCL_P2P_DISABLE=1`, at the cost of copies through host memory.

    Does not apply:
        With the IOMMU off or in identity mode, below one switch (`p2p.iommu-translates`), and in a guest.
    """
    if is_guest(context):
        raise not_applicable("the IOMMU that matters is the host's")
    across = [p for p in permitted_by_pcie(context) if p.path.pcie_class in _ACROSS]
    if not across:
        raise not_applicable("no PCIe peer access across host bridges")
    found = [p for p in across if p.passed is not None and p.passed.iommu.mode is IommuMode.TRANSLATED]
    if found:
        yield Finding(
            state=State.WARN,
            subject=subject_of(found),
            devices=devices_of(found),
            title=f"peer access of {listed(p.labels for p in found)} crosses host bridges "
            f"({'/'.join(sorted({str(p.path.pcie_class) for p in found}))}) while the IOMMU translates: not verified",
            consequence="on some machines such copies report success and deliver wrong bytes",
            evidence=status_evidence(context, found[:1]) + _ways(found)[0].passed.iommu.evidence,
            rule="peer access across host bridges with a group type other than identity",
            fix=on_node(context, f"{no_translation(context.node)} (or the IOMMU off)")
            + " and prove the pair with `topocheck bw`; until then NCCL_P2P_DISABLE=1, at the cost of copies through "
            "host memory",
        )
