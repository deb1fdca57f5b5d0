"""The drawing for a screen, a slide or a ticket: columns from the CPU to the device, NVLink and networks on the right.

Every device has a row of its own, and every box is as high as what hangs on it, so that no link crosses another. Pure:
equal scenes give equal drawings.
"""

from __future__ import annotations

from collections.abc import Sequence

from topocheck.picture.canvas import HIGH, SMALL, Canvas, column, fabric_about, labels
from topocheck.picture.metrics import fit, lines, width
from topocheck.picture.types import Box, Domain, Drawing, Fabric, Link, Part, Scene, Text

_MARGIN, _PAD, _HEAD = 14.0, 12.0, 30.0
_ROW = HIGH + 10
_TRUNK = 26.0
_CPU, _COMPLEX, _SWITCH, _DEVICE = 96.0, 122.0, 112.0, 224.0
_INNER, _GAP, _OUT = 30.0, 112.0, 140.0
_FABRIC, _TRACK = 62.0, 30.0


def wide(scene: Scene) -> Drawing:
    """Return the drawing for a screen."""
    return _Wide(scene).drawing()


class _Wide(Canvas):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.depth = max((_depth(p) for d in scene.domains for p in d.parts), default=0)
        trunk = _TRUNK if scene.between is not None else 0.0
        self.left = _MARGIN + trunk
        self.cpu_x = self.left + _PAD
        self.complex_x = self.cpu_x + _CPU + _INNER
        self.device_x = self.complex_x + (_COMPLEX + self.depth * (_GAP + _SWITCH) if self.depth >= 0 else 0) + _GAP
        self.right = self.device_x + _DEVICE + _PAD
        self.y = _MARGIN
        self.cpu = ""

    def drawing(self) -> Drawing:
        middles: list[tuple[float, Domain]] = []
        for d in self.scene.domains:
            middles.append((self._domain(d), d))
            self.y += 18
        bottom = self.y - 18
        if self.scene.between is not None:
            self._between(middles)
        right = self._fabrics()
        for note in self.scene.notes:
            bottom += 6
            for row in lines(note, right - 2 * _MARGIN, 11.5, 3):
                bottom += 17
                self.texts.append(Text(x=_MARGIN, y=bottom, text=row, role="note", size=11.5))
        return self.finished(right + _MARGIN, bottom + _MARGIN)

    def _domain(self, d: Domain) -> float:
        """Place a domain; return the middle of the box of its CPUs."""
        top = self.y
        self.cpu = d.cpu
        place = len(self.boxes)
        y = top + _HEAD
        start = y
        for p in d.parts:
            y = self._part(p, 0, y)
        if y == start:
            self.texts.append(Text(x=self.complex_x, y=y + 24, text="no GPU or NIC here", role="dim"))
            y += HIGH
        else:
            y -= _ROW - HIGH
        if d.cpu:
            self.boxes.append(
                Box(
                    id=f"{d.id}cpu",
                    kind="cpu",
                    x=self.cpu_x,
                    y=start,
                    w=_CPU,
                    h=y - start,
                    about=f"CPUs of {d.title}",
                    texts=column([(d.cpu, "name", 12.5)], self.cpu_x, start, _CPU, y - start),
                )
            )
        self.y = y + _PAD
        name = fit(d.name, self.right - self.left - 40 - width(d.title, 12, True), SMALL)
        head = (
            Text(x=self.left + _PAD, y=top + 20, text=d.title, role="head", size=12),
            Text(x=self.left + _PAD + width(d.title, 12, True) + 12, y=top + 20, text=name, role="dim", size=SMALL),
        )
        about = ", ".join(x for x in (d.title, d.name) if x)
        box = Box(id=d.id, kind="domain", x=self.left, y=top, w=self.right - self.left, h=self.y - top, about=about,
                  texts=head)  # fmt: skip
        self.boxes.insert(place, box)
        return (start + y) / 2

    def _part(self, p: Part, level: int, y: float) -> float:
        """Place a part and all below it from `y` down; return where the next row begins."""
        if p.devices:
            self.box(p, self.device_x, y, _DEVICE, HIGH)
            mid = y + HIGH / 2
            self._link(p, level, self.device_x, mid)
            self._outward(p, mid)
            y += _ROW
            for c in p.children:
                y = self._part(c, level, y)
            return y
        x = self.complex_x if level == 0 else self.complex_x + _COMPLEX + _GAP + (level - 1) * (_SWITCH + _GAP)
        start = y
        place = len(self.boxes)
        for c in p.children:
            y = self._part(c, level + 1, y)
        h = y - start - (_ROW - HIGH)
        self.box(p, x, start, _COMPLEX if level == 0 else _SWITCH, h)
        self.boxes.insert(place, self.boxes.pop())
        self._link(p, level, x, start + h / 2)
        return y

    def _link(self, p: Part, level: int, x: float, y: float) -> None:
        """Draw the link from a part, whose left edge is `x`, to its parent."""
        if level == 0 and not self.cpu and p.link.kind == "inside":
            return
        if level == 0:
            begin = self.cpu_x + _CPU if self.cpu else self.left
        else:
            begin = self.complex_x + _COMPLEX + (level - 1) * (_SWITCH + _GAP)
        link = p.link
        texts = () if link.kind == "inside" else labels(link, x - 8, y, "end", _GAP - 12)
        self.line(link, ((begin, y), (x, y)), texts)

    def _outward(self, p: Part, y: float) -> None:
        """Draw the link of a NIC to its network, or the stub of NVLinks that lead nowhere."""
        link = p.outward
        if link is None or any(p.id in f.members for f in self.scene.fabrics):
            return
        x = self.device_x + _DEVICE
        end = self.right + _OUT - 16
        self.line(link, ((x, y), (end, y)), labels(link, self.right + 8, y, "start", _OUT - 26))

    def _between(self, middles: Sequence[tuple[float, Domain]]) -> None:
        between = self.scene.between
        assert between is not None
        taps = [(y, d.tap) for y, d in middles if d.tap is not None]
        x = _MARGIN + 8
        top, bottom = min(y for y, _ in taps), max(y for y, _ in taps)
        words = (f"{between.what}: {between.mark}", between.what, "NUMA")
        label = next((t for t in words if width(t, SMALL) <= bottom - top), "")
        text = Text(x=x - 5, y=(top + bottom) / 2, text=label, role="dim", size=SMALL, anchor="middle", turned=True)
        self.line(between, ((x, top), (x, bottom)), (text,))
        for y, tap in taps:
            self.line(tap, ((x, y), (self.cpu_x, y)))

    def _fabrics(self) -> float:
        """Place what joins the GPUs; return where the drawing ends."""
        start = self.right + _OUT
        bars = [f for f in self.scene.fabrics if f.title]
        taken: list[float] = []
        """Of each column of bars, how far down it is in use."""
        columns: dict[str, int] = {}
        for f in sorted(bars, key=lambda f: min(self.rows[m][1] for m in f.members)):
            top = min(self.rows[m][1] for m in f.members)
            column = next((i for i, end in enumerate(taken) if end < top - HIGH), len(taken))
            taken[column : column + 1] = [max(self.rows[m][1] for m in f.members)]
            columns[f.id] = column
        for f in bars:
            self._bar(f, start + columns[f.id] * (_FABRIC + 16))
        right = start + len(taken) * (_FABRIC + 16) - (16 if taken else 0)
        tracks = [p for f in self.scene.fabrics for p in f.pairs]
        right = self._tracks(right, [(p.one, p.other, p.link) for p in tracks])
        outward = any(line.points[-1][0] > self.right for line in self.lines)
        return right if bars or tracks else start - 8 if outward else self.right

    def _bar(self, f: Fabric, x: float) -> None:
        ys = [self.rows[m][1] for m in f.members]
        top, bottom = min(ys) - HIGH / 2, max(ys) + HIGH / 2
        words = [(f"{f.name} {f.title}".strip() if len(f.name) < 6 else f.title, "name", 12.5)]
        if len(f.name) >= 6:
            words.append((f.name, "dim", SMALL))
        mid = (top + bottom) / 2
        texts = [
            Text(x=x + _FABRIC / 2 + (4 if len(words) == 1 else -4 + 16 * i), y=mid, text=fit(w, bottom - top - 8, s),
                 role=r, size=s, anchor="middle", turned=True)
            for i, (w, r, s) in enumerate(words)
        ]  # fmt: skip
        self.boxes.append(
            Box(id=f.id, kind="fabric", x=x, y=top, w=_FABRIC, h=bottom - top, about=fabric_about(f),
                texts=tuple(texts), addresses=f.addresses)
        )  # fmt: skip
        for m in f.members:
            part = next(p for p in self.scene.parts() if p.id == m)
            if part.outward is not None:
                y = self.rows[m][1]
                label = labels(part.outward, self.right + 8, y, "start", _OUT - 16)
                self.line(part.outward, ((self.rows[m][0], y), (x, y)), label)

    def _tracks(self, x: float, pairs: Sequence[tuple[str, str, Link]]) -> float:
        """Draw pairs as brackets on the right of their GPUs, short ones inside; return where the drawing ends."""
        parts = {p.id: p for p in self.scene.parts()}
        ends: list[float] = []
        """Of each track, how far down it is in use."""
        labelled: set[str] = set()
        rows = {k: sum(k in (a, b) for a, b, _ in pairs) for k in parts}
        used: dict[str, int] = {}
        for one, other, link in sorted(pairs, key=lambda p: abs(self.rows[p[0]][1] - self.rows[p[1]][1])):
            ys = []
            for m in sorted((one, other), key=lambda m: self.rows[m][1]):
                # Pairs of one GPU leave its box at different heights.
                n, k = rows[m], used.get(m, 0)
                used[m] = k + 1
                ys.append(self.rows[m][1] + (0 if n == 1 else (k - (n - 1) / 2) * min(7, 30 / n)))
            track = next((i for i, end in enumerate(ends) if end < ys[0]), len(ends))
            ends[track : track + 1] = [ys[1]]
            at = x + 8 + track * _TRACK
            room = ys[1] - ys[0]
            many = rows[one] > 1 or rows[other] > 1
            words = next((t for t in (link.rate, link.rate.split(" ")[0]) if many and width(t, 10) <= room), "")
            text = Text(x=at - 4, y=(ys[0] + ys[1]) / 2, text=words, role="what", size=10,
                        anchor="middle", turned=True)  # fmt: skip
            begin = self.rows[one][0]
            texts = [text] if words else []
            for m in (one, other):
                outward = parts[m].outward
                y = self.rows[m][1]
                if rows[m] == 1:
                    texts += labels(link, self.right + 8, y, "start", _OUT - 16)
                elif m not in labelled and outward is not None:
                    labelled.add(m)
                    self.texts += labels(outward, self.right + 8, y, "start", _OUT - 16, spread=True)
            self.line(link, ((begin, ys[0]), (at, ys[0]), (at, ys[1]), (begin, ys[1])), texts)
        return x + len(ends) * _TRACK if pairs else x


def _depth(p: Part) -> int:
    """Return how many columns of switches a branch needs."""
    if p.devices:
        return max((_depth(c) for c in p.children), default=0)
    return max((_depth(c) + (0 if c.devices else 1) for c in p.children), default=0)
