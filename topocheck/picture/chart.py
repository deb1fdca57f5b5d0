"""A chart of curves: where axes, ticks, lines and points go. Pure; a template of `render` makes SVG of it.

The two charts there are (rates over sizes, speed-ups over ranks) are drawn here and not by a plotting library: their
text stays text, their colours are those of the page, by day and by night, and nothing has to be installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from topocheck.picture.metrics import fit, width

Scale = Literal["linear", "log"]
WIDTH, HEIGHT = 560.0, 320.0
_LEFT, _RIGHT, _TOP, _BOTTOM, _ROW = 64.0, 18.0, 34.0, 46.0, 19.0
_MOST_TICKS = 8
MOST_CURVES = 6
"""Curves that are distinguished by colour, dashes and the shape of their points."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A value: `about` says it in words; `hollow` where it claims nothing (unsteady, more ranks than cores)."""

    x: float
    y: float
    about: str
    hollow: bool = False


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Points under one name, in the order of x."""

    name: str
    points: tuple[Point, ...]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn. Values on a logarithmic axis are above 0; `ideal` adds the line y = x; `hollow` explains."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    y_scale: Scale = "linear"
    ideal: bool = False
    hollow: str = ""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the grid: its place, and its text."""

    at: float
    text: str


class Plotted(msgspec.Struct, frozen=True, kw_only=True):
    """A chart with coordinates in pixels. Points of a curve are (x, y, what they are)."""

    chart: Chart
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    curves: tuple[tuple[str, tuple[tuple[float, float, Point], ...]], ...]
    ideal: tuple[tuple[float, float], ...] = ()
    legend: tuple[tuple[float, str], ...] = ()
    notes: tuple[tuple[float, str], ...] = ()


def plot(chart: Chart, x_text: Callable[[float], str]) -> Plotted:
    """Return a chart with its places.

    Args:
        chart: what is drawn; of more than MOST_CURVES curves the first.
        x_text: how a value of x is written.
    """
    shown = chart.curves[:MOST_CURVES]
    points = [p for c in shown for p in c.points]
    xs = sorted({p.x for p in points}) or [1.0]
    low_x, high_x = math.log2(xs[0]), math.log2(xs[-1])
    high_x = max(high_x, low_x + 1)
    values = [p.y for p in points]
    bottom = HEIGHT - _BOTTOM
    if chart.y_scale == "log":
        low_y = math.floor(math.log2(min([1.0, *values]) if chart.ideal else min(values, default=1.0)))
        high_y = math.ceil(math.log2(max([*values, *(xs if chart.ideal else ()), 2.0])))
        high_y = max(high_y, low_y + 1)
        y_ticks = [(float(k), f"{2.0**k:g}") for k in range(low_y, high_y + 1, max(1, (high_y - low_y) // _MOST_TICKS))]
    else:
        step = nice(max(values, default=1.0) / 5)
        low_y, high_y = 0, max(1, math.ceil(max(values, default=1.0) / step))
        y_ticks = [(float(k), f"{k * step:g}") for k in range(high_y + 1)]

    def x(value: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (math.log2(value) - low_x) / (high_x - low_x), 1)

    def unit(k: float) -> float:
        return round(bottom - (bottom - _TOP) * (k - low_y) / (high_y - low_y), 1)

    def y(value: float) -> float:
        return unit(math.log2(value) if chart.y_scale == "log" else value / step)

    curves = tuple((c.name, tuple((x(p.x), y(p.y), p) for p in c.points)) for c in shown)
    names = [fit(c.name, WIDTH - _LEFT - _RIGHT - 40, 12) for c in shown]
    notes = [chart.hollow] if chart.hollow and any(p.hollow for p in points) else []
    notes += [f"and {len(chart.curves) - len(shown)} more in the tables"] if len(chart.curves) > len(shown) else []
    return Plotted(
        chart=chart,
        width=WIDTH,
        height=HEIGHT + _ROW * (len(names) + len(notes)) + 8,
        left=_LEFT,
        right=WIDTH - _RIGHT,
        top=_TOP,
        bottom=bottom,
        x_ticks=_x_ticks(xs, x, x_text),
        y_ticks=tuple(Tick(at=unit(k), text=text) for k, text in y_ticks),
        curves=curves,
        ideal=((x(xs[0]), y(xs[0])), (x(xs[-1]), y(xs[-1]))) if chart.ideal else (),
        legend=tuple((HEIGHT + _ROW * i + 10, name) for i, name in enumerate(names)),
        notes=tuple(
            (HEIGHT + _ROW * (len(names) + i) + 10, fit(n, WIDTH - 2 * _LEFT, 12)) for i, n in enumerate(notes)
        ),
    )


def nice(step: float) -> float:
    """Return the smallest of 1, 2, 2.5 and 5 times a power of ten that is no less than `step`."""
    if step <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next(n * power for n in (1, 2, 2.5, 5, 10) if n * power >= step * 0.999)


def _x_ticks(xs: Sequence[float], x: Callable[[float], float], text: Callable[[float], str]) -> tuple[Tick, ...]:
    """Return a tick for each value, without those whose text would meet that of the tick before."""
    out: list[Tick] = []
    for value in xs:
        words = text(value)
        at = x(value)
        if not out or at - out[-1].at >= (width(words, 12) + width(out[-1].text, 12)) / 2 + 8:
            out.append(Tick(at=at, text=words))
    if out and xs and out[-1].at < x(xs[-1]):
        # The end of the axis is named, if need be in place of the tick before it.
        end = Tick(at=x(xs[-1]), text=text(xs[-1]))
        while out and end.at - out[-1].at < (width(end.text, 12) + width(out[-1].text, 12)) / 2 + 8:
            out.pop()
        out.append(end)
    return tuple(out)
