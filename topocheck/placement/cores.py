"""Cores as schedulers count them, and CPUs near a GPU.

Slurm (gres.conf, `Cores`) and Open MPI (rankfile, logical cores) number cores, not CPUs: socket by socket, and in a
socket NUMA node by NUMA node, as hwloc orders them. The kernel's CPU numbers are another matter: with two threads a
core, CPUs 0 and 96 may be one core.
"""

from __future__ import annotations

import msgspec

from topocheck.model.address import format_cpulist, parse_cpulist
from topocheck.model.base import Missing, known
from topocheck.model.system import NumaFacts
from topocheck.topology.numa import crossed_nodes
from topocheck.topology.types import Gpu

CROSSED = "NUMA nodes and sockets overlap (numa.nodes-across-sockets)"
"""Why no affinity is advised on such a machine."""


class CoreRange(msgspec.Struct, frozen=True, kw_only=True):
    """Cores of one NUMA node: `first` counted over all sockets, `socket_first` within its socket."""

    socket: int
    first: int
    socket_first: int
    count: int
    cpus: frozenset[int]


class CoreMap(msgspec.Struct, frozen=True, kw_only=True):
    """The cores of a node, and how many threads each has."""

    ranges: tuple[CoreRange, ...] = ()
    threads: int = 1
    why_not: str = ""
    """Why the cores could not be numbered; empty where they could."""


def cpus_of(text: str | Missing | None) -> frozenset[int]:
    """Return a kernel list as numbers; the empty set where it is missing or of another form."""
    if not isinstance(text, str):
        return frozenset()
    try:
        return parse_cpulist(text)
    except ValueError:
        return frozenset()


def core_map(numa: NumaFacts) -> CoreMap:
    """Return the cores of a node in the order of schedulers, from sockets, NUMA nodes and the number of cores."""
    online = cpus_of(numa.online_cpus)
    if crossed_nodes(numa):
        return CoreMap(why_not=CROSSED)
    if not online or not numa.cpu_packages:
        return CoreMap(why_not="the sockets of the CPUs are not known")
    if not known(numa.cores) or numa.cores < 1 or len(online) % numa.cores:
        return CoreMap(why_not="the number of cores is not known, or some threads are offline")
    threads = len(online) // numa.cores
    packages = sorted((cpus_of(c) for c in numa.cpu_packages.values()), key=lambda c: min(c, default=0))
    nodes = [cpus_of(n.cpulist) for n in numa.nodes] if known(numa.nodes) else []
    ranges: list[CoreRange] = []
    first = 0
    for socket, package in enumerate(packages):
        inside = sorted((n for n in nodes if n and n <= package), key=min) or [package]
        if frozenset().union(*inside) != package:
            inside = [package]
        socket_first = 0
        for cpus in inside:
            if len(cpus) % threads:
                return CoreMap(why_not="some threads of a core are offline")
            count = len(cpus) // threads
            ranges.append(CoreRange(socket=socket, first=first, socket_first=socket_first, count=count, cpus=cpus))
            first += count
            socket_first += count
    return CoreMap(ranges=tuple(ranges), threads=threads)


def cores_of(cpus: frozenset[int], cores: CoreMap) -> str | None:
    """Return the scheduler's core numbers of CPUs, such as `0-47`; None where they are no whole NUMA nodes."""
    chosen = [r for r in cores.ranges if r.cpus <= cpus]
    if not chosen or frozenset().union(*(r.cpus for r in chosen)) != cpus:
        return None
    return format_cpulist(c for r in chosen for c in range(r.first, r.first + r.count))


def near_cpus(gpu: Gpu, numa: NumaFacts) -> frozenset[int]:
    """Return the CPUs near a GPU: the driver's answer, else those of its NUMA node; the empty set where unknown.

    Where NUMA nodes and sockets overlap no list can be trusted, so none is given.

    The node of the GPU's CPUs is meant, never the node of the GPU's own memory, which has no CPUs.
    """
    if crossed_nodes(numa):
        return frozenset()
    told = cpus_of(gpu.cpu_affinity)
    if told:
        return told
    nodes = numa.nodes if known(numa.nodes) else ()
    return next((cpus_of(n.cpulist) for n in nodes if n.node == gpu.cpu_node), frozenset())


def share(cpus: frozenset[int], threads: int, parts: int) -> tuple[frozenset[int], ...] | None:
    """Split the CPUs of a NUMA node into `parts` with whole cores; None where these cannot be distinguished.

    Two threads a core are distinguished where the list has two runs of equal length (`0-47,96-143`: CPU 96 is the
    second thread of CPU 0's core, as Linux numbers x86).
    """
    ordered = sorted(cpus)
    if parts < 1 or len(ordered) < parts * threads:
        return None
    per_thread = len(ordered) // threads
    rows = [ordered[i * per_thread : (i + 1) * per_thread] for i in range(threads)]
    if threads > 1 and any(
        r[-1] - r[0] != len(r) - 1 or (i and r[0] == rows[i - 1][-1] + 1) for i, r in enumerate(rows)
    ):
        return None
    out = []
    for p in range(parts):
        lo, hi = p * per_thread // parts, (p + 1) * per_thread // parts
        out.append(frozenset(c for r in rows for c in r[lo:hi]))
    return tuple(out)
