"""A run kept in a file, to be compared with a later one of the same machine."""

from __future__ import annotations

import msgspec

from topocheck.bandwidth.stats import quantile
from topocheck.model.base import Finding, InputError
from topocheck.model.excerpt import json_fault
from topocheck.model.measurement import (
    UNSTABLE,
    Assessment,
    BandwidthReport,
    BaselineComparison,
    Measurement,
    Run,
)

FORMAT = "topocheck-bw-baseline"
VERSION = 1
LIMIT = 64 << 20
NOISE = "the middle halves of the two runs' samples overlap"


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """What a file of `bw --save` holds: the run, and what was made of it on its machine."""

    format: str
    version: int
    run: Run
    assessments: tuple[Assessment, ...] = ()
    findings: tuple[Finding, ...] = ()


class _Document(Run, frozen=True, kw_only=True):
    """What `bw --format json` prints, as far as it is read back; fits and advice are made anew."""

    schema_version: str
    topocheck_version: str
    assessments: tuple[Assessment, ...]
    findings: tuple[Finding, ...]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement beside its baseline.

    Attributes:
        measurement: its id.
        was, now: the medians, in `unit`.
        change: relative change of the rate (below 0: slower).
        verdict: `within_tolerance` (no more is lost than may be), `slower`, or `not_judged`.
        reason: why it is not judged.
    """

    measurement: str
    was: float
    now: float
    unit: str
    change: float
    verdict: str
    reason: str = ""

    def words(self) -> str:
        """Say how much was lost: of a time how often it is as long, of a rate what is left."""
        if self.unit == "us":
            return f"{self.now / self.was:.3g} times as long"
        return f"{100 * self.now / self.was:.3g} % of the baseline's rate"


def encode(report: BandwidthReport) -> bytes:
    """Return a report as the content of a file of `bw --save`."""
    kept = Baseline(
        format=FORMAT, version=VERSION, run=report.run, assessments=report.assessments, findings=report.findings
    )
    return msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n"


def parse(data: bytes, name: str) -> BandwidthReport:
    """Return the run in a file of `bw --save` or `bw --format json`, with what was made of it on its machine.

    Raises:
        InputError: it is neither; names the place.
    """
    try:
        head = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        if "format" not in head and "measurements" in head:
            found = msgspec.json.decode(data, type=_Document)
            run = Run(**{f: getattr(found, f) for f in Run.__struct_fields__})
            return BandwidthReport(run=run, assessments=found.assessments, findings=found.findings)
        kept = msgspec.json.decode(data, type=Baseline)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError) as e:
        what, shown = json_fault(e, data)
        expected = "expected a run of topocheck bw (--save, or --format json)"
        raise InputError(f"{name}: {what}; {expected}", excerpt=shown) from None
    if kept.format != FORMAT or kept.version != VERSION:
        raise InputError(f"{name}: format {kept.format!r:.40} {kept.version}, expected {FORMAT} {VERSION}")
    return BandwidthReport(run=kept.run, assessments=kept.assessments, findings=kept.findings)


def compare(run: Run, baseline: Run, tolerance: float) -> tuple[Change, ...]:
    """Return the changes of the measurements that both runs hold, by id. Faster is positive, whatever the unit.

    Args:
        run: what was measured now.
        baseline: what was measured then.
        tolerance: the part of the rate that may be lost.
    """
    old = {m.id: m for m in baseline.measurements}
    out = []
    for m in run.measurements:
        was = old.get(m.id)
        if was is None or was.unit != m.unit or min(was.median, m.median) <= 0:
            continue
        change = speed(m) / speed(was) - 1
        verdict, why = ("within_tolerance", "") if change >= -tolerance else _judge(m, was, tolerance)
        out.append(
            Change(
                measurement=m.id, was=was.median, now=m.median, unit=m.unit, change=change, verdict=verdict, reason=why
            )
        )
    return tuple(out)


def count(run: Run, baseline: Run, tolerance: float) -> BaselineComparison:
    """Return how many rows came out how."""
    changes = compare(run, baseline, tolerance)
    verdicts = [c.verdict for c in changes]
    return BaselineComparison(
        taken_at=baseline.taken_at,
        tolerance=tolerance,
        within_tolerance=verdicts.count("within_tolerance"),
        slower=verdicts.count("slower"),
        not_judged=verdicts.count("not_judged"),
        new=len(run.measurements) - len(changes),
        absent=len(baseline.measurements) - len(changes),
    )


def _judge(m: Measurement, was: Measurement, tolerance: float) -> tuple[str, str]:
    """Say whether a row whose median lost too much is slower indeed; (verdict, why it is not judged)."""
    if m.disturbed:
        return "not_judged", m.disturbed
    if within_noise(m, was):
        return "not_judged", NOISE
    # Samples that spread far still tell, where even their faster quarter lost more than may be lost.
    best, usual = quantile(_speeds(m), 0.75), quantile(_speeds(was), 0.25)
    if m.spread <= UNSTABLE or best < (1 - tolerance) * usual:
        return "slower", ""
    return "not_judged", f"its samples spread over {100 * m.spread:.0f} % of the median"


def within_noise(a: Measurement, b: Measurement) -> bool:
    """Tell whether the middle halves of two measurements' samples overlap, so that neither is clearly the faster."""
    if len(a.samples) < 4 or len(b.samples) < 4:
        return False
    lower, upper = sorted((a, b), key=lambda m: m.median)
    return quantile(upper.samples, 0.25) <= quantile(lower.samples, 0.75)


def _speeds(m: Measurement) -> list[float]:
    samples = [s for s in m.samples if s > 0] or [m.median]
    return [1 / s for s in samples] if m.unit == "us" else samples


def speed(m: Measurement) -> float:
    """Return a number that grows as the measurement gets better."""
    return 1 / m.median if m.unit == "us" else m.median
