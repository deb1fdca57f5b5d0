"""From the facts of a node to its topology. Pure: the same facts give the same topology."""

from __future__ import annotations

from collections.abc import Mapping

from topocheck.model.address import address_key
from topocheck.model.base import Missing, is_lost, known
from topocheck.model.node import Node
from topocheck.model.system import gpu_file
from topocheck.topology import inventory, nvlink, tree
from topocheck.topology.classes import Surroundings
from topocheck.topology.nearest import nearest_nics
from topocheck.topology.paths import Map, find_path, host_path
from topocheck.topology.rdma_functions import without_device
from topocheck.topology.switch_nics import switch_management
from topocheck.topology.types import Gpu, Nic, Topology, TreeNode


def surroundings(node: Node) -> Surroundings:
    """Return how many NUMA nodes with CPUs there are, and whether this is a guest."""
    nodes = node.numa.nodes
    count: int | Missing
    if isinstance(nodes, Missing):
        count = nodes
    else:
        with_cpus = [n for n in nodes if not isinstance(n.cpulist, Missing) and n.cpulist.strip()]
        count = len(with_cpus or nodes)
        untold = next((n.cpulist for n in nodes if isinstance(n.cpulist, Missing) and is_lost(n.cpulist)), None)
        if count < 2 and untold is not None:
            count = untold
    return Surroundings(count, known(node.system.hypervisor))


def is_flat(
    gpus: tuple[Gpu, ...],
    nics: tuple[Nic, ...],
    places: Mapping[str, tree.Chain],
    roles: Mapping[str, TreeNode],
    around: Surroundings,
) -> bool:
    """Tell whether a guest's hypervisor shows its GPUs and NICs without any switch between them.

    Where the whole tree is hidden nothing is shown, so nothing is flat. Emulated switches that a hypervisor puts
    there on purpose tell closeness, so such a tree is not flat either.
    """
    if not around.guest or not gpus:
        return False
    addresses = [g.address for g in gpus] + [n.address for n in nics]
    above = [e for a in addresses for e in places.get(a, ())[:-1]]
    if not above:
        return False
    return not any(roles[e].role == "upstream_port" for e in above if e in roles)


MAX_GPUS = 256
"""GPUs and accelerators that are paired with each other; NVIDIA's driver takes 32 (NV_MAX_DEVICES, nvlimits.h)."""
MAX_NIC_PATHS = 1 << 13
"""Pairs of a GPU and a NIC: 1,024 NICs beside 8 GPUs, such as 8 cards with 127 virtual functions each. NCCL takes 32
RDMA devices (MAX_IB_DEVS)."""


def _within_limits(
    gpus: tuple[Gpu, ...], accelerators: tuple[Gpu, ...], nics: tuple[Nic, ...]
) -> tuple[tuple[Gpu, ...], tuple[Gpu, ...], tuple[Nic, ...], str]:
    """Return the first devices of each kind, as many as are judged, and what is left out, in words."""
    kept = gpus[:MAX_GPUS]
    others = accelerators[: MAX_GPUS - len(kept)]
    most = MAX_NIC_PATHS // max(1, len(kept) + len(others))
    counts = (
        (len(gpus) - len(kept), len(gpus), "GPUs"),
        (len(accelerators) - len(others), len(accelerators), "other accelerators"),
        (len(nics) - most, len(nics), "RDMA NICs"),
    )
    left = ", ".join(f"{n} of {of} {what}" for n, of, what in counts if n > 0)
    return kept, others, nics[:most], left


def build(node: Node) -> Topology:
    """Return the structure of a node: devices, tree, paths of every ordered pair, nearest NICs, NVLink groups."""
    devices = inventory.by_address(node)
    places = tree.chains(devices.values())
    roles = tree.build_tree(devices, places)
    every_gpu, every_nic = inventory.find_gpus(node, devices, places), inventory.find_nics(node, devices, places)
    managing = switch_management(every_gpu, devices, places, roles)
    gpus, accelerators, nics, left_out = _within_limits(
        every_gpu,
        inventory.find_accelerators(devices, places),
        tuple(n for n in every_nic if n.address not in managing),
    )
    around = surroundings(node)
    switches = frozenset(d.address for d in inventory.nvswitches(devices.values()))
    alive = [g for g in gpus if g.on_bus]
    flat = is_flat(gpus, nics, places, roles, around)
    m = Map(
        devices=devices,
        places=places,
        tree=roles,
        bundles=nvlink.graph(alive, switches, node.nvml.statuses),
        untold={g.address: why for g in alive if (why := _nvlinks_untold(node, g)) is not None},
        statuses=node.nvml.statuses,
        around=around,
        flat=flat,
    )
    judged = (*gpus, *accelerators)
    paths = [find_path(a, b, m) for a in judged for b in judged if a.address != b.address]
    paths += [find_path(a, n, m) for a in judged for n in nics]
    return Topology(
        devices=devices,
        chains=places,
        gpus=gpus,
        accelerators=accelerators,
        nics=nics,
        switch_nics=tuple(n for n in every_nic if n.address in managing),
        switch_functions=tuple(sorted(managing, key=address_key)),
        rdma_functions=without_device(devices.values(), node.net.rdma, managing),
        software_rdma=inventory.software_rdma(node),
        unplaced_nics=inventory.unplaced_nics(node),
        tree=roles,
        paths=tuple(paths),
        host_paths={g.address: host_path(g, m) for g in gpus},
        nearest_nics=nearest_nics(judged, nics, paths),
        nvlink_groups=nvlink.groups(gpus, m.bundles),
        flat_tree=flat,
        left_out=left_out,
        nics_untold=node.net.rdma if isinstance(node.net.rdma, Missing) and is_lost(node.net.rdma) else None,
    )


def _nvlinks_untold(node: Node, gpu: Gpu) -> Missing | None:
    return nvlink.untold(gpu, node.nvml.gpus, gpu_file(node.system, gpu.address))
