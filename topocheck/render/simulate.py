"""Model times on a network of levels: text, JSON, CSV and curves."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from topocheck.model.units import size_text
from topocheck.model.version import SCHEMA_VERSION
from topocheck.render.page import Page, Style
from topocheck.render.quoting import csv_text, json_text, xml_text

if TYPE_CHECKING:
    from topocheck.bandwidth.simulate import Algorithm, Network, Point, Value

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 40, 50
_SHORT = {"ring": "ring", "tree": "tree", "hierarchical": "two-level", "server": "server"}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


def simulate_text(network: Network, points: Sequence[Point], style: Style) -> str:
    """Return the levels, and a row for each number of GPUs."""
    page = Page(style)
    page.line((f"Model times up to {max(p.gpus for p in points)} GPUs", "bold"))
    page.text("What a network of these levels can do: no congestion, no other jobs, no reduction inside switches.")
    page.text(f"from {network.source}", style="dim", hang=2)
    page.heading("Levels")
    page.table(
        ("level", "joins", "alpha us", "GB/s per GPU"),
        [
            (x.name, str(x.members) if x.members else "all", _value(x.alpha_us), _value(x.beta_gb_s))
            for x in network.levels
        ],
        right=frozenset((1, 2, 3)),
    )
    if not network.aligned:
        page.text("not rail-aligned: every step between nodes crosses the last level", style="yellow")
    by = {(p.operation, p.algorithm, p.gpus): p for p in points}
    gpus = sorted({p.gpus for p in points})
    size = next(p.size_bytes for p in points if p.operation == "all_reduce")
    columns: tuple[Algorithm, ...] = ("ring", "tree", "hierarchical", "server")
    page.heading(f"all_reduce of {size_text(size)}, ms; range and bus bandwidth (GB/s) of the fastest")
    rows = []
    for n in gpus:
        own = [by["all_reduce", a, n] for a in columns]
        best = min(own[:3], key=lambda p: p.seconds)
        shown = [_number(1e3 * p.seconds) for p in own]
        rows.append((str(n), *shown, _SHORT[best.algorithm], _range(best), f"{best.busbw_gb_s:.1f}"))
    heads = tuple(_SHORT[c] for c in columns)
    page.table(("GPUs", *heads, "fastest", "range", "busbw"), rows, right=frozenset((0, 1, 2, 3, 4, 6, 7)))
    others = sorted({p.operation for p in points} - {"all_reduce", "step"})
    page.heading(f"Other collectives of {size_text(size)}, ms")
    page.table(
        ("GPUs", *others),
        [(str(n), *(_number(1e3 * by[o, "best", n].seconds) for o in others)) for n in gpus],
        right=frozenset(range(len(others) + 1)),
    )
    steps = [p for p in points if p.operation == "step"]
    if steps:
        alone = min(p.seconds for p in steps)
        page.heading(f"Data-parallel step, gradients of {size_text(steps[0].size_bytes)}")
        page.table(
            ("GPUs", "ms", "range", "efficiency"),
            [(str(p.gpus), _number(1e3 * p.seconds), _range(p), f"{100 * alone / p.seconds:.0f} %") for p in steps],
            right=frozenset((0, 1, 2, 3)),
        )
        page.text("efficiency: time of the fastest shown over time, the batch of each GPU being the same", style="dim")
    return page.render()


def _value(v: Value) -> str:
    return f"{v.mid:g}" if v.low == v.high else f"{v.mid:g} ({v.low:g}-{v.high:g})"


def _range(p: Point) -> str:
    return "" if p.high_s <= 1.02 * p.low_s else f"{_number(1e3 * p.low_s)}-{_number(1e3 * p.high_s)}"


def _number(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 1000 else f"{ms:.3g}"


def simulate_json(network: Network, points: Sequence[Point]) -> str:
    """Return the levels and all points as JSON."""
    return json_text({"schema_version": SCHEMA_VERSION, "network": network, "points": list(points)})


def simulate_csv(network: Network, points: Sequence[Point]) -> str:
    """Return one line a point."""
    head = ("operation", "algorithm", "gpus", "nodes", "size_bytes", "seconds", "low_s", "high_s", "busbw_gb_s")
    return csv_text(head, [[getattr(p, h) for h in head] for p in points])


def simulate_svg(points: Sequence[Point]) -> str:
    """Return the time of an all_reduce over the number of GPUs, a curve for each algorithm, as SVG."""
    shown = {a: [p for p in points if (p.operation, p.algorithm) == ("all_reduce", a)]
             for a in ("ring", "tree", "hierarchical", "server")}  # fmt: skip
    gpus = [p.gpus for p in shown["ring"]]
    times = [p.seconds for own in shown.values() for p in own]
    low, high = math.log10(min(times)), math.log10(max(times))
    first, last = math.log2(gpus[0]), math.log2(max(gpus[-1], gpus[0] * 2))

    def x(n: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(n) - first) / (last - first)

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(seconds) - low) / max(high - low, 1e-9)

    size = size_text(shown["ring"][0].size_bytes)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">Model time of an all_reduce of {html.escape(xml_text(size))}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle">GPUs</text>',
    ]
    for n in gpus:
        out.append(f'<line x1="{x(n):.1f}" x2="{x(n):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>')
        out.append(f'<text x="{x(n):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{n}</text>')
    for power in range(math.floor(low), math.ceil(high) + 1):
        if low <= power <= high:
            label = f"{10 ** (power + 3):g} ms"
            out.append(f'<text x="{LEFT - 6}" y="{y(10**power) + 4:.1f}" text-anchor="end">{label}</text>')
            at = f'y1="{y(10**power):.1f}" y2="{y(10**power):.1f}"'
            out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" {at} stroke="#eee"/>')
    for i, (name, own) in enumerate(shown.items()):
        line = " ".join(f"{x(p.gpus):.1f},{y(p.seconds):.1f}" for p in own)
        out.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[i]}" stroke-width="2"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 8}" y="{TOP + 20 + 18 * i}" fill="{COLOURS[i]}">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
