"""What was measured, for programs: JSON, CSV, Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from topocheck.model.measurement import unsteady
from topocheck.model.units import size_text
from topocheck.model.version import SCHEMA_VERSION, __version__
from topocheck.render.bw_curves import UNSTEADY_TEXT
from topocheck.render.quoting import (
    csv_text,
    json_text,
    markdown_code,
    markdown_item,
    markdown_row,
    markdown_text,
)

if TYPE_CHECKING:
    from topocheck.model.measurement import BandwidthReport


def bw_json(report: BandwidthReport) -> str:
    """Return the report as JSON, with the names of model/measurement.py."""
    run = report.run
    document = {
        "schema_version": SCHEMA_VERSION,
        "topocheck_version": __version__,
        "taken_at": run.taken_at,
        "machine": run.machine,
        "software": run.software,
        "method": run.method,
        "planned": run.planned,
        "planned_s": run.planned_s,
        "wall_s": run.wall_s,
        "interrupted": run.interrupted,
        "device_states": run.device_states,
        "measurements": run.measurements,
        "not_measured": run.not_measured,
        "assessments": report.assessments,
        "baseline": report.baseline,
        "fits": report.fits,
        "advice": report.advice,
        "findings": report.findings,
    }
    return json_text(document)


COLUMNS = (
    "id", "kind", "from", "to", "collective", "backend", "ranks", "direction", "issuer", "engine", "peer_access",
    "dtype", "in_place", "mode", "size_bytes", "iterations", "median", "min", "max", "spread", "unit", "algbw_gb_s",
    "busbw_gb_s", "bandwidth_gb_s", "latency_us", "verified", "disturbed", "expected_gb_s", "percent_of_expected",
    "state",
)  # fmt: skip


def _records(report: BandwidthReport) -> list[dict[str, object]]:
    judged = {a.measurement: a for a in report.assessments}
    out = []
    for m in report.run.measurements:
        record = msgspec.to_builtins(m)
        a = judged.get(m.id)
        record["expected_gb_s"] = a.expected_gb_s if a else None
        record["percent_of_expected"] = a.percent_of_expected if a else None
        record["state"] = a.state.value if a else ""
        out.append(record)
    return out


def bw_csv(report: BandwidthReport) -> str:
    """Return one line per measurement; what does not apply is empty."""
    return csv_text(COLUMNS, ([record.get(c) for c in COLUMNS] for record in _records(report)))


def bw_markdown(report: BandwidthReport) -> str:
    """Return a page of Markdown: the machine, one table of measurements, the findings."""
    run = report.run
    lines = ["# topocheck bw", ""]
    facts = [f"{k}: {v}" for k, v in {**run.machine, **run.software}.items()]
    lines += [markdown_item(x) for x in (*facts, f"taken {run.taken_at}, {run.wall_s:.1f} s")]
    lines += [
        f"- method: {markdown_text(run.method)}",
        "",
        "| what | from | to | size | median | min | max | unit | busbw GB/s | share of the hop | state |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | --- |",
    ]
    judged = {a.measurement: a for a in report.assessments}
    for m in run.measurements:
        a = judged.get(m.id)
        what = m.kind if m.kind != "collective" else f"{m.collective} {m.backend} x{m.ranks} {m.mode}"
        detail = " ".join(x for x in (m.issuer or "", m.engine, "in place" if m.in_place else "") if x)
        share = f"{a.percent_of_theoretical:.0f} %" if a and a.percent_of_theoretical is not None else ""
        busbw = "" if m.busbw_gb_s is None else f"{m.busbw_gb_s:.4g}"
        state = "wrong data" if m.verified is False else (a.state.value if a else "")
        cells = (
            f"{what} {detail}", m.from_label, m.to_label, size_text(m.size_bytes),
            f"{m.median:.5g}{'*' if unsteady(m) else ''}", f"{m.min:.5g}",
            f"{m.max:.5g}", m.unit, busbw, share, state,
        )  # fmt: skip
        lines.append(markdown_row(cells))
    if any(unsteady(m) for m in run.measurements):
        lines += ["", "\\" + UNSTEADY_TEXT]
    if report.advice:
        lines += ["", "## Cost model", "", *(markdown_item(x) for x in report.advice)]
    if report.findings:
        found = [f"- {f.state.value} {markdown_code(f.id)} {markdown_text(f.title)}" for f in report.findings]
        lines += ["", "## Findings", "", *found]
    return "\n".join(lines) + "\n"
