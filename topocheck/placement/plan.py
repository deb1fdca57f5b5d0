"""Which GPU, CPUs, memory and NIC each local rank of a node should have."""

from __future__ import annotations

from collections import Counter

import msgspec

from topocheck.model.address import format_cpulist
from topocheck.model.base import known
from topocheck.model.node import Node
from topocheck.placement.cores import CROSSED, CoreMap, core_map, near_cpus, share
from topocheck.topology.types import Gpu, Topology


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """One local rank's place.

    Attributes:
        gpu: PCI address; gpu_label: `GPU3`, its number with CUDA_DEVICE_ORDER=PCI_BUS_ID.
        cpus: kernel list; empty where nothing tells which CPUs are near the GPU.
        memory_node: NUMA node of those CPUs, that has memory; None where not known.
        nics: labels of the NICs nearest to the GPU.
        socket, cores: Open MPI's logical socket and cores in it (`0:0-11`), empty where cores cannot be numbered.
        shared: the CPUs are those of other ranks as well, since cores and threads cannot be distinguished.
    """

    local_rank: int
    gpu: str
    gpu_label: str
    cpus: str = ""
    memory_node: int | None = None
    nics: tuple[str, ...] = ()
    slot: str = ""
    shared: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The suggested places of the ranks of one node, and what the reader must know of them."""

    hostname: str
    bindings: tuple[Binding, ...]
    notes: tuple[str, ...] = ()


def usable(topology: Topology) -> tuple[Gpu, ...]:
    """Return the GPUs that a job can use, in the order of their PCI addresses as CUDA's PCI_BUS_ID order has them."""
    return tuple(g for g in topology.gpus if g.on_bus and not (g.nvml is not None and g.nvml.lost))


def plan(node: Node, topology: Topology, ranks: int = 0) -> Plan:
    """Return where the local ranks of a node should run: rank i on the i-th GPU, on CPUs near it.

    Equal on every node of a kind, this order puts rank i of each node on the same rail.

    Args:
        node: the facts.
        topology: what was made of them.
        ranks: how many on this node; one for each GPU where 0.
    """
    gpus = usable(topology)
    hostname = node.system.hostname if known(node.system.hostname) else "localhost"
    if not gpus:
        return Plan(hostname=hostname, bindings=(), notes=("no usable GPU on this node: nothing to place",))
    n = ranks or len(gpus)
    notes: list[str] = []
    if n > len(gpus):
        notes.append(f"{n} ranks for {_gpus(len(gpus))}: some GPUs serve several ranks, which NCCL refuses")
    elif n < len(gpus):
        idle = len(gpus) - n
        ranks_text = "1 rank" if n == 1 else f"{n} ranks"
        notes.append(f"{ranks_text} for {_gpus(len(gpus))}: {_gpus(idle)} {'stays' if idle == 1 else 'stay'} idle")
    if split_by_mig := [g.label for g in gpus if g.nvml is not None and g.nvml.mig_current is True]:
        one = "is" if len(split_by_mig) == 1 else "are"
        notes.append(f"{', '.join(split_by_mig)} {one} split by MIG: a rank there uses one MIG device, not the GPU")
    chosen = [gpus[i % len(gpus)] for i in range(n)]
    cores = core_map(node.numa)
    near = [near_cpus(g, node.numa) for g in chosen]
    if cores.why_not == CROSSED:
        notes.append(f"{CROSSED}: no CPUs are advised; put it right first")
    elif any(not c for c in near):
        notes.append(
            "it is not known which CPUs are local to some GPUs (a guest without NUMA, often): those are not bound"
        )
    labels = {nic.address: nic.label for nic in topology.nics}
    nearest = {x.gpu: tuple(labels[a] for a in x.nics if a in labels) for x in topology.nearest_nics}
    unsure = {x.gpu: x.untold for x in topology.nearest_nics if x.untold and topology.nics}
    if unplaced := [g for g in gpus if g.address in unsure]:
        names = ", ".join(g.label for g in unplaced)
        notes.append(f"which NICs are nearest to {names} is not known: {unsure[unplaced[0].address]}")
    users = Counter(near)
    parts = {c: share(c, cores.threads, n) for c, n in users.items() if c}
    if any(p is None and users[c] > 1 for c, p in parts.items()):
        notes.append("cores and threads cannot be distinguished: ranks of one socket share its CPUs")
    taken: dict[frozenset[int], int] = {}
    bindings = []
    for i, (g, c) in enumerate(zip(chosen, near, strict=True)):
        k = taken.setdefault(c, 0)
        taken[c] = k + 1
        split = parts.get(c)
        own = split[k] if split else c
        bindings.append(
            Binding(
                local_rank=i,
                gpu=g.address,
                gpu_label=g.label,
                cpus=format_cpulist(own),
                memory_node=_memory_node(node, own),
                nics=nearest.get(g.address, ()),
                slot=_slot(c, cores, users[c] if split else 1, k if split else 0),
                shared=bool(c) and split is None and users[c] > 1,
            )
        )
    return Plan(hostname=hostname, bindings=tuple(bindings), notes=tuple(notes))


def _gpus(n: int) -> str:
    return f"{n} GPU{'s' * (n != 1)}"


def _memory_node(node: Node, cpus: frozenset[int]) -> int | None:
    """Return the NUMA node that holds all of the CPUs; a node without CPUs (a GPU's memory) can never be it."""
    from topocheck.placement.cores import cpus_of

    nodes = node.numa.nodes if known(node.numa.nodes) else ()
    return next((n.node for n in nodes if cpus and cpus <= cpus_of(n.cpulist)), None)


def _slot(near: frozenset[int], cores: CoreMap, parts: int, part: int) -> str:
    """Return `socket:first-last` in logical cores, the same share that `share` gives; empty where it is not known."""
    inside = [r for r in cores.ranges if r.cpus <= near]
    if not inside or frozenset().union(*(r.cpus for r in inside)) != near or len({r.socket for r in inside}) != 1:
        return ""
    count = sum(r.count for r in inside)
    first = inside[0].socket_first
    lo, hi = part * count // parts, (part + 1) * count // parts
    if hi <= lo:
        return ""
    return f"{inside[0].socket}:{format_cpulist(range(first + lo, first + hi))}"
