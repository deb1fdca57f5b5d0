"""Paths over NCCL's graph: the same breadth-first search as NCCL's (src/graph/paths.cc, ncclTopoSetPaths)."""

from __future__ import annotations

from topocheck.nccl import versions
from topocheck.nccl.graph_types import Graph, GraphNode, Link

_LINK_PATH = {"LOC": "LOC", "NVL": "NVL", "C2C": "C2C", "PCI": "PIX", "SYS": "SYS", "NET": "LOC"}


class Path:
    """The way from one node to another: its type, its narrowest link, and the links in order of travel."""

    __slots__ = ("gb_s", "links", "type")

    def __init__(self, type_: str, gb_s: float, links: tuple[tuple[GraphNode, Link], ...]) -> None:
        self.type, self.gb_s, self.links = type_, gb_s, links

    @property
    def hops(self) -> int:
        """Number of links."""
        return len(self.links)

    def narrowest(self) -> tuple[GraphNode, Link] | None:
        """Return the narrowest link with the node it leaves; the first of equals; None for an empty path."""
        return min(self.links, key=lambda x: x[1].gb_s, default=None)

    def through(self, kind: str) -> tuple[GraphNode, ...]:
        """Return the nodes of a kind strictly inside the path."""
        return tuple(link.to for _, link in self.links[:-1] if link.to.kind == kind)


Table = dict[tuple[str, int, str, int], Path]
"""(kind, index) of the start and (kind, index) of the end -> path."""


def _reverse(node: GraphNode, back: GraphNode, kind: str) -> Link | None:
    return next((x for x in node.links if x.to is back and x.kind == kind), None)


def set_paths(graph: Graph, table: Table, base: GraphNode, *, nvb: bool) -> None:
    """Find the paths from all nodes to `base` and put them in the table.

    Each round goes one link farther; a node takes a path if it has none, or one of the same length with less
    bandwidth. Through a GPU only NVLink goes on, once, and only where `nvb` allows it.
    """
    found: dict[GraphNode, Path] = {base: Path("LOC", versions.local_gb_s(graph.version), ())}
    ring = [base]
    while ring:
        following: list[GraphNode] = []
        for node in ring:
            path = found[node]
            for link in node.links:
                other = link.to
                gb_s = min(path.gb_s, link.gb_s)
                if node is not base and node.kind == "GPU":
                    relay = nvb and link.kind == "NVL" and other.kind == "GPU" and path.hops <= 1
                    if not relay:
                        continue
                old = found.get(other)
                if old is not None and not (old.hops > path.hops and old.gb_s < gb_s):
                    continue
                back = _reverse(other, node, link.kind)
                if back is None or gb_s <= 0:
                    continue
                kind = _LINK_PATH[link.kind]
                if node.kind == "PCI" and other.kind == "PCI":
                    kind = "PXB"
                if link.kind == "PCI" and "CPU" in (node.kind, other.kind):
                    kind = "PHB"
                if node.kind == "GPU" and path.type == "NVL" and kind == "NVL" and path.hops + 1 > 1:
                    kind = "NVB"
                found[other] = Path(versions.worst((path.type, kind)), gb_s, ((other, back), *path.links))
                if other not in following:
                    following.append(other)
        ring = following
    for node, path in found.items():
        table[(node.kind, node.index, base.kind, base.index)] = path


def all_paths(graph: Graph, *, nvb: bool = True) -> Table:
    """Return the paths between all GPUs, CPUs, NICs' NETs and the NVSwitch, before any test is made of them."""
    table: Table = {}
    for kind in ("CPU", "GPU", "NET", "NVS"):
        for node in graph.nodes[kind]:
            set_paths(graph, table, node, nvb=nvb)
    return table


NOWHERE = Path("DIS", 0.0, ())
"""The path between two nodes that nothing joins."""


def find(table: Table, kind1: str, index1: int, kind2: str, index2: int) -> Path:
    """Return a path of the table; NOWHERE where there is none."""
    return table.get((kind1, index1, kind2, index2), NOWHERE)


def local_cpu(graph: Graph, table: Table, gpu: int) -> int:
    """Return the CPU with the fewest hops to a GPU (ncclGetLocalCpu); the first where none is joined."""
    best, hops = 0, 0
    for cpu in graph.nodes["CPU"]:
        n = find(table, "GPU", gpu, "CPU", cpu.index).hops
        if n and (hops == 0 or n < hops):
            best, hops = cpu.index, n
    return best


def locals_of(graph: Graph, table: Table, kind: str, index: int, wanted: str) -> list[int]:
    """Return the nodes of a kind with most bandwidth from here, of equals the closest (ncclTopoGetLocal)."""
    out: list[int] = []
    best_gb_s, best_type = 0.0, "DIS"
    for node in graph.nodes[wanted]:
        path = find(table, kind, index, wanted, node.index)
        if path.gb_s > best_gb_s or (path.gb_s == best_gb_s and versions.rank(path.type) < versions.rank(best_type)):
            best_gb_s, best_type, out = path.gb_s, path.type, []
        if path.gb_s == best_gb_s and path.type == best_type:
            out.append(node.index)
    return out
