"""Paths over NCCL's graph: the same breadth-first search as NCCL's (src/graph/paths.cc, ncclTopoSetPaths)."""

from __future__ import annotations

import functools

from topocheck.nccl.rules import versions
from topocheck.nccl.topofile.graph_types import Graph, GraphNode, Link

_LINK_PATH = {"LOC": "LOC", "NVL": "NVL", "C2C": "C2C", "PCI": "PIX", "SYS": "SYS", "NET": "LOC"}


class Path:
    """The way from one node to another: its type, its narrowest link, the number of links and they themselves."""

    __slots__ = ("_first", "_halves", "_links", "_rest", "gb_s", "hops", "type")

    def __init__(self, type_: str, gb_s: float, links: tuple[tuple[GraphNode, Link], ...]) -> None:
        self.type, self.gb_s, self.hops = type_, gb_s, len(links)
        self._links: tuple[tuple[GraphNode, Link], ...] | None = links
        self._first: tuple[GraphNode, Link] | None = links[0] if links else None
        self._rest: Path | None = None
        self._halves: tuple[Path, Path] | None = None

    @classmethod
    def joined(cls, type_: str, one: Path, other: Path) -> Path:
        """Return a path that takes one path after another; the links are those of both, not copied."""
        path = cls.__new__(cls)
        path.type, path.hops = type_, one.hops + other.hops
        path.gb_s = one.gb_s if one.gb_s < other.gb_s else other.gb_s
        path._links, path._first, path._rest = None, one._first or other._first, None
        path._halves = one, other
        return path

    @classmethod
    def before(cls, type_: str, gb_s: float, first: tuple[GraphNode, Link], rest: Path) -> Path:
        """Return a path that takes one link before another path; the links are those of both, not copied."""
        path = cls.__new__(cls)
        path.type, path.gb_s, path.hops = type_, gb_s, rest.hops + 1
        path._links, path._first, path._rest, path._halves = None, first, rest, None
        return path

    @property
    def links(self) -> tuple[tuple[GraphNode, Link], ...]:
        """The links in order of travel, each with the node it leaves."""
        if self._links is None:
            found: list[tuple[GraphNode, Link]] = []
            at: Path | None = self
            while at is not None and at._first is not None:
                if at._links is not None:
                    found += at._links
                    break
                if at._halves is not None:
                    found += at._halves[0].links + at._halves[1].links
                    break
                found.append(at._first)
                at = at._rest
            self._links = tuple(found)
        return self._links

    def step(self) -> GraphNode | None:
        """Return the node after the first link; None for an empty path."""
        return None if self._first is None else self._first[1].to

    def narrowest(self) -> tuple[GraphNode, Link] | None:
        """Return the narrowest link with the node it leaves; the first of equals; None for an empty path."""
        return min(self.links, key=lambda x: x[1].gb_s, default=None)

    def through(self, kind: str) -> tuple[GraphNode, ...]:
        """Return the nodes of a kind strictly inside the path."""
        return tuple(link.to for _, link in self.links[:-1] if link.to.kind == kind)


Table = dict[tuple[str, str], dict[int, dict[int, Path]]]
"""Kinds of the start and of the end -> index of the start -> index of the end -> path.

There are as many paths as pairs: rows of whole numbers take half the time of one table by all four.
"""

Steps = dict[GraphNode, list[tuple[GraphNode, str, float, Link]]]
"""Node -> its links that go back too: the far end, kind, bandwidth, and the link back."""

_STARTS = ("GPU", "CPU", "NET", "NVS")
"""Kinds of nodes whose paths somebody asks for."""


def steps_of(graph: Graph) -> Steps:
    """Return where each node leads, with the links back."""
    nodes = [n for kind in graph.nodes.values() for n in kind]
    # Nodes that were fused into others are no longer listed, and links may still lead to them.
    found = dict.fromkeys(nodes)
    found.update(dict.fromkeys(link.to for n in nodes for link in n.links))
    back: dict[tuple[GraphNode, GraphNode, str], Link] = {}
    for node in found:
        for link in node.links:
            back.setdefault((node, link.to, link.kind), link)
    return {
        node: [
            (link.to, link.kind, link.gb_s, reverse)
            for link in node.links
            if (reverse := back.get((link.to, node, link.kind))) is not None
        ]
        for node in found
    }


def set_paths(graph: Graph, table: Table, base: GraphNode, steps: Steps, *, nvb: bool) -> None:
    """Find the paths from all nodes to `base` and put them in the table.

    Each round goes one link farther. Up to 2.30.4 a node takes a path if it has none, or one of the same length with
    less bandwidth; from 2.30.7 on if the path is of a closer type, or of the same with more bandwidth, or shorter.
    Through a GPU only NVLink goes on, once, and only where `nvb` allows it.
    """
    rank = versions.RANK
    better = _closer if versions.has("path_type_first", graph.version) else _wider
    found: dict[GraphNode, Path] = {base: Path("LOC", versions.local_gb_s(graph.version), ())}
    ring = [base]
    while ring:
        following: dict[GraphNode, None] = {}
        for node in ring:
            path = found[node]
            from_kind, type_, hops, path_gb_s = node.kind, path.type, path.hops, path.gb_s
            through_gpu = from_kind == "GPU" and node is not base
            if through_gpu and not (nvb and hops <= 1):
                continue
            for other, link_kind, link_gb_s, back in steps[node]:
                to_kind = other.kind
                if through_gpu and not (link_kind == "NVL" and to_kind == "GPU"):
                    continue
                gb_s = path_gb_s if path_gb_s < link_gb_s else link_gb_s  # `min` takes as long as the rest
                kind = _LINK_PATH[link_kind]
                if from_kind == "PCI" and to_kind == "PCI":
                    kind = "PXB"
                if link_kind == "PCI" and (from_kind == "CPU" or to_kind == "CPU"):
                    kind = "PHB"
                if from_kind == "GPU" and type_ == "NVL" and kind == "NVL" and hops + 1 > 1:
                    kind = "NVB"
                worst = kind if rank[kind] > rank[type_] else type_
                old = found.get(other)
                if gb_s <= 0 or (old is not None and not better(old, worst, gb_s, hops)):
                    continue
                found[other] = Path.before(worst, gb_s, (other, back), path)
                following[other] = None
        ring = list(following)
    rows = {kind: table.setdefault((kind, base.kind), {}) for kind in _STARTS}
    end = base.index
    for node, path in found.items():
        of_kind = rows.get(node.kind)
        if of_kind is not None:
            of_kind.setdefault(node.index, {})[end] = path


def _wider(old: Path, kind: str, gb_s: float, hops: int) -> bool:
    """Tell whether a path of one link more than `hops` replaces an old one: not longer, and wider."""
    return old.hops > hops and old.gb_s < gb_s


def _closer(old: Path, kind: str, gb_s: float, hops: int) -> bool:
    """Tell whether a path of one link more than `hops` replaces an old one: closer, else wider, else shorter."""
    if kind != old.type:
        return versions.RANK[kind] < versions.RANK[old.type]
    return gb_s > old.gb_s or (gb_s == old.gb_s and hops + 1 < old.hops)


def all_paths(graph: Graph, *, nvb: bool = True) -> Table:
    """Return the paths between all GPUs, CPUs, NICs' NETs and the NVSwitch, before any test is made of them."""
    table: Table = {}
    steps = steps_of(graph)
    for kind in ("CPU", "GPU", "NET", "NVS"):
        for node in graph.nodes[kind]:
            set_paths(graph, table, node, steps, nvb=nvb)
    return table


NOWHERE = Path("DIS", 0.0, ())
"""The path between two nodes that nothing joins."""


def find(table: Table, kind1: str, index1: int, kind2: str, index2: int) -> Path:
    """Return a path of the table; NOWHERE where there is none."""
    return table.get((kind1, kind2), _NO_ROWS).get(index1, _NO_ROW).get(index2, NOWHERE)


_NO_ROW: dict[int, Path] = {}
_NO_ROWS: dict[int, dict[int, Path]] = {}


def local_cpu(graph: Graph, table: Table, gpu: int) -> int:
    """Return the CPU with the fewest hops to a GPU (ncclGetLocalCpu); the first where none is joined."""
    best, hops = 0, 0
    for cpu in graph.nodes["CPU"]:
        n = find(table, "GPU", gpu, "CPU", cpu.index).hops
        if n and (hops == 0 or n < hops):
            best, hops = cpu.index, n
    return best


class Locals:
    """The nodes of a kind with most bandwidth from one node, of equals the closest (ncclTopoGetLocal).

    `nodes` are their indices in order; a path that changes is taken in without a look at all others.
    """

    __slots__ = ("_best", "_path_to", "_wanted", "nodes")

    def __init__(self, graph: Graph, table: Table, kind: str, index: int, wanted: str) -> None:
        self._wanted = [n.index for n in graph.nodes[wanted]]
        self._path_to = functools.partial(find, table, kind, index, wanted)
        self.nodes: list[int] = []
        self._best = _NOTHING
        self._look()

    def _look(self) -> None:
        self._best, self.nodes = _NOTHING, []
        for other in self._wanted:
            self._take(other, _worth(self._path_to(other)))

    def _take(self, other: int, worth: tuple[float, int]) -> None:
        if worth > self._best:
            self._best, self.nodes = worth, []
        if worth == self._best:
            self.nodes.append(other)

    def changed(self, other: int, path: Path) -> bool:
        """Take a new path to one node in; tell whether the nodes are others now."""
        worth, inside = _worth(path), other in self.nodes
        if inside == (worth == self._best) and worth <= self._best:
            return False
        before = self.nodes
        if inside and worth < self._best and len(before) > 1:
            self.nodes = [n for n in before if n != other]
        else:
            self._look()
        return self.nodes != before


_NOTHING = (0.0, -versions.rank("DIS"))


def _worth(path: Path) -> tuple[float, int]:
    return path.gb_s, -versions.rank(path.type)


def locals_of(graph: Graph, table: Table, kind: str, index: int, wanted: str) -> list[int]:
    """Return the nodes of a kind with most bandwidth from here, of equals the closest (ncclTopoGetLocal)."""
    return Locals(graph, table, kind, index, wanted).nodes
