"""Tracks over time, one below the other: where areas, marks and ticks go. A template of `render` makes the SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from topocheck.picture.chart import Tick, nice
from topocheck.picture.metrics import fit

WIDTH = 1100.0
_LEFT, _RIGHT, _TOP, _ROW, _GAP, _BOTTOM = 96.0, 60.0, 30.0, 40.0, 8.0, 24.0
_SMALLEST_MARK = 3.0
_STEPS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 604_800)
_MOST_TICKS = 8


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What happened from one time to another, in words; `minor`: drawn so that it does not hide the rest."""

    from_s: float
    to_s: float
    about: str
    minor: bool = False


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One device: (seconds, lowest, highest value) by time, and what happened to it."""

    label: str
    points: tuple[tuple[float, float, float], ...]
    moments: tuple[Moment, ...] = ()


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A moment as it is drawn."""

    x: float
    width: float
    about: str
    minor: bool


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One device as it is drawn: `path` is the outline of an SVG path from lowest to highest values."""

    label: str
    about: str
    top: float
    bottom: float
    path: str
    boxes: tuple[Box, ...]


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity of several devices, with coordinates in pixels."""

    title: str
    width: float
    height: float
    left: float
    right: float
    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    most: str


def timeline(title: str, unit: str, lines: Sequence[Line], end_s: float) -> Timeline:
    """Return tracks with their places; all have the same scale, from 0."""
    step = nice(max((high for x in lines for _, _, high in x.points), default=1.0) / 4)
    most = 4 * step
    end = max(end_s, 1e-9)
    right = WIDTH - _RIGHT

    def x(at: float) -> float:
        return round(_LEFT + (right - _LEFT) * min(max(at / end, 0.0), 1.0), 1)

    rows = []
    for n, line in enumerate(lines):
        top = _TOP + n * (_ROW + _GAP)
        rows.append(_row(line, unit, top, most, x))
    return Timeline(
        title=f"{title}, {unit}",
        width=WIDTH,
        height=_TOP + len(lines) * (_ROW + _GAP) + _BOTTOM,
        left=_LEFT,
        right=right,
        rows=tuple(rows),
        ticks=_ticks(end, x),
        most=f"{most:g}",
    )


def _row(line: Line, unit: str, top: float, most: float, x: Callable[[float], float]) -> Row:
    bottom = top + _ROW

    def y(value: float) -> float:
        return round(bottom - _ROW * min(max(value / most, 0.0), 1.0), 1)

    above = [f"{x(at)} {y(high)}" for at, _, high in line.points]
    below = [f"{x(at)} {round(y(low) + 1, 1)}" for at, low, _ in reversed(line.points)]
    values = [v for _, low, high in line.points for v in (low, high)]
    about = f"{line.label}: {min(values):.4g} to {max(values):.4g} {unit}" if values else line.label
    boxes = []
    for m in line.moments:
        start = x(m.from_s)
        boxes.append(Box(x=start, width=max(_SMALLEST_MARK, round(x(m.to_s) - start, 1)), about=m.about, minor=m.minor))
    return Row(
        label=fit(line.label, _LEFT - 12, 12),
        about=about,
        top=top,
        bottom=bottom,
        path="M" + "L".join(above + below) + "Z" if above else "",
        boxes=tuple(boxes),
    )


def _ticks(end: float, x: Callable[[float], float]) -> tuple[Tick, ...]:
    step = next((s for s in _STEPS_S if end / s <= _MOST_TICKS), _STEPS_S[-1])
    count = min(int(end / step), 100)
    return tuple(Tick(at=x(k * step), text=span_text(k * step)) for k in range(count + 1))


def span_text(seconds: float) -> str:
    """Return seconds as `45 s`, `5 min`, `3 h` or `2 d`, to the unit that divides them."""
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"
