"""What a drawing is made of: first what is drawn (a scene), then boxes and lines with coordinates.

Coordinates are CSS pixels from the upper left corner. Rates are 10^9 bytes/s, one direction.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Literal

import msgspec

from topocheck.model.base import State


class LinkState(enum.StrEnum):
    """How a link is drawn. Only what both ends could do and do not is `reduced`: a narrow slot is no fault."""

    OK = "ok"
    REDUCED = "reduced"
    """Works, with fewer lanes, links or GT/s than both its ends have."""
    IDLE = "idle"
    """The device rests and has slowed its link."""
    DOWN = "down"
    """Carries nothing, and that is a fault: a check says so, or the device is gone."""
    UNUSED = "unused"
    """Carries nothing, as an uncabled port does."""
    UNKNOWN = "unknown"
    """Its rate cannot be read, or its far end cannot be seen."""
    FORMAL = "formal"
    """Emulated, or a stand-in for another link: its numbers mean nothing."""


SIGNS = {
    LinkState.REDUCED: "▼",
    LinkState.DOWN: "✕",
    LinkState.UNUSED: "–",
    LinkState.IDLE: "◌",
    LinkState.UNKNOWN: "?",
    LinkState.FORMAL: "~",
}
"""Stands before the mark of a link, so that its state is read without colours."""

LinkKind = Literal["pcie", "nvlink", "c2c", "network", "inside"]
"""`inside` is within a processor and has no rate that could be read."""
PartKind = Literal["complex", "port", "switch", "gpu", "accelerator", "nic"]
BoxKind = Literal["domain", "cpu", "complex", "port", "switch", "gpu", "accelerator", "nic", "fabric"]


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One link that is drawn, or several in a row that only pass through bridges.

    Attributes:
        id: `k7`; lines of a drawing and what highlights them name it.
        what: what it is, such as `gen 5 x16`, `18 x NVLink 4`, `InfiniBand`.
        now: what a PCIe link negotiated; most: what both its ends support; empty where not known or emulated.
        rate: its rate, `63 GB/s`, `400 Gb/s`; empty where it is not known.
        mark: what its state is, in words that stand beside it: `x8 of x16`, `idle at gen 1`, `down`.
        gb_s: the rate it has while it works; None where unknown.
        addresses: the lower ends of the PCIe links that it stands for.
    """

    id: str
    kind: LinkKind
    state: LinkState = LinkState.OK
    what: str = ""
    now: str = ""
    most: str = ""
    rate: str = ""
    mark: str = ""
    gb_s: float | None = None
    addresses: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """All of it in one line, for tooltips and screen readers."""
        return ", ".join(x for x in (self.what, self.rate, self.mark) if x)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A box of the PCI tree and the link above it.

    Attributes:
        id: `p3`.
        title: what people call it: `GPU3`, `mlx5_0`, `PCIe switch`.
        ends: of a stack of devices, what people call the first and the last of them.
        place: its address; how many there are in a stack of devices.
        name: product.
        addresses: PCI functions that the box stands for; several of a stack of equal devices.
        devices: those among them that pairs are made of (GPUs, accelerators, NICs).
        link: to the parent; of the kind `inside` below a CPU.
        outward: the link that leaves a device on its other side: NVLink of a GPU, the ports of a NIC.
        finding: the worst state of the findings about it; None where there is none that needs attention.
        others: endpoints below it that are not drawn.
    """

    id: str
    kind: PartKind
    title: str
    ends: tuple[str, str] | None = None
    place: str = ""
    name: str = ""
    addresses: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    link: Link
    outward: Link | None = None
    finding: State | None = None
    others: int = 0
    children: tuple[Part, ...] = ()

    def leaves(self) -> Iterator[Part]:
        """Yield the devices at and below it, in order. A device with devices below it comes first."""
        if not self.children or self.devices:
            yield self
        for c in self.children:
            yield from c.leaves()

    def walk(self) -> Iterator[Part]:
        """Yield it and all below it."""
        yield self
        for c in self.children:
            yield from c.walk()


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """A NUMA node with what is attached to it.

    Attributes:
        id: `d0`.
        title: `Socket 0, NUMA node 0`.
        name: CPUs and memory.
        cpu: what stands in the box of its CPUs; empty where the devices report no NUMA node.
        tap: the link from its CPUs to the other sockets; None where there is one domain.
    """

    id: str
    title: str
    name: str
    cpu: str
    parts: tuple[Part, ...] = ()
    tap: Link | None = None


class FabricPair(msgspec.Struct, frozen=True, kw_only=True):
    """The NVLinks between two GPUs: ids of their parts, and the link."""

    one: str
    other: str
    link: Link


class Fabric(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs that NVLink joins: through a bar (NVSwitch, or a mesh of equal pairs), or pair by pair.

    Attributes:
        id: `f0`.
        title: of the bar; empty where there is none and `pairs` are drawn.
        members: ids of the parts of its GPUs, whose outward link leads here.
        addresses: PCI functions of the switches.
    """

    id: str
    title: str = ""
    name: str = ""
    members: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    pairs: tuple[FabricPair, ...] = ()


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """All that is drawn, before it has a place.

    Attributes:
        title: what the node is, in a few words.
        between: the links between sockets; None where there is one domain.
        notes: what the drawing leaves out, a sentence each.
    """

    title: str
    domains: tuple[Domain, ...]
    fabrics: tuple[Fabric, ...] = ()
    between: Link | None = None
    notes: tuple[str, ...] = ()

    def parts(self) -> Iterator[Part]:
        """Yield every part."""
        for d in self.domains:
            for p in d.parts:
                yield from p.walk()

    def links(self) -> Iterator[Link]:
        """Yield every link, each once."""
        if self.between is not None:
            yield self.between
        for d in self.domains:
            if d.tap is not None:
                yield d.tap
        for p in self.parts():
            yield from (x for x in (p.link, p.outward) if x is not None)
        for f in self.fabrics:
            yield from (p.link for p in f.pairs)


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A line of text; `x`, `y` are its start, middle or end on the baseline. `role` is its class in the style."""

    x: float
    y: float
    text: str
    role: str
    size: float = 11
    anchor: Literal["start", "middle", "end"] = "start"
    turned: bool = False
    """Runs upwards, around its point."""


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A rectangle with its texts. `id` is that of its part, domain or fabric; `about` says all of it in words."""

    id: str
    kind: BoxKind
    x: float
    y: float
    w: float
    h: float
    about: str
    texts: tuple[Text, ...] = ()
    addresses: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    finding: State | None = None


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A link along its points, with its labels."""

    link: Link
    points: tuple[tuple[float, float], ...]
    texts: tuple[Text, ...] = ()


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """A picture. Boxes come in the order in which they are painted: containers before what they hold."""

    width: float
    height: float
    title: str
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    texts: tuple[Text, ...] = ()
