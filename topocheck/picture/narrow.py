"""The drawing for a telephone: an outline of 360 pixels, one box below the other. Pure, as that for a screen."""

from __future__ import annotations

from topocheck.picture.canvas import HIGH, SMALL, Canvas, about, fabric_about, label
from topocheck.picture.metrics import fit, lines, width
from topocheck.picture.types import Box, Drawing, Link, Part, Scene, Text


def narrow(scene: Scene) -> Drawing:
    """Return the drawing for a width of 360 pixels."""
    return _Narrow(scene).drawing()


class _Narrow(Canvas):
    """An outline of 360 pixels: links are named above the box they lead to, and what leaves a device below it."""

    WIDTH, STEP, LABEL = 360.0, 16.0, 15.0

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.left = 20.0 if scene.between is not None else 6.0
        tracks = sum(1 for f in scene.fabrics for _ in f.pairs)
        bars = sum(1 for f in scene.fabrics if f.title)
        self.spine = min(10.0 * tracks, 80.0) + 12.0 * bars
        self.right = self.WIDTH - 6 - self.spine
        self.y = 6.0
        self.labels: dict[str, Text] = {}
        """What leaves a device, by its part, until its line is drawn."""

    def drawing(self) -> Drawing:
        taps: list[tuple[float, Link]] = []
        for d in self.scene.domains:
            top = self.y
            place = len(self.boxes)
            rows = lines(d.name, self.right - self.left - 20, SMALL, 2)
            head = [Text(x=self.left + 10, y=top + 19, text=d.title, role="head", size=12.5)]
            head += [
                Text(x=self.left + 10, y=top + 34 + 13 * i, text=row, role="dim", size=SMALL)
                for i, row in enumerate(rows)
            ]
            if d.tap is not None:
                taps.append((top + 15, d.tap))
            self.y += 32 + 13 * len(rows)
            root = (self.left + 16, self.y - 4)
            for p in d.parts:
                self._part(p, 0, root)
            if not d.parts:
                self.texts.append(
                    Text(x=self.left + 10, y=self.y + 10, text="no GPU or NIC here", role="dim", size=SMALL)
                )
                self.y += 20
            self.y += 4
            box = Box(id=d.id, kind="domain", x=self.left, y=top, w=self.right - self.left, h=self.y - top,
                      about=", ".join(x for x in (d.title, d.name) if x), texts=tuple(head))  # fmt: skip
            self.boxes.insert(place, box)
            self.y += 10
        if self.scene.between is not None:
            self.line(self.scene.between, ((9.0, taps[0][0]), (9.0, taps[-1][0])))
            for y, tap in taps:
                self.line(tap, ((9.0, y), (self.left, y)))
        self._fabrics()
        for note in self.scene.notes:
            for row in lines(note, self.WIDTH - 16, 11.5, 5):
                self.y += 16
                self.texts.append(Text(x=8, y=self.y, text=row, role="note", size=11.5))
            self.y += 4
        return self.finished(self.WIDTH, self.y + 6)

    def _part(self, p: Part, level: int, above: tuple[float, float]) -> None:
        x = self.left + 28 + level * self.STEP
        w = self.right - 8 - x
        link = p.link
        texts: tuple[Text, ...] = ()
        if link.kind != "inside":
            self.y += self.LABEL
            texts = (label(link, x + 2, self.y - 4, w),)
        h = HIGH if p.devices else 26.0
        if p.devices:
            self.box(p, x, self.y, w, h)
        else:
            self._flat(p, x, w, h)
        mid = self.y + h / 2
        self.line(link, (above, (above[0], mid), (x, mid)), texts)
        self.y += h
        if p.devices and p.outward is not None:
            self.y += self.LABEL
            ended = not any(p.id in f.members for f in self.scene.fabrics)
            words = label(p.outward, x + w - 2, self.y - 3, w, anchor="end")
            if ended:
                self.line(p.outward, ((x + w, mid), (x + w + 8, mid)), (words,))
            else:
                self.labels[p.id] = words
        self.y += 8
        for c in p.children:
            self._part(c, level + (0 if p.devices else 1), (x + 8, mid + h / 2))

    def _flat(self, p: Part, x: float, w: float, h: float) -> None:
        """Add the box of a bridge in one line."""
        badge = 0.0 if p.finding is None else width(p.finding.value.upper(), 9, True) + 14
        name = " ".join(x for x in (p.place, f"+{p.others} other" if p.others else "", p.name) if x)
        at = x + 9 + width(p.title, 11.5, True) + 8
        texts = (
            Text(x=x + 9, y=self.y + 17, text=p.title, role="name", size=11.5),
            Text(x=at, y=self.y + 17, text=fit(name, x + w - at - 8 - badge, SMALL), role="dim", size=SMALL),
        )
        self.rows[p.id] = (x + w, self.y + h / 2)
        self.boxes.append(
            Box(id=p.id, kind=p.kind, x=x, y=self.y, w=w, h=h, about=about(p), texts=texts, addresses=p.addresses,
                finding=p.finding)
        )  # fmt: skip

    def _fabrics(self) -> None:
        parts = {p.id: p for p in self.scene.parts()}
        x = self.right + 8
        for f in self.scene.fabrics:
            if not f.title:
                continue
            name = f"{f.name} {f.title}" if len(f.name) < 6 else f"{f.title}, {f.name}"
            texts = (Text(x=self.left + 10, y=self.y + 18, text=fit(name.strip(), self.right - self.left, 12.5, True),
                          role="name", size=12.5),)  # fmt: skip
            self.boxes.append(
                Box(id=f.id, kind="fabric", x=self.left, y=self.y, w=self.WIDTH - 6 - self.left, h=28,
                    about=fabric_about(f), texts=texts, addresses=f.addresses)
            )  # fmt: skip
            for m in f.members:
                outward = parts[m].outward
                if outward is not None:
                    begin, mid = self.rows[m]
                    self.line(outward, ((begin, mid), (x, mid), (x, self.y)), (self.labels.pop(m),))
            self.y += 38
            x += 12
        # The links of a GPU to several others are named together.
        self.texts += self.labels.values()
        pairs = [(p.one, p.other, p.link) for f in self.scene.fabrics for p in f.pairs]
        pitch = 10.0 if len(pairs) <= 8 else 80.0 / len(pairs)
        used: dict[str, int] = {}
        for k, (one, other, link) in enumerate(
            sorted(pairs, key=lambda p: abs(self.rows[p[0]][1] - self.rows[p[1]][1]))
        ):
            at = x + k * pitch
            ys = []
            for m in (one, other):
                n = used.get(m, 0)
                used[m] = n + 1
                ys.append(self.rows[m][1] - 12 + min(4 * n, 24))
            begin = self.rows[one][0]
            self.line(link, ((begin, ys[0]), (at, ys[0]), (at, ys[1]), (begin, ys[1])))
