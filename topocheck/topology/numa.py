"""How NUMA nodes and sockets lie to each other."""

from __future__ import annotations

from topocheck.model.address import parse_cpulist
from topocheck.model.base import known
from topocheck.model.system import NumaFacts


def crossed_nodes(numa: NumaFacts) -> dict[int, tuple[str, ...]] | None:
    """Return each NUMA node that holds parts of several sockets -> those sockets; None where either is not known.

    A node within one socket is usual (NPS, SNC), one that holds whole sockets as well (a guest with one node).
    """
    try:
        sockets = {k: parse_cpulist(v) for k, v in numa.cpu_packages.items()}
        listed = numa.nodes if known(numa.nodes) else ()
        nodes = {n.node: parse_cpulist(n.cpulist) for n in listed if known(n.cpulist)}
    except ValueError:
        return None
    if not sockets or not any(nodes.values()):
        return None
    out: dict[int, tuple[str, ...]] = {}
    online = frozenset().union(*nodes.values())
    for node, cpus in nodes.items():
        parts = [k for k, v in sockets.items() if cpus & v]
        if len(parts) > 1 and any(not (sockets[k] & online) <= cpus for k in parts):
            out[node] = tuple(parts)
    return out
