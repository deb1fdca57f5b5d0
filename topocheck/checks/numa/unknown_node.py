"""GPUs and NICs whose NUMA node the kernel does not know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, check, not_applicable, once
from topocheck.checks.shared.affinity import nodes_untold, nodes_with_cpus
from topocheck.checks.shared.common import is_guest, listed, living, named
from topocheck.checks.shared.fixes import in_guest
from topocheck.checks.shared.settings import judged_version
from topocheck.checks.sources import NICS, Needs
from topocheck.model.base import Finding, Missing, State
from topocheck.nccl.rules.versions import gdr_level
from topocheck.topology.inventory import numa_of
from topocheck.topology.paths import joined_to_cpu
from topocheck.topology.tree import Chain
from topocheck.topology.types import Gpu, Nic


@once
def _placed(c: Context) -> tuple[list[Gpu | Nic], list[Gpu | Nic]]:
    """Return (devices whose NUMA node the kernel tells, devices whose it does not)."""
    devices, places = c.topology.devices, c.topology.chains
    told: list[Gpu | Nic] = []
    untold: list[Gpu | Nic] = []
    every: list[Gpu | Nic] = [*living(c), *c.topology.nics]
    for d in every:
        if d.address not in devices:
            continue
        node = numa_of(d.address, places.get(d.address, ()), devices)
        (untold if isinstance(node, Missing) else told).append(d)
    return told, untold


@check(
    "numa.node-missing",
    title="No device reports its NUMA node, on a machine with several",
    severity=State.WARN,
    reads=("/sys/bus/pci/devices/*/numa_node", "/sys/devices/system/node/online"),
    needs=Needs((*NICS, "numa"), ("node", "hypervisor")),
)
def node_missing(c: Context) -> Iterator[Finding]:
    """The kernel knows no NUMA node of any GPU or NIC, and the machine has several nodes with CPUs.

    Looks at:
        numa_node of each GPU and NIC, or of the ports above it.

    Why it matters:
        NCCL puts all devices on a node "-1" with no CPUs: threads are not bound, and near and far NICs look alike.

    Fix:
        In a guest: vNUMA in the hypervisor, or a topology file (NCCL_TOPO_FILE). On bare metal: newer firmware.

    Does not apply:
        With one NUMA node there is nothing to be far from. In a guest it is a note: the host knows.
    """
    nodes = nodes_with_cpus(c)
    told, untold = _placed(c)
    unknown = nodes_untold(c, devices=bool(told or untold))
    if unknown is not None:
        yield unknown
        return
    if len(nodes) < 2 or not untold or told:
        if len(nodes) < 2:
            raise not_applicable("one NUMA node: there is nothing to be far from")
        return
    yield _untold(c, untold, f"none of {len(untold)} GPUs and NICs reports its NUMA node")


@check(
    "numa.node-mixed",
    title="Some devices report their NUMA node and some do not",
    severity=State.WARN,
    reads=("/sys/bus/pci/devices/*/numa_node",),
    needs=Needs((*NICS, "numa"), ("node", "nccl", "hypervisor")),
)
def node_mixed(c: Context) -> Iterator[Finding]:
    """Some GPUs and NICs have a NUMA node, and others have none.

    Looks at:
        numa_node of each GPU and NIC, or of the ports above it.

    Why it matters:
        NCCL puts those without on a CPU of their own: SYS between neighbours, and GPUDirect RDMA off between them.

    Fix:
        Newer firmware, which states the place of every host bridge; until then a topology file. Root can write
        numa_node, until the next boot.

    Does not apply:
        With one NUMA node. A note in a guest, whose host knows, and where only devices of another kind on host
        bridges of their own tell theirs, unless that keeps NCCL from GPUDirect RDMA over a GPU's C2C link.
    """
    told, untold = _placed(c)
    unknown = nodes_untold(c, devices=bool(told or untold))
    if unknown is not None:
        yield unknown
        return
    if len(nodes_with_cpus(c)) < 2:
        raise not_applicable("one NUMA node")
    if told and untold:
        title = f"{listed(d.label for d in untold)} report no NUMA node (numa_node = -1), {len(told)} other devices do"
        alike = _akin(c.topology.chains, untold, told)
        yield _untold(c, untold, title, named_each=True, worse=alike or _c2c_lost(c))


def _c2c_lost(c: Context) -> bool:
    """Tell whether a node that is not reported keeps NCCL from reaching a NIC over a GPU's C2C link.

    By PCIe alone it would not use GPUDirect RDMA across host bridges, wherever the devices are.
    """
    coherent = {g.address for g in living(c) if joined_to_cpu(g)}
    nics = {n.address for n in c.topology.nics}
    rule, exception = gdr_level(judged_version(c), c2c=True)
    open_ = any(p.from_ in coherent and p.to in nics and isinstance(p.crosses_nodes, Missing) for p in c.topology.paths)
    return open_ and (exception or rule.value == "P2C")


def _akin(places: Mapping[str, Chain], untold: list[Gpu | Nic], told: list[Gpu | Nic]) -> bool:
    """Tell whether two of them should be alike: of one kind, or on one host bridge."""
    kinds = [{isinstance(d, Gpu) for d in some} for some in (untold, told)]
    bridges = [{places[d.address][:1] for d in some} for some in (untold, told)]
    return bool(kinds[0] & kinds[1] or bridges[0] & bridges[1])


def _untold(
    c: Context, untold: list[Gpu | Nic], title: str, *, named_each: bool = False, worse: bool = True
) -> Finding:
    guest = is_guest(c)
    return Finding(
        state=unless_lost(c, State.WARN if worse and not guest else State.NOTE, "pci", "node", "numa"),
        subject=listed(named(d) for d in untold) if named_each else "node",
        devices=tuple(d.address for d in untold) if named_each else (),
        title=title,
        consequence="NCCL treats them as remote (SYS) from every GPU: threads are not bound, and "
        "GPUDirect RDMA may stay off",
        evidence=tuple(e for d in untold[:3] if d.pci is not None for e in d.pci.evidence("numa_node")),
        rule=f"the machine has {len(nodes_with_cpus(c))} NUMA nodes with CPUs",
        fix="ask the host's administrator for vNUMA, or for a topology file (NCCL_TOPO_FILE)"
        if in_guest(c)
        else "update the firmware; until then a topology file (NCCL_TOPO_FILE)",
    )
