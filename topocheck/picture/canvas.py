"""What both layouts have in common: boxes with their texts, lines with their labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from topocheck.picture.metrics import fit, width
from topocheck.picture.types import SIGNS, Box, Drawing, Fabric, Line, Link, LinkState, Part, Scene, Text

HIGH = 38.0
"""Height of the box of a device."""
SMALL = 10.5
"""Size of the smaller texts."""


class Canvas:
    """What both have in common."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.boxes: list[Box] = []
        self.lines: list[Line] = []
        self.texts: list[Text] = []
        self.rows: dict[str, tuple[float, float]] = {}
        """Part -> right edge and middle of its box."""

    def box(self, part: Part, x: float, y: float, w: float, h: float) -> None:
        """Add the box of a part."""
        centre = part.kind not in ("gpu", "accelerator", "nic")
        badge = 0.0 if part.finding is None else width(part.finding.value.upper(), 9, True) + 14
        others = f"+{part.others} other card{'s' if part.others > 1 else ''}" if part.others else ""
        room = w - 16
        if centre:
            short = f"{part.place} {others}".strip()
            if width(short, SMALL) > room:
                short = f"{part.place} +{part.others}"
            small = [part.name, part.place, others] if h >= 64 else [short]
            texts = column([(part.title, "name", 11.5), *((t, "dim", SMALL) for t in small)], x, y, w, h)
        else:
            title = fit(part.title, room - badge, 12.5, True)
            at = width(title, 12.5, True) + 8
            texts = (
                Text(x=x + 9, y=y + 16, text=title, role="name", size=12.5),
                Text(x=x + 9 + at, y=y + 16, text=fit(part.place, max(0, room - badge - at), SMALL), role="dim",
                     size=SMALL),
                Text(x=x + 9, y=y + 30, text=fit(part.name, room, SMALL), role="dim", size=SMALL),
            )  # fmt: skip
        self.rows[part.id] = (x + w, y + h / 2)
        self.boxes.append(
            Box(
                id=part.id,
                kind=part.kind,
                x=x,
                y=y,
                w=w,
                h=h,
                about=about(part),
                texts=texts,
                addresses=part.addresses,
                devices=part.devices,
                finding=part.finding,
            )
        )

    def line(self, link: Link, points: Sequence[tuple[float, float]], texts: Iterable[Text] = ()) -> None:
        """Add a line."""
        self.lines.append(Line(link=link, points=tuple(points), texts=tuple(texts)))

    def finished(self, w: float, h: float) -> Drawing:
        """Return the drawing."""
        return Drawing(
            width=round(w, 1),
            height=round(h, 1),
            title=self.scene.title,
            boxes=tuple(self.boxes),
            lines=tuple(self.lines),
            texts=tuple(self.texts),
        )


def column(rows: Sequence[tuple[str, str, float]], x: float, y: float, w: float, h: float) -> tuple[Text, ...]:
    """Return lines of text in the middle of a box."""
    shown = [r for r in rows if r[0]]
    top = y + h / 2 - (len(shown) - 1) * 7.5 + 4
    return tuple(
        Text(x=x + w / 2, y=top + 15 * i, text=fit(t, w - 8, size, role == "name"), role=role, size=size,
             anchor="middle")
        for i, (t, role, size) in enumerate(shown)
    )  # fmt: skip


def labels(
    link: Link, x: float, y: float, anchor: Literal["start", "end"], room: float, spread: bool = False
) -> tuple[Text, ...]:
    """Return what a link is above its line, and its rate or its state below; `spread` leaves room for more lines."""
    sign = SIGNS.get(link.state, "")
    above, below = link.what, link.rate
    if link.mark:
        below = f"{sign} {link.mark}".strip()
        if link.rate:
            together = f"{short(link)} · {link.rate}"
            # The rate is never cut off: where there is no room above the line, it goes before the mark.
            above, below = (together, below) if width(together, 10) <= room else (link.what, f"{link.rate} {below}")
    off = 9 if spread else 0
    return tuple(
        Text(x=x, y=at, text=fit(text, room, 10), role=role, size=10, anchor=anchor)
        for text, at, role in ((above, y - 4 - off, "what"), (below, y + 12 + off, "mark" if link.mark else "rate"))
        if text
    )


def short(link: Link) -> str:
    """Return what a link is, without what its mark says."""
    return link.what if link.kind != "pcie" else " ".join(link.what.split()[:2])


def label(link: Link, x: float, y: float, room: float, anchor: Literal["start", "end"] = "start") -> Text:
    """Return a link in one line."""
    sign = SIGNS.get(link.state, "")
    mark = f"{sign} {link.mark}".strip() if link.mark else ""
    what = short(link) if link.mark and link.rate and link.state != LinkState.UNKNOWN else link.what
    words = " · ".join(x for x in (what, link.rate, mark) if x)
    role = "mark" if link.mark else "what"
    return Text(x=x, y=y, text=fit(words, room, 10.5), role=role, size=10.5, anchor=anchor)


def about(p: Part) -> str:
    """Return all of a part in words."""
    out = [" ".join(x for x in (p.title, p.place, p.name) if x)]
    if p.link.words:
        out.append(f"link: {p.link.words}")
    if p.outward is not None:
        out.append(f"{p.outward.kind}: {p.outward.words}")
    if p.others:
        out.append(f"{p.others} other cards below")
    if p.finding is not None:
        out.append(f"finding: {p.finding.value}")
    return "; ".join(out)


def fabric_about(f: Fabric) -> str:
    """Return all of a fabric in words."""
    return f"{f.title} {f.name}, joins {len(f.members)} GPUs"
