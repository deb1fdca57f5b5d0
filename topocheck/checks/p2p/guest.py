"""Peer traffic in a virtual machine: what the hypervisor hides, and what rests on the host."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.common import is_guest, listed, quote
from topocheck.checks.shared.p2p_pairs import GpuPair, devices_of, pairs, permitted_by_pcie, status_evidence, subject_of
from topocheck.checks.sources import NICS, PEERS, Needs
from topocheck.model.base import Evidence, Finding, State, known
from topocheck.topology.tree import bus_of


@check(
    "p2p.flat-vm-tree",
    title="A hypervisor shows GPUs and NICs on a flat tree",
    severity=State.UNKNOWN,
    reads=("/sys/bus/pci/devices/* (resolved paths)", "/sys/class/dmi/id", "NCCL_TOPO_FILE"),
    needs=Needs((*NICS, "hypervisor")),
)
def flat_vm_tree(context: Context) -> Iterator[Finding]:
    """A hypervisor shows GPUs and NICs on a flat tree.

    Looks at:
        Whether this is a virtual machine in which no switch stands above any GPU or NIC.

    Why it matters:
        Which NIC is near which GPU cannot be seen: everything looks equally far (PHB), so NCCL keeps GPUDirect RDMA
        off, and any closeness that a tool prints is invented. The hardware may be fine. NVLink facts stay valid.

    Fix:
        Give NCCL the provider's topology file (`NCCL_TOPO_FILE`), with the guest's bus ids for devices and free ids
        for switches. ACS and ATS are the host's matter.

    Does not apply:
        On bare metal; in a guest whose hypervisor shows switches; with one GPU and no NIC. Where a topology file is
        set, or there is one NIC for one GPU, it is a note.
    """
    if not context.topology.flat_tree:
        raise not_applicable("not a guest with a flat PCI tree")
    unseen = [p for p in pairs(context) if p.by_pcie]
    nics = context.topology.nics
    if not nics and not unseen:
        return
    settings = context.node.settings
    told = [
        Evidence(s.source, f"{s.name}={s.value}") for s in settings.nccl if s.name == "NCCL_TOPO_FILE" and s.in_force
    ]
    if not told and known(settings.topo_file):
        told = [Evidence(settings.topo_file_path, "NCCL's default topology file")]
    system = context.node.system
    gpus = len(context.topology.gpus)
    what = f"{_count(gpus, 'GPU')} and {_count(len(nics), 'NIC')}" if nics else _count(gpus, "GPU")
    choice = len(nics) > 1 or (gpus > 1 and bool(nics))
    yield Finding(
        state=State.UNKNOWN if choice and not told else State.NOTE,
        subject="node",
        title=f"PCIe distance between {what} not visible: this {system.hypervisor} guest shows a flat tree",
        consequence="NCCL treats every NIC as equally far and leaves GPUDirect RDMA off, unless a topology file says "
        "otherwise"
        if nics
        else "which GPUs share a switch is not known",
        evidence=quote(system, "hypervisor", system.hypervisor) + tuple(told) + _roots(context),
        rule="no switch above any GPU or NIC of a guest",
        fix=None if told else _WSL if system.hypervisor == "WSL" else _HOST,
    )


_HOST = "set NCCL_TOPO_FILE to the provider's topology file; ACS and ATS are the host's matter: ask the provider"
_WSL = (
    "none is needed: WSL shows GPUs without their slots; run on Linux itself where GPUs must reach each other or a NIC "
    "directly"
)


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _roots(context: Context) -> tuple[Evidence, ...]:
    buses = sorted({bus_of(g.address) for g in context.topology.gpus})
    return (Evidence("PCI tree", f"GPUs on {len(buses)} bus{'' if len(buses) == 1 else 'es'}, none below a switch"),)


@check(
    "p2p.unverified-in-guest",
    title="Peer access in a guest depends on the host, which is not visible",
    severity=State.UNKNOWN,
    reads=("NVML DeviceGetP2PStatus", "NVIDIA's P2P clique capability"),
    needs=Needs((*PEERS,), ("config",)),
)
def unproven_in_guest(context: Context) -> Iterator[Finding]:
    """Peer access in a guest depends on the host, which is not visible.

    Looks at:
        Pairs of GPUs of a guest that go by PCIe and for which NVML says OK, and the clique by which a hypervisor
        promises that the host lets them talk.

    Why it matters:
        The host's ACS and IOMMU decide whether peer copies arrive. Guests were seen in which NVML and CUDA both said
        yes and the data was wrong.

    Fix:
        Prove it with a checked copy (`topocheck bw`), or ask the host's administrator for a P2P clique
        (QEMU: x-nv-gpudirect-clique).

    Does not apply:
        On bare metal, over NVLink, and where both GPUs bear one clique.
    """
    if not is_guest(context):
        raise not_applicable("this is not a virtual machine")
    found = [p for p in permitted_by_pcie(context) if not _same_clique(p)]
    if found:
        yield Finding(
            state=State.UNKNOWN,
            subject=subject_of(found),
            devices=devices_of(found),
            title=f"peer access of {listed(p.labels for p in found)} is offered, but the host decides unseen",
            consequence="copies may arrive, be slow, or deliver wrong bytes",
            evidence=status_evidence(context, found[:1]),
            rule="a guest's PCIe peer access needs a P2P clique or a proof",
            fix="prove it with `topocheck bw`, which compares the bytes",
        )


def _same_clique(p: GpuPair) -> bool:
    cliques = [x.pci.p2p_clique if x.pci is not None else None for x in (p.a, p.b)]
    return isinstance(cliques[0], int) and cliques[0] == cliques[1]
