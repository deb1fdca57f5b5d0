"""How training and collectives scale, for a person and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topocheck.model.measurement import HOOK_NAMES
from topocheck.model.units import size_text, time_text
from topocheck.render.bw_curves import bar
from topocheck.render.page import Page, Span, Style
from topocheck.render.quoting import csv_text, json_text, markdown_item, markdown_row
from topocheck.render.words import not_measured_lines, plural

if TYPE_CHECKING:
    from topocheck.tests_live.training.report_types import BucketSweep, ScalePoint, ScaleReport, TrainingRow

_BAR, _SHORTEST_BAR = 30, 8
PATTERNS = {"backend": "the backend's own", "ring": "ring", "parameter_server": "parameter server"}


def _hook(t: TrainingRow) -> str:
    return next((name for hook, name in HOOK_NAMES.items() if hook == t.hook), t.hook)


def _took(us: float | None) -> str:
    """Return a time with its unit, `-` for none."""
    return "-" if us is None else time_text(us)


def rate_text(value: float) -> str:
    """Return a rate with three digits or whole."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def share_text(value: float | None) -> str:
    """Return a share in percent."""
    return "-" if value is None else f"{100 * value:.0f} %"


def curves(report: ScaleReport) -> dict[tuple[str, str, str], list[ScalePoint]]:
    """Return (curve, backend, device) -> its points in the order of their ranks."""
    out: dict[tuple[str, str, str], list[ScalePoint]] = {}
    for p in sorted(report.points, key=lambda p: p.ranks):
        out.setdefault((p.curve, p.backend, p.device), []).append(p)
    return out


def name_of(key: tuple[str, str, str]) -> str:
    """Return a curve's name: `training step, gloo (host memory)`."""
    curve, backend, device = key
    shown = "mpi (mpi4py)" if backend == "mpi" else backend
    return f"{curve}, {shown}, {'host memory' if device == 'host' else 'GPU'}"


def scale_text(report: ScaleReport, style: Style) -> str:
    """Return the report of `topocheck scale` as text."""
    page = Page(style)
    paint(report, page)
    return page.render()


def paint(report: ScaleReport, page: Page) -> None:
    """Add how training and collectives scale to a page."""
    g = report.job
    page.heading("Scaling")
    where = f"{plural(g.ranks, 'rank')} on {plural(g.nodes, 'node')}, {plural(g.cores, 'core')} a node"
    page.text(f"{where}, {g.launcher or 'started here'}; {report.wall_s:.0f} s", style="dim")
    facts = {k: v for k, v in {**report.machine, **report.software}.items() if k != "nccl_settings"}
    page.text(", ".join(f"{k} {v}" for k, v in facts.items()), style="dim")
    for key, points in curves(report).items():
        _curve(page, key, points)
    _training(page, report)
    _buckets(page, report)
    _patterns(page, report)
    told = {t.reason for t in report.training}
    if elsewhere := [line for line in report.not_applicable if line not in told]:
        page.heading("Not applicable here")
        for line in elsewhere:
            page.text(line, hang=2)
    if report.not_measured:
        page.heading("Not measured")
        for line in not_measured_lines(report.not_measured):
            page.text(line, hang=2, style="magenta")
    page.blank()
    page.text(report.method, style="dim")


def _curve(page: Page, key: tuple[str, str, str], points: list[ScalePoint]) -> None:
    page.heading(name_of(key))
    page.text(_amount(points), style="dim")
    step = key[0] == "training step"
    most = max(p.rate for p in points)
    head = ("ranks", "nodes", "time", points[0].unit, *(("speed-up",) if step else ()), "efficiency", "")
    rows = [
        (
            str(p.ranks),
            "-" if p.nodes is None else str(p.nodes),
            _took(p.time_us),
            rate_text(p.rate),
            *((("-" if p.speed_up is None else f"{p.speed_up:.2f}"),) if step else ()),
            "oversubscribed" if p.oversubscribed else share_text(p.efficiency),
        )
        for p in points
    ]
    taken = 2 + sum(max(map(len, column)) + 2 for column in zip(head[:-1], *rows, strict=True))
    longest = min(_BAR, max(_SHORTEST_BAR, page.style.width - taken))
    bars: list[Span] = [(bar(p.rate / most, longest) or "▏", "cyan") for p in points]
    page.table(head, [(*r, b) for r, b in zip(rows, bars, strict=True)], right=frozenset(range(len(head) - 2)))
    if any(p.oversubscribed for p in points):
        page.text("more ranks than cores: they wait for each other's core, so no efficiency is claimed", style="dim")
    if not step:
        page.text("efficiency: busbw over that of the fewest ranks", style="dim")


def _amount(points: list[ScalePoint]) -> str:
    """Return what each rank of a curve was given: `25 MiB`, `25 MiB of gradients, 32 samples a rank`."""
    sizes = " or ".join(dict.fromkeys(size_text(p.size_bytes) for p in points))
    batch = points[0].batch
    return sizes if batch is None else f"{sizes} of gradients, {plural(batch, 'sample')} a rank"


def _training(page: Page, report: ScaleReport) -> None:
    if not report.training:
        return
    page.heading("Serial, parallel and compressed training")
    for t in {(t.device, t.gradient_bytes, t.batch): t for t in report.training}.values():
        page.text(f"{t.device}: {_given(t)}", style="dim")
    rows = []
    for t in report.training:
        name = "mpi (mpi4py)" if t.backend == "mpi" else t.backend
        how = "serial" if t.ranks == 1 else _hook(t)
        error = "-" if t.gradient_error is None else f"{t.gradient_error:.1e}"
        ratio = "-" if t.step_ratio is None else f"{t.step_ratio:.2f}"
        accuracy = "-" if t.accuracy is None else f"{100 * t.accuracy:.1f} %"
        shown = "n/a" if t.step_us is None and t.reason else _took(t.step_us)
        rows.append((name, t.device, str(t.ranks), how, shown, ratio, error, accuracy))
    page.table(
        ("backend", "memory", "ranks", "gradients", "step", "x full", "error", "digits"),
        rows,
        right=frozenset((2, 4, 5, 6, 7)),
    )
    for line in dict.fromkeys(_why(t, report) for t in report.training if t.reason):
        page.text(line, hang=2)


def _given(row: TrainingRow | BucketSweep) -> str:
    return f"{size_text(row.gradient_bytes)} of gradients, {plural(row.batch, 'sample')} a rank"


def _why(t: TrainingRow, report: ScaleReport) -> str:
    """Return why a row of the training table is not whole: of what, and the reason."""
    of = "" if t.reason in report.not_applicable else f"{t.backend}, {t.device}, {_hook(t)}: "
    return f"{of}{t.reason}"


def _buckets(page: Page, report: ScaleReport) -> None:
    for s in report.sweeps:
        page.heading(f"Bucket size (bucket_cap_mb), {s.backend}, {s.device}, {plural(s.ranks, 'rank')}")
        page.text(_given(s), style="dim")
        mine = [b for b in report.buckets if (b.backend, b.device, b.ranks) == (s.backend, s.device, s.ranks)]
        fastest = min(b.step_us for b in mine)
        page.table(
            ("MiB", "step", "predicted", "above the fastest"),
            [
                (
                    f"{b.bucket_mib:g}",
                    _took(b.step_us),
                    _took(b.predicted_us),
                    f"+{100 * (b.step_us / fastest - 1):.0f} %",
                )
                for b in mine
            ],
            right=frozenset((0, 1, 2, 3)),
        )
        page.text(s.text, hang=2)


def _patterns(page: Page, report: ScaleReport) -> None:
    if not report.patterns:
        return
    page.heading("One exchange of all gradients")
    page.table(
        ("backend", "memory", "ranks", "size", "pattern", "time", "predicted", ""),
        [
            (p.backend, p.device, str(p.ranks), size_text(p.size_bytes), PATTERNS.get(p.pattern, p.pattern),
             _took(p.time_us), _took(p.predicted_us), "" if p.verified else "WRONG DATA")
            for p in report.patterns
        ],
        right=frozenset((2, 3, 5, 6)),
    )  # fmt: skip
    for why in dict.fromkeys(p.reason for p in report.patterns if p.reason):
        page.text(f"no prediction: {why}", hang=2)


def scale_json(report: ScaleReport) -> str:
    """Return the report as JSON."""
    return json_text(report)


def scale_csv(report: ScaleReport) -> str:
    """Return one line a point of the curves."""
    names = ("curve", "backend", "device", "ranks", "nodes", "time_us", "rate", "unit", "speed_up", "efficiency",
             "oversubscribed", "size_bytes", "batch")  # fmt: skip
    return csv_text(names, ([getattr(p, n) for n in names] for p in report.points))


def scale_markdown(report: ScaleReport) -> str:
    """Return curves and the training table in Markdown."""
    lines = ["| what | size | ranks | time | rate | speed-up | efficiency |", "| --- " * 7 + "|"]
    for key, points in curves(report).items():
        for p in points:
            speed = "-" if p.speed_up is None else f"{p.speed_up:.2f}"
            claim = "oversubscribed" if p.oversubscribed else share_text(p.efficiency)
            rate = f"{rate_text(p.rate)} {p.unit}"
            cells = (name_of(key), _amount([p]), str(p.ranks), _took(p.time_us), rate, speed, claim)
            lines.append(markdown_row(cells))
    lines += ["", "| backend | ranks | size | gradients | step | gradient error | digits right |"]
    lines += ["| --- " * 7 + "|"]
    for t in report.training:
        error = "-" if t.gradient_error is None else f"{t.gradient_error:.1e}"
        right = "-" if t.accuracy is None else f"{100 * t.accuracy:.1f} %"
        how = "serial" if t.ranks == 1 else _hook(t)
        took = f"n/a: {_why(t, report)}" if t.step_us is None and t.reason else _took(t.step_us)
        lines.append(markdown_row((f"{t.backend} {t.device}", str(t.ranks), _given(t), how, took, error, right)))
    sizes = [f"bucket size, {s.backend} {s.device}, {_given(s)}: {s.text}" for s in report.sweeps]
    lines += ["", *(markdown_item(x) for x in sizes)]
    return "\n".join(lines) + "\n"
