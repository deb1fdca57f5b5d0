"""From the facts of a node to its topology. Pure: the same facts give the same topology."""

from __future__ import annotations

from collections.abc import Mapping

from topocheck.model.base import Missing, known
from topocheck.model.node import Node
from topocheck.topology import inventory, nvlink, tree
from topocheck.topology.classes import Surroundings
from topocheck.topology.nearest import nearest_nics
from topocheck.topology.paths import Map, find_path
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


def build(node: Node) -> Topology:
    """Return the structure of a node: devices, tree, paths of every ordered pair, nearest NICs, NVLink groups."""
    devices = inventory.by_address(node)
    places = tree.chains(devices.values())
    roles = tree.build_tree(devices, places)
    gpus = inventory.find_gpus(node, devices, places)
    accelerators = inventory.find_accelerators(devices, places)
    nics = inventory.find_nics(node, devices, places)
    around = surroundings(node)
    statuses = {(s.from_address, s.to_address): s for s in node.nvml.p2p}
    switches = frozenset(d.address for d in inventory.nvswitches(devices.values()))
    alive = [g for g in gpus if g.on_bus]
    flat = is_flat(gpus, nics, places, roles, around)
    m = Map(
        devices=devices,
        places=places,
        tree=roles,
        bundles=nvlink.graph(alive, switches, statuses),
        ancestors={k: s.ancestor for k, s in statuses.items()},
        around=around,
        flat=flat,
    )
    judged = (*gpus, *accelerators)
    paths = [find_path(a, b, m) for a in judged for b in judged if a.address != b.address]
    paths += [find_path(a, n, m) for a in judged for n in nics]
    return Topology(
        gpus=gpus,
        accelerators=accelerators,
        nics=nics,
        software_rdma=inventory.software_rdma(node),
        tree=roles,
        paths=tuple(paths),
        nearest_nics=nearest_nics(judged, nics, paths),
        nvlink_groups=nvlink.groups(gpus, m.bundles),
        flat_tree=flat,
    )
