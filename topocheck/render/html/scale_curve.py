"""The curves of a scaling run as a picture: SVG, and PNG where matplotlib is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topocheck.picture.chart import Chart, Curve, Plotted, Point, plot
from topocheck.render.html.environment import fill
from topocheck.render.quoting import name_text
from topocheck.render.scale import curves, name_of

if TYPE_CHECKING:
    from topocheck.tests_live.training.report_types import ScalePoint, ScaleReport

WIDTH, HEIGHT = 640, 400
"""Of the PNG, in points."""


def speed_ups(report: ScaleReport) -> dict[str, list[ScalePoint]]:
    """Return the curves that have a speed-up, by name."""
    found = {name_of(k): [p for p in points if p.speed_up is not None] for k, points in curves(report).items()}
    return {k: v for k, v in found.items() if v}


def speed_up_chart(report: ScaleReport) -> Plotted:
    """Return speed-up over ranks, both on logarithmic scales, with the ideal."""
    made = tuple(
        Curve(
            name=name_text(name),
            points=tuple(
                Point(
                    x=p.ranks,
                    y=p.speed_up,
                    about=f"{p.ranks} ranks: speed-up {p.speed_up:.2f}",
                    hollow=p.oversubscribed,
                )
                for p in points
                if p.speed_up
            ),
        )
        for name, points in speed_ups(report).items()
    )
    chart = Chart(
        title="Speed-up of a training step over one rank",
        x_label="ranks",
        y_label="speed-up",
        curves=made,
        y_scale="log",
        ideal=True,
        hollow="hollow: more ranks than cores, so nothing is claimed",
    )
    return plot(chart, lambda ranks: f"{ranks:g}")


def svg(report: ScaleReport) -> str:
    """Return that chart as one SVG that stands alone."""
    return fill("curve.svg", plotted=speed_up_chart(report))


def _label(name: str) -> str:
    """Return a name for matplotlib, which takes what stands between two dollars for mathematics."""
    return name_text(name).replace("$", "\\$")


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
        axes.plot([p.ranks for p in points], [p.speed_up for p in points], marker="o", label=_label(name))
        top = max(top, *(p.ranks for p in points))
    axes.plot([1, top], [1, top], linestyle="--", color="#888888", label="ideal")
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="speed-up of a training step over one rank")
    axes.legend()
    out = io.BytesIO()
    figure.savefig(out, format="png", bbox_inches="tight")
    return out.getvalue()
