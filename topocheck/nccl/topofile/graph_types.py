"""NCCL's own graph: nodes, links, and what the topology file says of GPUs, NICs and CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from topocheck.knowledge.nccl import Version
from topocheck.nccl.rules.versions import Cpu

_CLASSES = (("0x060400", "PCI"), ("0x080100", "PCI"), ("0x068000", "NVS"), ("0x068001", "CPU"), ("0x03", "GPU"))
"""Kinds by the beginning of the class text; 0x02 is a NIC and all else a PCI switch (kvDictPciClass)."""


class Link:
    """One direction of a link. `kind` is LOC, NVL, C2C, PCI, SYS or NET; bandwidth in GB/s."""

    __slots__ = ("gb_s", "kind", "to")

    def __init__(self, to: GraphNode, kind: str, gb_s: float) -> None:
        self.to, self.kind, self.gb_s = to, kind, gb_s


class GraphNode:
    """One node. `index` counts within its kind; `address` is a PCI address, `numa` the id of a CPU."""

    __slots__ = ("address", "index", "kind", "links", "name", "switch_id", "up")

    def __init__(self, kind: str, index: int, name: str, address: str = "") -> None:
        self.kind, self.index, self.name, self.address = kind, index, name, address
        self.links: list[Link] = []
        self.switch_id: tuple[str, str, str, str] = ("", "", "", "")
        self.up: GraphNode | None = None

    def __repr__(self) -> str:
        return f"{self.kind}/{self.name}"


class GpuInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says of a GPU. `sm` 0 and `assumed` where only its PCI element was there."""

    address: str
    dev: int
    sm: int
    rank: int
    gdr: bool | None
    assumed: bool = False
    mlopart: int | None = None


class NetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says of a NIC port; `address` is that of its PCI element, empty without one."""

    name: str
    dev: int
    gb_s: float
    gdr: bool | None
    port: int = 0
    guid: str = ""
    address: str = ""


MAX_NODES = {"GPU": 256, "PCI": 8192, "NVS": 640, "CPU": 128, "NIC": 640, "NET": 256}
"""Nodes of each kind; NCCL takes 640 of a kind at most (NCCL_TOPO_MAX_NODES, src/include/graph.h in 2.30.7)."""


class GraphError(ValueError):
    """A topology with more than a graph holds; the text says what and how many."""


class Graph:
    """A node's graph. The info lists go with the nodes of their kind by index."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.nodes: dict[str, list[GraphNode]] = {k: [] for k in ("GPU", "PCI", "NVS", "CPU", "NIC", "NET")}
        self.gpus: list[GpuInfo] = []
        self.nets: list[NetInfo] = []
        self.cpus: list[Cpu] = []
        self.numa: list[str] = []
        self.notes: list[str] = []
        self.nics: dict[str, GraphNode] = {}
        self.wanted: frozenset[str] | None = None

    def add(self, kind: str, name: str, address: str = "") -> GraphNode:
        """Make a node of a kind.

        Raises:
            GraphError: there are MAX_NODES of it already.
        """
        if len(self.nodes[kind]) >= MAX_NODES[kind]:
            raise GraphError(f"a topology of more than {MAX_NODES[kind]} nodes of kind {kind}, which no machine has")
        node = GraphNode(kind, len(self.nodes[kind]), name, address)
        self.nodes[kind].append(node)
        return node

    @property
    def cpu(self) -> Cpu:
        """The CPU that NCCL asks for arch, vendor and model: the first."""
        return self.cpus[0] if self.cpus else Cpu()


def connect(a: GraphNode, b: GraphNode, kind: str, gb_s: float) -> None:
    """Add bandwidth to the link from a to b, and keep a's links sorted by bandwidth, widest first."""
    link = next((x for x in a.links if x.to is b and x.kind == kind), None)
    if link is None:
        link = Link(b, kind, 0.0)
        a.links.append(link)
    link.gb_s += gb_s
    a.links.sort(key=_widest_first)


def connect_all(a: GraphNode, others: Iterable[GraphNode], kind: str, gb_s: float) -> None:
    """Add links of one bandwidth from a to nodes that it has no such link to, as `connect` would one by one."""
    a.links += [Link(b, kind, gb_s) for b in others]
    a.links.sort(key=_widest_first)


def _widest_first(link: Link) -> float:
    return -link.gb_s


def integer(text: str | None, default: int = 0) -> int:
    """Return the number at the beginning of a text, in any C base, or the default."""
    m = re.match(r"\s*([+-]?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}))", text or "")
    if not m:
        return default
    return int(m[1], 16) if "x" in m[1].lower() else int(m[1])


def flag(text: str | None) -> bool | None:
    """Return a 0/1 attribute; None where it is not there, so that NCCL would find it out by itself."""
    return None if text is None else integer(text) == 1


def kind_of_class(text: str | None) -> str:
    """Return GPU, NIC, NVS, CPU or PCI for a class text, by its beginning."""
    if (text or "").startswith("0x02"):
        return "NIC"
    return next((kind for start, kind in _CLASSES if (text or "").startswith(start)), "PCI")
