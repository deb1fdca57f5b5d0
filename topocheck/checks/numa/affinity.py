"""NUMA: CPU affinities that say nothing, and nodes that sockets cut across."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.shared.affinity import cpus, no_gpu
from topocheck.checks.shared.common import listed, living, quote
from topocheck.checks.shared.fixes import in_guest
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.base import Evidence, Finding, State, known
from topocheck.topology.numa import crossed_nodes


@check(
    "numa.nodes-across-sockets",
    title="NUMA nodes and sockets overlap",
    severity=State.WARN,
    reads=("/sys/devices/system/node/node*/cpulist", "/sys/devices/system/cpu/*/topology/package_cpus_list"),
    needs=Needs((*GPUS, "numa", "sockets")),
)
def nodes_across_sockets(c: Context) -> Iterator[Finding]:
    """NUMA nodes and sockets overlap.

    Looks at:
        The CPUs of each NUMA node against those of each socket. A node may be a part of a socket (NPS, SNC), or hold
        whole ones; one that has a part of one socket and a part of another is wrong.

    Why it matters:
        No such machine exists: the guest's definition, or the firmware, gave CPUs to the wrong nodes. Whoever binds by
        socket and whoever binds by node then chooses different CPUs, and memory is far from where it seems near.

    Fix:
        In the guest's definition give each virtual socket the CPUs of its nodes (libvirt: the order of <cell cpus=...>
        against <topology sockets=...>; QEMU: -numa cpu,socket-id=...).

    Does not apply:
        Where sockets or nodes are not known, and on machines without a GPU.
    """
    if not living(c):
        raise not_applicable(no_gpu(c))
    crossed = crossed_nodes(c.node.numa)
    if crossed is None:
        raise not_applicable("which CPUs belong to which socket and NUMA node is not known")
    if not crossed:
        return
    node, sockets = next(iter(crossed.items()))
    nodes = c.node.numa.nodes
    yield Finding(
        state=State.WARN,
        subject="node",
        title=f"NUMA {'nodes' if len(crossed) > 1 else 'node'} {listed(map(str, crossed))} and the sockets cut "
        f"across each other: node {node} has parts of sockets {listed(sockets)}",
        consequence="binding by socket and binding by node choose different CPUs; no advice on affinity is given",
        evidence=(
            *(e for n in (nodes if known(nodes) else ())[:4] for e in quote(n, "cpulist", n.cpulist)),
            *(Evidence(f"socket {k} CPUs", v) for k, v in list(c.node.numa.cpu_packages.items())[:4]),
        ),
        rule="a node lies within one socket, or holds whole ones",
        fix="fix the guest's definition: the CPUs of a NUMA cell must be those of one virtual socket "
        "(libvirt <numa><cell cpus=...> against <topology sockets=...>; QEMU -numa cpu,socket-id=...), then start the "
        "guest again"
        if in_guest(c)
        else "update the firmware, or set its NUMA options (NPS, SNC) back to their defaults (needs a reboot)",
    )


@check(
    "numa.one-affinity",
    title="All GPUs show the same CPUs, though they are on different NUMA nodes",
    severity=State.NOTE,
    reads=("NVML DeviceGetCpuAffinity", "/sys/bus/pci/devices/*/numa_node"),
    needs=Needs((*GPUS, "numa"), ("gpu cpus", "node")),
)
def one_affinity(c: Context) -> Iterator[Finding]:
    """All GPUs show the same CPUs, though they are on different NUMA nodes.

    Looks at:
        The CPUs that NVML calls near each GPU, and the NUMA nodes of the GPUs' PCI functions.

    Why it matters:
        Programs that bind by NVML's answer (DGL, DALI, many launch scripts) then bind to CPUs of the wrong socket.

    Fix:
        Bind by the NUMA node of the PCI function; `topocheck placement` does.

    Does not apply:
        With one GPU, one NUMA node, or where a node is not known.
    """
    if not living(c):
        raise not_applicable(no_gpu(c))
    gpus = [g for g in living(c) if known(g.cpu_affinity) and g.pci is not None and known(g.pci.numa_node)]
    if len(gpus) < 2:
        raise not_applicable("fewer than two GPUs whose CPUs and NUMA node are known")
    nodes = {g.pci.numa_node for g in gpus if g.pci is not None}
    near = {str(g.cpu_affinity) for g in gpus}
    if len(nodes) < 2 or len(near) > 1 or not cpus(next(iter(near))):
        return
    yield Finding(
        state=State.NOTE,
        subject="node",
        title=f"NVML calls the CPUs {near.pop()} near to all of {listed(g.label for g in gpus)}, which are on "
        f"NUMA nodes {listed(sorted(map(str, nodes)))}",
        consequence="a program that binds by NVML's answer may run on the other socket",
        evidence=tuple(e for g in gpus[:2] if g.nvml is not None for e in quote(g.nvml, "DeviceGetCpuAffinity", "")),
        rule="GPUs of different NUMA nodes have different CPUs near them",
        fix="bind by the NUMA node of the PCI function (topocheck placement shows it)",
    )
