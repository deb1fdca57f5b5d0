"""Sections of the text report that show each device with its link and its state: devices, PCI tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from itertools import pairwise
from typing import TYPE_CHECKING

from topocheck.model.base import Finding, Missing, State, known
from topocheck.picture.scene import devices as drawn_devices
from topocheck.picture.scene import scene
from topocheck.picture.types import SIGNS, Link, LinkState, Part
from topocheck.render.page import Page, Span
from topocheck.render.words import STATE_MARKS, STATE_STYLES, follows, ranges

if TYPE_CHECKING:
    from topocheck.pipeline import Report
    from topocheck.topology.types import Gpu, NearestNics, Nic

MARK_STYLES = {
    LinkState.REDUCED: "bold yellow",
    LinkState.DOWN: "bold red",
    LinkState.IDLE: "cyan",
    LinkState.UNKNOWN: "magenta",
}
MAX_DEVICES = 40
"""Devices listed where no section was asked for; of more, those with a mark come first."""
Drawn = dict[str, tuple[Part, Link | None]]
"""Device by address, with the first faulty link of the switches above it."""
OK: Span = ("ok", "green")
_ATTENTION = (State.FAIL, State.WARN, State.UNKNOWN)


def mark(link: Link | None) -> Span:
    """Return the state of a link as sign and words (`▼ x8 of x16`) with its style; empty where all is well."""
    if link is None or not link.mark:
        return "", ""
    return f"{SIGNS.get(link.state, '')} {link.mark}".strip(), MARK_STYLES.get(link.state, "dim")


_drawn: tuple[Report, Drawn] | None = None
"""Of the report last asked for: three sections of a page draw its devices."""


def drawn(report: Report) -> Drawn:
    """Return each GPU, accelerator and NIC as it is drawn."""
    global _drawn
    if _drawn is None or _drawn[0] is not report:
        _drawn = report, drawn_devices(report.node, report.topology, report.findings)
    return _drawn[1]


def device_marks(report: Report, parts: Drawn) -> dict[str, Span]:
    """Return address -> what is not as it should be of each GPU, accelerator and NIC; empty text for nothing."""
    worst: dict[str, Finding] = {}
    for f in report.findings:
        for a in f.devices if f.state in _ATTENTION else ():
            if a not in worst or _ATTENTION.index(f.state) < _ATTENTION.index(worst[a].state):
                worst[a] = f
    out = {}
    for address, (part, uplink) in parts.items():
        marks = [mark(part.link)]
        if uplink is not None:
            text, style = mark(uplink)
            marks.append((f"{text} (switch above)", style))
        if part.kind == "nic" or (part.outward is not None and part.outward.state is not LinkState.OK):
            text, style = mark(part.outward)
            named = part.kind == "nic" or not text or "fabric" in text
            marks.append((text if named else f"{text} (NVLink)", style))
        marks = [m for m in marks if m[0]]
        found = worst.get(address)
        if found is not None and not any(style.startswith("bold") for _, style in marks):
            marks.insert(0, (f"{STATE_MARKS[found.state]} {found.area}", STATE_STYLES[found.state]))
        out[address] = (", ".join(t for t, _ in marks), marks[0][1] if marks else "")
    return out


def devices(report: Report, page: Page) -> None:
    """One row for each GPU, accelerator and NIC: address, link, rate, NUMA node, nearest NIC and state."""
    _devices(report, page, None)


def few_devices(report: Report, page: Page, *, folded: bool = False) -> None:
    """As `devices`; of a machine with many devices, those with a mark first, and no more than fit a screen.

    Args:
        report: what was found.
        page: where they are added.
        folded: equal NICs without a mark share a row.
    """
    _devices(report, page, MAX_DEVICES, folded=folded)


def _devices(report: Report, page: Page, most: int | None, *, folded: bool = False) -> None:
    topology = report.topology
    every: list[Gpu | Nic] = [*topology.gpus, *topology.accelerators, *topology.nics]
    every = [d for d in every if d.address != d.label]  # a row of a pasted matrix has no address, and nothing more here
    if not every:
        return
    parts = drawn(report)
    marks = device_marks(report, parts)
    nearest = {n.gpu: n for n in topology.nearest_nics} if topology.nics else {}
    labels = {n.address: n.label for n in topology.nics}
    if most is not None and len(every) > most:
        every.sort(key=lambda d: not marks[d.address][0])
    numa = report.node.numa.nodes
    # Firmware of machines with one NUMA node often reports none for devices: there is no other.
    only_node = str(numa[0].node) if known(numa) and len(numa) == 1 else "?"
    rows: list[Sequence[Span | str]] = []
    for d in every[:most]:
        part, _ = parts[d.address]
        text, style = marks[d.address]
        now, full, rate = _link(part, d.pci is not None)
        near = _nearest(nearest.get(d.address), labels)
        node = str(d.cpu_node) if known(d.cpu_node) else only_node
        rows.append((d.label, d.address, now, full, rate, node, near, (text, style) if text else OK))
    if folded:
        rows = _folded(rows, set(labels.values()))
    page.heading("Devices (link to the host; GB/s per direction, theoretical)")
    head: tuple[str, ...] = ("", "address", "link now", "link max", "GB/s", "NUMA", "nearest NIC", "state")
    if not any(r[6] for r in rows):
        head, rows = (*head[:6], head[7]), [(*r[:6], r[7]) for r in rows]
    if most is not None and all(r[2] == r[3] for r in rows):
        # A screen is narrow: one column where no link is slower than it could be.
        page.table(("", "address", "link", *head[4:]), [(*r[:3], *r[4:]) for r in rows], right=frozenset({3}))
    else:
        page.table(head, rows, right=frozenset({4}), spare=3)  # the state says where a link could be faster
    if any("?" in (c if isinstance(c, str) else c[0]).split() for r in rows for c in r[:-1]):
        page.text("? not known", style="dim")
    if most is not None and len(every) > most:
        page.text(f"and {len(every) - most} more (--section devices lists all)", style="dim")
    for why in dict.fromkeys(n.untold for n in nearest.values() if n.untold):
        page.text(f"nearest NIC not known: {why}", hang=2, style="magenta")
    if topology.flat_tree and topology.nics:
        page.text(
            "The hypervisor shows a flat PCI bus: which NIC is nearest to a GPU is not known from inside this VM.",
            style="cyan",
        )


def _folded(rows: Sequence[Sequence[Span | str]], nics: Set[str]) -> list[Sequence[Span | str]]:
    """Return rows of devices, those of NICs that differ in nothing but name and address as one."""
    groups: dict[tuple[Span | str, ...], list[Sequence[Span | str]]] = {}
    for r in rows:
        same = (*r[2:],) if r[0] in nics and r[-1] == OK else (*r,)
        groups.setdefault(same, []).append(r)
    return [
        r[0] if len(r) == 1 else (f"{len(r)} NICs", _run([str(x[0]) for x in r]), *same) for same, r in groups.items()
    ]


def _nearest(near: NearestNics | None, labels: dict[str, str]) -> str:
    if near is None:
        return ""
    if near.untold:
        return "?"
    names = [labels[a] for a in near.nics if a in labels]
    return f"{_run(names)} {near.class_}" if names else "none"


def _run(names: Sequence[str]) -> str:
    """Return names as `mlx5_0-3` where they follow each other, since a column is narrow; else as `ranges`."""
    if len(names) > 1 and all(follows(a, b) for a, b in pairwise(names)):
        return f"{names[0]}-{names[-1].removeprefix(names[0].rstrip('0123456789'))}"
    return ranges(names)


def _link(part: Part, on_tree: bool) -> tuple[str, str, str]:
    """Return a device's link as it is now, what both its ends support, and its rate."""
    link = part.link
    if link.kind in ("c2c", "nvlink"):
        return link.what.replace("×", "x"), link.what.replace("×", "x"), _rate(link)
    if link.kind != "pcie" or (link.state is LinkState.DOWN and not link.rate):
        return ("-", "-", "-") if on_tree else ("not on PCI", "-", "-")
    if link.state in (LinkState.FORMAL, LinkState.UNKNOWN) and not link.now:
        return "?" if link.state is LinkState.UNKNOWN else "-", "-", _rate(link)
    # Without a blank the table of a faulty node fits 80 columns.
    return (link.now or link.what).replace("gen ", "gen"), (link.most or link.what).replace("gen ", "gen"), _rate(link)


def _rate(link: Link) -> str:
    return "-" if link.gb_s is None else f"{link.gb_s:.1f}"


def tree(report: Report, page: Page) -> None:
    """The PCI tree down to GPUs, accelerators and NICs; bridges that only pass through are folded into a link."""
    page.heading("PCI tree (with GPUs and NICs; bridges that only pass through are not shown)")
    devices_ = report.node.pci.devices
    if isinstance(devices_, Missing):
        page.text(f"not known: {devices_}")
        return
    whole = scene(report.node, report.topology, report.findings)
    if not any(d.parts for d in whole.domains):
        page.text("no GPU and no NIC on the PCI tree")
        return
    for domain in whole.domains:
        if not domain.parts:
            continue
        page.line((f"  {domain.title}", "bold"), (f"  {domain.name}" if domain.name else "", "dim"))
        for spans in _branches(domain.parts, "    "):
            page.line(*_cut(spans, page.style.width))


def _branches(parts: Sequence[Part], indent: str) -> Iterator[list[Span]]:
    """Yield the lines of parts and of all below them; a root complex or port with one child shares its line."""
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        yield from _lines(part, indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  "))


def _lines(part: Part, lead: str, below: str) -> Iterator[list[Span]]:
    before = ""
    while part.kind in ("complex", "port") and len(part.children) == 1:
        before += f"{part.place} > "
        part = part.children[0]
    name = {"complex": "root complex", "switch": "switch", "port": "root port"}.get(part.kind, part.title)
    text, style = mark(part.link)
    about = "  ".join(x for x in (part.place, part.link.what, part.link.rate, part.name) if x)
    if part.kind == "nic" and part.outward is not None:
        about += "".join(f"  {x}" for x in (part.outward.what, part.outward.rate) if x)
        port, port_style = mark(part.outward)
        text, style = ", ".join(x for x in (text, port) if x), style or port_style
    bold = "bold" if part.devices else ""
    yield [(lead, "dim"), (before, "dim"), (name, bold), (f"  {about}", ""), (f"  {text}" if text else "", style)]
    yield from _branches(part.children, below)


def _cut(spans: list[Span], width: int) -> list[Span]:
    """Return spans that fit a line; the mark at the end stays whole."""
    over = sum(len(t) for t, _ in spans) - width
    if over > 0:
        text, style = spans[3]
        spans[3] = (text[: max(len(text) - over - 3, 0)] + "...", style)
        left = width
        for i, (t, s) in enumerate(spans):
            spans[i] = (t[:left], s)
            left -= len(spans[i][0])
    return spans
