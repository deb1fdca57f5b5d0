"""The pages of measurements, predictions and differences: an answer, heat maps and charts, then what the text holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from msgspec.structs import replace

from topocheck.model.base import Finding, Missing, State
from topocheck.model.measurement import UNSTABLE, unsteady
from topocheck.model.units import size_text
from topocheck.picture.chart import Chart, Curve, Plotted, Point, plot
from topocheck.render import bw, scale
from topocheck.render.bw_curves import collective_sweeps, copy_sweeps
from topocheck.render.differences import field_name, field_value, not_comparable, related, together
from topocheck.render.html.blocks import BlockPage, sections
from topocheck.render.html.cards import cards, job_cards, node_cards
from topocheck.render.html.environment import fill
from topocheck.render.html.matrices import Matrix, rated
from topocheck.render.html.scale_curve import speed_up_chart
from topocheck.render.page import Span
from topocheck.render.prediction import paint_prediction
from topocheck.render.words import STATE_MARKS, plural

if TYPE_CHECKING:
    from topocheck.compare.faults import Fault
    from topocheck.compare.types import Difference, JobProblem, NodeFinding
    from topocheck.model.measurement import BandwidthReport, Measurement
    from topocheck.nccl.predict.types import Prediction
    from topocheck.tests_live.training.report_types import ScaleReport


def bw_html(report: BandwidthReport, *, verbose: bool = False) -> str:
    """Return the report of `topocheck bw` as a page: matrices as heat maps, sweeps as charts."""
    page = BlockPage()
    bw.paint(report, page, verbose=verbose)
    facts = report.run.machine
    rows = report.run.measurements
    made = sections(page.blocks, "Bandwidth", unfold=True)
    matrices: list[Matrix] = []
    for m in bw.pair_matrices(rows):
        rates = {k: x.median for k, x in m.cells.items()}
        matrices += rated(
            m.title, "Rows copy to columns; the darker, the faster.", rates, rows=m.sources, columns=m.targets
        )
    return fill(
        "results.html",
        title="Bandwidth" + (f", {facts['host']}" if "host" in facts else ""),
        about=f"{plural(len(rows), 'row')} in {report.run.wall_s:.0f} s",
        chips=chips(report.findings),
        findings=cards([f for f in report.findings if f.state is not State.NOTE]),
        notes=cards([f for f in report.findings if f.state is State.NOTE]),
        matrices=matrices,
        charts=_sweep_charts(rows),
        answer=[s for s in made if s.title == "Result"],
        sections=[s for s in made if s.title not in ("Result", "Findings", "Notes")],
    )


def chips(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    """Return (state, text) of how many findings there are of each state."""
    counts = Counter(f.state for f in findings)
    order = (State.FAIL, State.UNKNOWN, State.WARN, State.NOTE)
    return [(s.value, f"{counts[s]} {STATE_MARKS[s].lower()}") for s in order if counts[s]]


def _sweep_charts(rows: Sequence[Measurement]) -> list[Plotted]:
    """Return the sweeps over sizes: one chart for copies, one for each collective."""
    charts = []
    copies = copy_sweeps(rows)
    if copies:
        curves = tuple(_curve(name, found, "GB/s") for name, found in copies.items())
        charts.append(Chart(title="Copies by size", x_label="bytes", y_label="GB/s", curves=curves))
    groups: dict[str, list[Curve]] = {}
    for name, found in collective_sweeps(rows).items():
        if len(found) > 1:
            groups.setdefault(name.split(" ")[0], []).append(_curve(name, found, "GB/s busbw"))
    for name, swept in groups.items():
        shared, made = _without_shared_words(swept)
        charts.append(
            Chart(title=shared or f"{name} by size", x_label="bytes", y_label="busbw GB/s", curves=tuple(made))
        )
    hollow = f"hollow: disturbed, or spread over more than {100 * UNSTABLE:.0f} % of the median"
    return [plot(_with(c, hollow), lambda b: size_text(int(b))) for c in charts]


def _without_shared_words(curves: Sequence[Curve]) -> tuple[str, list[Curve]]:
    """Return what the names of curves have in common, and the curves by the rest: a legend has little room."""
    names = [c.name.split(", ") for c in curves]
    common = [w for w in names[0] if all(w in n for n in names)]
    rest = [", ".join(w for w in n if w not in common) for n in names]
    if not all(rest):
        return "", list(curves)
    return ", ".join(common), [Curve(name=r, points=c.points) for r, c in zip(rest, curves, strict=True)]


def _with(chart: Chart, hollow: str) -> Chart:
    return Chart(title=chart.title, x_label=chart.x_label, y_label=chart.y_label, curves=chart.curves, hollow=hollow)


def _curve(name: str, rows: Sequence[Measurement], unit: str) -> Curve:
    points = []
    for m in rows:
        value = m.busbw_gb_s if m.kind == "collective" else m.median
        if value is not None and m.size_bytes > 0:
            about = f"{size_text(m.size_bytes)}: {value:.4g} {unit}"
            points.append(Point(x=m.size_bytes, y=value, about=about, hollow=unsteady(m)))
    return Curve(name=name, points=tuple(points))


def scale_html(report: ScaleReport) -> str:
    """Return the report of `topocheck scale` as a page: speed-ups and rates as charts."""
    page = BlockPage()
    scale.paint(report, page)
    charts = [speed_up_chart(report)] if any(p.speed_up is not None for p in report.points) else []
    job = report.job
    return fill(
        "results.html",
        title=f"Scaling over {plural(job.ranks, 'rank')}",
        about=f"{plural(job.nodes, 'node')}, {report.wall_s:.0f} s",
        chips=[],
        findings=[],
        notes=[],
        matrices=[],
        charts=charts,
        sections=sections(page.blocks, "Scaling", unfold=True),
    )


def prediction_html(p: Prediction, labels: dict[int, str], *, why: bool = False) -> str:
    """Return what NCCL will do as a page: bandwidth and transport of all pairs of ranks as heat maps."""
    page = BlockPage()
    paint_prediction(p, labels, page, why=why)
    made = sections(page.blocks, "Prediction", unfold=True)
    names = {r.rank: f"{r.rank} {labels.get(r.rank, '')}".strip() for r in p.ranks}
    order = [names[r.rank] for r in p.ranks]
    pairs = {(names[x.from_rank], names[x.to_rank]): x for x in p.pairs if {x.from_rank, x.to_rank} <= names.keys()}
    rates = {k: x.gb_s for k, x in pairs.items()}
    transports = {k: "?" if isinstance(x.transport, Missing) else x.transport for k, x in pairs.items()}
    routed = {k: f"{x.routed} {x.gb_s:.0f}" for k, x in pairs.items()}
    shaded = "The darker, the more GB/s NCCL gives to the path."
    best = max(p.bounds, key=lambda b: b.busbw_gb_s, default=None)
    about = (
        ""
        if best is None
        else (
            f"AllReduce: at most {best.busbw_gb_s:.0f} GB/s busbw by NCCL's constants ({best.algorithm}), set by "
            f"{best.limited_by}"
        )
    )
    return fill(
        "results.html",
        title=f"NCCL {p.version}, {plural(len(p.ranks), 'rank')}",
        about=about,
        chips=[("fail", "init would end")] if p.fatal else [],
        findings=[],
        notes=[],
        matrices=[
            *rated("Transport", shaded, rates, rows=order, columns=order, words=transports),
            *rated("Path type and GB/s", shaded, rates, rows=order, columns=order, words=routed),
        ],
        charts=[],
        answer=[replace(s, blocks=tuple(b for b in s.blocks if b.kind != "lines")) for s in made[:1]],
        sections=made[1:],
    )


def _difference_row(f: Fault) -> tuple[Span | str, ...]:
    d = f.difference
    if d.value in ("missing", "extra"):
        values: tuple[Span | str, Span | str] = ("there", "-") if d.value == "missing" else ("-", "there")
        return d.device, "the device" + related(f), *values, (d.source, "dim")
    name, before, now = field_name(d.field) or d.field, field_value(d.field, d.majority), field_value(d.field, d.value)
    return d.device, name + related(f), before, (now, "bold"), (d.source, "dim")


def diff_html(
    differences: Sequence[Difference],
    mine: str,
    reference: str,
    job: Sequence[JobProblem],
    worse: Sequence[NodeFinding] = (),
) -> str:
    """Return the differences between two nodes as a page."""
    page = BlockPage()
    found = together([d for d in differences if d.comparable])
    real = len(found)
    for section, faults in groupby(found, lambda f: f.difference.section):
        page.heading(section.capitalize())
        page.table(("device", "what", "first", "second", "read from"), [_difference_row(f) for f in faults])
    if not differences:
        page.text("hardware, topology, firmware, driver, software and settings are equal")
    not_comparable([d for d in differences if not d.comparable], mine, reference, page)
    return fill(
        "results.html",
        title="Differences between two nodes",
        about=f"first {reference}, second {mine}",
        chips=[("warn", plural(real, "difference"))] if real else [("dim", "no difference")],
        findings=[*node_cards(worse), *job_cards(job)],
        notes=[],
        matrices=[],
        charts=[],
        sections=sections(page.blocks, "Summary", unfold=True),
    )
