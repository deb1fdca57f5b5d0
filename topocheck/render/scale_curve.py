"""The curves of a scaling run as a picture: SVG by hand, PNG where matplotlib is installed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from topocheck.render.scale import curves, name_of

if TYPE_CHECKING:
    from topocheck.tests_live.scale_types import ScalePoint, ScaleReport

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 40, 50
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Okabe and Ito's colours, told apart by colour-blind readers too."""


def speed_ups(report: ScaleReport) -> dict[str, list[ScalePoint]]:
    """Return the curves that have a speed-up, by name."""
    found = {name_of(k): [p for p in points if p.speed_up is not None] for k, points in curves(report).items()}
    return {k: v for k, v in found.items() if v}


def svg(report: ScaleReport) -> str:
    """Return speed-up over ranks, both on logarithmic scales, beside the ideal, as one self-contained SVG."""
    shown = speed_ups(report)
    ranks = sorted({p.ranks for points in shown.values() for p in points}) or [1]
    values = [p.speed_up or 1.0 for points in shown.values() for p in points] or [1.0]
    low, high = min(0.5, *values), float(max(ranks[-1], *values, 2))

    def x(n: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(n) / max(1.0, math.log2(max(ranks[-1], 2)))

    def y(v: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log2(max(v, low) / low) / math.log2(high / low)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 20 * len(shown)}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">Speed-up of a training step over one rank</text>',
    ]
    for n in ranks:
        out.append(f'<line x1="{x(n):.1f}" x2="{x(n):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        out.append(f'<text x="{x(n):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{n}</text>')
    tick = 2 ** math.ceil(math.log2(low))
    while tick <= high:
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
        tick *= 2
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">ranks</text>')
    out.append(
        f'<line x1="{x(1):.1f}" y1="{y(1):.1f}" x2="{x(ranks[-1]):.1f}" y2="{y(ranks[-1]):.1f}" stroke="#888" '
        'stroke-dasharray="5 4"/>'
    )
    for i, (name, points) in enumerate(shown.items()):
        colour = COLOURS[i % len(COLOURS)]
        line = " ".join(f"{x(p.ranks):.1f},{y(p.speed_up or 1):.1f}" for p in points)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for p in points:
            # An open circle claims nothing: more ranks than cores.
            fill = "white" if p.oversubscribed else colour
            out.append(
                f'<circle cx="{x(p.ranks):.1f}" cy="{y(p.speed_up or 1):.1f}" r="4" fill="{fill}" stroke="{colour}"/>'
            )
        at = HEIGHT + 20 * i + 4
        out.append(f'<rect x="{LEFT}" y="{at - 9}" width="18" height="4" fill="{colour}"/>')
        open_ = " (open circles: more ranks than cores)" if any(p.oversubscribed for p in points) else ""
        out.append(f'<text x="{LEFT + 26}" y="{at}">{escape(name + open_)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def png(report: ScaleReport) -> bytes:
    """Return the same as a PNG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import io

    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=150)
    axes = figure.subplots()
    top = 1
    for name, points in speed_ups(report).items():
        axes.plot([p.ranks for p in points], [p.speed_up for p in points], marker="o", label=name)
        top = max(top, *(p.ranks for p in points))
    axes.plot([1, top], [1, top], linestyle="--", color="#888888", label="ideal")
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="speed-up of a training step over one rank")
    axes.legend()
    out = io.BytesIO()
    figure.savefig(out, format="png", bbox_inches="tight")
    return out.getvalue()
