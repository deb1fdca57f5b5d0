"""The answer of `topocheck bw` in ten lines: what was reached against what the links and NCCL allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topocheck.model.base import State
from topocheck.model.measurement import near_and_pinned, unsteady
from topocheck.model.units import size_text
from topocheck.render.page import Page
from topocheck.render.words import plural

if TYPE_CHECKING:
    from topocheck.model.measurement import Assessment, BandwidthReport, BaselineComparison, Measurement

_RESULTS = (("p2p", "GPU to GPU"), ("h2d", "host to GPU"), ("d2h", "GPU to host"))


def result(page: Page, report: BandwidthReport, by_id: dict[str, Assessment]) -> None:
    """Add the answer: slowest and fastest copies against theory, peaks of collectives, whether data was right."""
    rows = report.run.measurements
    lines: list[tuple[str, str]] = []
    for kind, name in _RESULTS:
        largest: dict[tuple[str, str, str], Measurement] = {}
        for m in rows:
            if m.kind == kind and m.unit == "GB/s" and near_and_pinned(m) and m.peer_access is not False:
                key = (m.from_, m.to, m.engine)
                largest[key] = max(largest.get(key, m), m, key=lambda x: x.size_bytes)
        found = sorted(largest.values(), key=lambda m: m.median)
        if found:
            worst, best = found[0], found[-1]
            lines.append((name, _range(worst, best, len(found), by_id)))
    for (collective, backend, ranks), found in _collectives(rows).items():
        peak = max(found, key=lambda m: m.busbw_gb_s or 0.0)
        lines.append((collective, _peak(peak, by_id.get(peak.id), backend, ranks)))
    checked = [m for m in rows if m.verified is not None]
    if checked:
        wrong = sum(m.verified is False for m in checked)
        least = size_text(sum(m.size_bytes for m in checked))
        right = f"correct in all {len(checked)} rows, every byte compared ({least} or more)"
        lines.append(("data", right if not wrong else f"WRONG in {wrong} of {plural(len(checked), 'row')}"))
    if not lines and not report.findings:
        return
    page.heading("Result")
    for name, value in lines:
        page.pair(name, value)
    _conclusion(page, report)


def _peak(m: Measurement, a: Assessment | None, backend: str, ranks: int) -> str:
    """Return a collective's best busbw against NCCL's bound, or the rate of the narrowest path where none is known."""
    rate = m.busbw_gb_s or 0.0
    text = f"{rate:.1f}{'*' if unsteady(m) else ''} GB/s busbw"
    if a is not None and a.nccl_bound_gb_s:
        text += f" ({100 * rate / a.nccl_bound_gb_s:.0f} % of NCCL's bound of {a.nccl_bound_gb_s:.1f})"
    elif a is not None and a.theoretical_gb_s and m.collective in ("all_reduce", "all_gather", "reduce_scatter"):
        text += f" ({100 * rate / a.theoretical_gb_s:.0f} % of the narrowest path's {a.theoretical_gb_s:.1f})"
    return f"{text} at {size_text(m.size_bytes)}, {backend}, {plural(ranks, 'rank')}"


def _conclusion(page: Page, report: BandwidthReport) -> None:
    """Add what the findings come to, and how a baseline compares."""
    if report.baseline is not None:
        page.text(_baseline_text(report.baseline), indent=2)
    bad = [f for f in report.findings if f.state is not State.NOTE]
    judged = any(a.state is State.OK for a in report.assessments)
    if not report.run.measurements:
        page.text("Nothing was measured.", style="yellow")
    elif not bad and judged:
        page.text("All results within expectation.", style="green")
    elif not bad and report.baseline is None:
        page.text("No theoretical limit or baseline for these results.")


_ALIKE = 1.02
"""Rates that differ by no more than 2 % are one: engines and repeated runs agree to about that."""


def _range(worst: Measurement, best: Measurement, number: int, by_id: dict[str, Assessment]) -> str:
    """Return the slowest and the fastest of some copies, or one of them where all are alike."""
    if number == 1:
        return _rated(best, by_id)
    if best.median <= worst.median * _ALIKE and _theory(worst, by_id) == _theory(best, by_id):
        what = ("directions" if number == 2 else "pairs") if worst.kind == "p2p" else "GPUs"
        every = f"both {what}" if number == 2 else f"all {number} {what}"
        return f"{_rate(worst, by_id)}, {every} within {100 * (_ALIKE - 1):.0f} %"
    return f"slowest {_rated(worst, by_id)}; fastest {_rated(best, by_id)}"


def _theory(m: Measurement, by_id: dict[str, Assessment]) -> float | None:
    a = by_id.get(m.id)
    return None if a is None else a.theoretical_gb_s


def _rated(m: Measurement, by_id: dict[str, Assessment]) -> str:
    """Return a rate with its share of the theory and its ends."""
    ends = f"{m.from_label or m.from_} to {m.to_label or m.to}" if m.kind == "p2p" else m.to_label or m.from_label
    if m.kind == "d2h":
        ends = m.from_label or m.from_
    return f"{_rate(m, by_id)}, {ends}"


def _rate(m: Measurement, by_id: dict[str, Assessment]) -> str:
    a = by_id.get(m.id)
    share = ""
    if a is not None and a.theoretical_gb_s is not None and a.percent_of_theoretical is not None:
        share = f" ({a.percent_of_theoretical:.0f} % of {a.theoretical_gb_s:.1f})"
    return f"{m.median:.1f}{'*' if unsteady(m) else ''} GB/s{share}"


def _collectives(rows: Sequence[Measurement]) -> dict[tuple[str, str, int], list[Measurement]]:
    out: dict[tuple[str, str, int], list[Measurement]] = {}
    for m in rows:
        if m.kind == "collective":
            out.setdefault((str(m.collective), str(m.backend), m.ranks or 0), []).append(m)
    return out


def _baseline_text(b: BaselineComparison) -> str:
    """Return how many rows were compared and what came of it: also of those that could not be judged."""
    compared = b.within_tolerance + b.slower + b.not_judged
    words = [f"{b.within_tolerance} no more than {100 * b.tolerance:.3g} % slower"]
    words += [f"{b.slower} slower"] if b.slower else []
    words += [f"{b.not_judged} not judged"] if b.not_judged else []
    text = f"Compared with the baseline of {b.taken_at}: {plural(compared, 'row')} compared"
    text += f": {', '.join(words)}." if compared else "."
    if b.new:
        text += f" {plural(b.new, 'row')} of this run not in it."
    if b.absent:
        text += f" {plural(b.absent, 'row')} of it not measured in this run."
    return text
