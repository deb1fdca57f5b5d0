"""The network between nodes, for a person and for programs: matrices, medians, who is slow."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from topocheck.model.base import State
from topocheck.render.page import Page, Span, Style
from topocheck.render.quoting import (
    csv_text,
    json_text,
    markdown_bold,
    markdown_code,
    markdown_item,
    markdown_row,
    markdown_text,
)
from topocheck.render.words import STATE_MARKS, STATE_STYLES, plural

if TYPE_CHECKING:
    from topocheck.bandwidth.node_pairs import NodePairsReport, PairRate

MATRIX_UP_TO = 16
"""Nodes up to which the matrix is printed; beyond it the medians and the slowest pairs tell more."""


def rate_text(gb_s: float | None) -> str:
    """Return GB/s with three digits, and Mbit/s below 1 GB/s, where networks are sold by the bit."""
    if gb_s is None:
        return "-"
    return f"{gb_s:.3g} GB/s" if gb_s >= 1 else f"{gb_s * 8000:.4g} Mbit/s"


def pairs_text(report: NodePairsReport, style: Style) -> str:
    """Return the report of `topocheck network bw` as text."""
    page = Page(style)
    page.heading(f"Network between {plural(len(report.nodes), 'node')}")
    page.text(
        f"{report.launcher}, {plural(report.rounds, 'round')} in {report.wall_s:.1f} s. {report.method}", style="dim"
    )
    measured = dict.fromkeys((p.transport, p.rail) for p in report.pairs if p.phase != "together")
    for transport, rail in measured:
        _matrix(page, report, transport, rail)
    if report.pairs:
        _medians(page, report)
    if report.rails:
        page.heading("By rail")
        page.table(
            ("NIC", "transport", "median", "slowest", "pair"),
            [
                (r.rail, r.transport, rate_text(r.median_gb_s), rate_text(r.slowest_gb_s), r.slowest_pair)
                for r in report.rails
            ],
        )
    for line in (*report.transport_comparison, *report.notes):
        page.text(line, hang=2)
    _findings(page, report)
    return page.render()


def _matrix(page: Page, report: NodePairsReport, transport: str, rail: str) -> None:
    rates = _rates(report, transport, rail)
    errors = []
    for p in report.pairs:
        if (p.transport, p.rail) != (transport, rail) or p.phase == "together":
            continue
        if p.error and p.phase == "pairs":
            errors.append((p.a, p.b, p.error))
    names = [n.node for n in report.nodes]
    page.heading(f"{transport}{', ' + rail if rail else ''}: from the row's node to the column's")
    if rates and len(names) <= MATRIX_UP_TO:
        small = max(rates.values()) < 1
        page.text("Mbit/s" if small else "GB/s", style="dim")
        page.table(
            ("", *names),
            [(a, *(_cell(None if a == b else rates.get((a, b)), small, a == b) for b in names)) for a in names],
            right=frozenset(range(1, len(names) + 1)),
        )
    elif rates:
        slowest = sorted(rates.items(), key=lambda item: item[1])[:10]
        page.table(("the slowest", ""), [(f"{a} to {b}", rate_text(r)) for (a, b), r in slowest])
    latencies = [
        p.latency_us
        for p in report.pairs
        if (p.transport, p.rail) == (transport, rail) and p.latency_us and p.phase == "pairs"
    ]
    if latencies:
        page.text(f"latency {min(latencies):.1f} to {max(latencies):.1f} us (half a round trip)", style="dim")
    for a, b, error in errors:
        page.text(f"{a} - {b}: {error}", style="magenta", hang=2)


def _rates(report: NodePairsReport, transport: str, rail: str) -> dict[tuple[str, str], float]:
    """Return (sender, receiver) -> GB/s: the median of all measurements, or of those anew where there are any."""
    values: dict[str, dict[tuple[str, str], list[float]]] = {"pairs": {}, "again": {}}
    for p in report.pairs:
        if (p.transport, p.rail) == (transport, rail) and p.phase in values:
            for ends, rate in (((p.a, p.b), p.a_to_b_gb_s), ((p.b, p.a), p.b_to_a_gb_s)):
                if rate is not None:
                    values[p.phase].setdefault(ends, []).append(rate)
    return {ends: median(rates) for ends, rates in (values["pairs"] | values["again"]).items()}


def _cell(rate: float | None, small: bool, same: bool) -> Span:
    if same:
        return ("x", "dim")
    if rate is None:
        return ("?", "magenta")
    return (f"{rate * 8000:.0f}" if small else f"{rate:.2f}", "")


def _median_rows(report: NodePairsReport) -> list[tuple[str, ...]]:
    return [
        (
            m.node,
            rate_text(m.sends_gb_s),
            rate_text(m.receives_gb_s),
            rate_text(m.together_sends_gb_s),
            rate_text(m.together_receives_gb_s),
        )
        for m in report.medians
    ]


def _medians(page: Page, report: NodePairsReport) -> None:
    page.heading("By node: median over its pairs; and the sum when all pairs run at once")
    page.table(("node", "sends", "receives", "all: sends", "all: receives"), _median_rows(report))


def _findings(page: Page, report: NodePairsReport) -> None:
    page.heading("Findings")
    if not report.findings:
        measured = bool(report.pairs)
        page.text("no problem found" if measured else "no pair was measured", style="green" if measured else "magenta")
    for f in report.findings:
        page.line("  ", (STATE_MARKS[f.state], STATE_STYLES.get(f.state, "")), f"  {f.id}  {f.subject}")
        page.text(f.title, indent=4)
        if f.fix and f.state is not State.NOTE:
            page.text(f"fix: {f.fix}", indent=4, style="dim", hang=2)
    for line in resolution_lines(report):
        page.text(line, style="dim", hang=2)


def resolution_lines(report: NodePairsReport) -> list[str]:
    """Say for each transport what is sure to be noticed, since nothing found means no more than that."""
    return [
        f"{r.transport}{', ' + r.rail if r.rail else ''}: rates scatter by {100 * r.scatter:.1f} %; one direction of a "
        f"node below {100 * r.node_limit:.0f} % and a link below {100 * r.link_limit:.0f} % of the "
        f"usual {rate_text(r.usual_gb_s)} are noticed"
        for r in report.resolution
        if r.clear
    ]


def pairs_json(report: NodePairsReport) -> str:
    """Return the report as JSON."""
    return json_text(report)


def pairs_csv(report: NodePairsReport) -> str:
    """Return one line a pair."""
    names = ("phase", "transport", "rail", "a", "b", "a_to_b_gb_s", "b_to_a_gb_s", "latency_us", "spread", "error")
    return csv_text(names, ([getattr(p, n) for n in names] for p in report.pairs))


def pairs_markdown(report: NodePairsReport) -> str:
    """Return pairs, medians and findings as Markdown tables."""
    lines = [f"## Network between {plural(len(report.nodes), 'node')}"]
    for phase, title in (("pairs", "Pair by pair"), ("again", "Slow pairs, once more"), ("together", "All at once")):
        pairs = [p for p in report.pairs if p.phase == phase]
        if pairs:
            lines += [
                "",
                f"### {title}",
                "",
                "| pair | transport | there | back | latency |",
                "| --- | --- | --- | --- | --- |",
            ]
            lines += [_markdown_pair(p) for p in pairs]
    if report.pairs:
        lines += ["", "### By node", "", "| node | sends | receives | all: sends | all: receives |"]
        lines += ["| --- | --- | --- | --- | --- |"]
        lines += map(markdown_row, _median_rows(report))
    for title, texts in (
        (
            "Did not answer",
            [f"- {markdown_bold(who)} {markdown_text(what)}" for who, what in report.unresponsive.items()],
        ),
        ("Notes", [markdown_item(x) for x in (*report.transport_comparison, *report.notes, *resolution_lines(report))]),
        (
            "Findings",
            [
                f"- {markdown_bold(f.state.value)} {markdown_code(f.id)} {markdown_text(f.title)}"
                for f in report.findings
            ],
        ),
    ):
        if texts:
            lines += ["", f"### {title}", "", *texts]
    return "\n".join(lines) + "\n"


def _markdown_pair(p: PairRate) -> str:
    latency = "-" if p.latency_us is None else f"{p.latency_us:.1f} us"
    back = p.error if p.error else rate_text(p.b_to_a_gb_s)
    cells = (f"{p.a} - {p.b}", f"{p.transport} {p.rail}".strip(), rate_text(p.a_to_b_gb_s), back, latency)
    return markdown_row(cells)
