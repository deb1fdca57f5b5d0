"""A lab as a page: its curves as charts, then what the text holds; and the curves alone as SVG or PNG."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from topocheck.model.lab import CurveSpec, LabLine, LabReport, LabTable, Value
from topocheck.model.units import size_text
from topocheck.picture.chart import Chart, Curve, Plotted, Point, plot
from topocheck.render.html.blocks import BlockPage, sections
from topocheck.render.html.environment import fill
from topocheck.render.lab import cell, paint
from topocheck.render.quoting import name_text
from topocheck.render.words import plural

if TYPE_CHECKING:
    from topocheck.model.lab import Column

_CALCULATED = ("predicted", "predicted_us", "formula", "formula_us", "no_overlap")
"""Columns that are worked out and not measured."""
_SHOWN_IN = {"us": (1.0, "us"), "share": (100.0, "%")}
"""Unit of a column -> factor and unit on the axis."""
WIDTH, HEIGHT = 6.4, 4.0
"""Of one chart in a PNG, inches."""


def charts(report: LabReport) -> list[Plotted]:
    """Return the charts of all tables; those without two points on any curve are left out."""
    return [
        plot(chart, size_text if unit == "B" else lambda v: f"{v:g}")
        for table in report.tables
        for spec in table.spec.curves
        for chart, unit in _charts(table, spec)
    ]


def _charts(table: LabTable, spec: CurveSpec) -> Iterator[tuple[Chart, str]]:
    """Yield each chart with the unit of its x axis."""
    columns = {c.key: (i, c) for i, c in enumerate(table.spec.columns)}

    def value(row: LabLine, key: str) -> Value:
        return row.values[columns[key][0]]

    def words(row: LabLine, keys: tuple[str, ...]) -> str:
        return ", ".join(_named(value(row, k), columns[k][1]) for k in keys if value(row, k) is not None)

    groups: dict[str, list[LabLine]] = {}
    for row in table.rows:
        groups.setdefault(words(row, spec.chart), []).append(row)
    x, y = columns[spec.x][1], columns[spec.y[0]][1]
    factor, unit = _SHOWN_IN.get(y.unit, (1.0, y.unit))
    for where, rows in groups.items():
        found: dict[str, dict[float, Point]] = {}
        for row in rows:
            for key in spec.y:
                at, high = _number(value(row, spec.x)), _number(value(row, key))
                if at <= 0 or high < 0 or (spec.log and high == 0):
                    continue
                title = columns[key][1].title if len(spec.y) > 1 else ""
                name = name_text(", ".join(n for n in (words(row, spec.by), title) if n) or y.title)
                about = f"{cell(at, x)}: {cell(high, columns[key][1])}"
                point = Point(x=at, y=high * factor, about=about, hollow=key in _CALCULATED)
                found.setdefault(name, {}).setdefault(point.x, point)
        if any(len(points) > 1 for points in found.values()):
            yield (
                Chart(
                    title=name_text(f"{table.spec.title}{': ' * bool(where)}{where}"),
                    x_label=x.title,
                    y_label=f"{y.title}{f' ({unit})' if unit and unit != 'ratio' else ''}",
                    curves=tuple(
                        Curve(name=n, points=tuple(p for _, p in sorted(f.items()))) for n, f in found.items()
                    ),
                    y_scale="log" if spec.log else "linear",
                    ideal=spec.ideal,
                    hollow="hollow: calculated, not measured",
                ),
                x.unit,
            )


def _number(value: Value) -> float:
    """Return a number of a cell; -1, which no column holds, for all else."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else -1.0


def _named(value: Value, column: Column) -> str:
    text = cell(value, column)
    return text if isinstance(value, str) and column.key != "gdr" else f"{column.title} {text}"


def lab_html(report: LabReport) -> str:
    """Return a lab as one page that stands alone."""
    page = BlockPage()
    paint(report, page)
    return fill(
        "results.html",
        title=f"Lab {report.lab}",
        about=f"{report.question} {plural(report.record.ranks, 'rank')} on {plural(report.record.servers, 'server')}",
        chips=[],
        findings=[],
        notes=[],
        matrices=[],
        charts=charts(report),
        sections=sections(page.blocks, f"Lab {report.lab}", unfold=True),
    )


def lab_svg(report: LabReport) -> str:
    """Return all charts below each other as one SVG that stands alone."""
    placed, below = [], 0.0
    for chart in charts(report):
        placed.append((below, chart))
        below += chart.height
    return fill("curves.svg", placed=placed, width=max((c.width for _, c in placed), default=1.0), height=below or 1.0)


def lab_png(report: LabReport) -> bytes:
    """Return the same as a PNG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import io

    from matplotlib.figure import Figure

    drawn = charts(report)
    figure = Figure(figsize=(WIDTH, HEIGHT * max(1, len(drawn))), dpi=150, layout="constrained")
    for i, plotted in enumerate(drawn):
        chart = plotted.chart
        axes = figure.add_subplot(len(drawn), 1, i + 1)
        for curve in chart.curves:
            style = "--" if any(p.hollow for p in curve.points) else "-"
            # What stands between two dollars is mathematics to matplotlib.
            name = curve.name.replace("$", "\\$")
            axes.plot([p.x for p in curve.points], [p.y for p in curve.points], style, marker="o", label=name)
        title = chart.title.replace("$", "\\$")
        axes.set(xscale="log", yscale=chart.y_scale, xlabel=chart.x_label, ylabel=chart.y_label, title=title)
        axes.legend(fontsize="small")
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()
