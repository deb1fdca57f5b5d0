"""A run kept in a file, to be compared with a later one of the same machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from topocheck.model.base import InputError
from topocheck.model.measurement import UNSTABLE, BaselineComparison, Measurement, Run
from topocheck.tests_live.stats import quantile

FORMAT = "topocheck-bw-baseline"
VERSION = 1
LIMIT = 64 << 20
NOISE = "the middle halves of the two runs' samples overlap"


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """What a baseline file holds."""

    format: str
    version: int
    run: Run


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement beside its baseline.

    Attributes:
        measurement: its id.
        was, now: the medians, in `unit`.
        change: relative change of the rate (below 0: slower).
        verdict: `kept` (no more is lost than may be), `slower`, or `not_judged`.
        why: why it is not judged.
    """

    measurement: str
    was: float
    now: float
    unit: str
    change: float
    verdict: str
    why: str = ""

    def words(self) -> str:
        """Say how much was lost: of a time how often it is as long, of a rate what is left."""
        if self.unit == "us":
            return f"{self.now / self.was:.3g} times as long"
        return f"{100 * self.now / self.was:.3g} % of the baseline's rate"


def save(run: Run, path: Path) -> None:
    """Write a run as a baseline.

    Raises:
        InputError: the file cannot be written.
    """
    data = msgspec.json.format(msgspec.json.encode(Baseline(format=FORMAT, version=VERSION, run=run)), indent=1)
    try:
        path.write_bytes(data + b"\n")
    except OSError as e:
        raise InputError(f"{path}: cannot be written: {e.strerror}") from e


def load(path: Path) -> Run:
    """Read a baseline.

    Raises:
        InputError: it cannot be read, or is none.
    """
    try:
        # Looked at before it is opened: opening a FIFO waits for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(f"{path}: not a regular file; expected a file written by topocheck bw --save")
        with path.open("rb") as f:
            data = f.read(LIMIT + 1)
    except OSError as e:
        raise InputError(f"{path}: cannot be read: {e.strerror}") from e
    if len(data) > LIMIT:
        raise InputError(f"{path}: larger than {LIMIT >> 20} MiB, so no baseline of topocheck bw --save")
    return parse(data, str(path))


def parse(data: bytes, name: str) -> Run:
    """Return the run in a baseline's bytes.

    Raises:
        InputError: it is none; names the place.
    """
    try:
        found = msgspec.json.decode(data, type=Baseline)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError) as e:
        raise InputError(f"{name}: no baseline of topocheck bw --save: {str(e)[:200]}") from None
    if found.format != FORMAT or found.version != VERSION:
        raise InputError(f"{name}: format {found.format!r:.40} {found.version}, expected {FORMAT} {VERSION}")
    return found.run


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
        verdict, why = ("kept", "") if change >= -tolerance else _judge(m, was, tolerance)
        out.append(
            Change(measurement=m.id, was=was.median, now=m.median, unit=m.unit, change=change, verdict=verdict, why=why)
        )
    return tuple(out)


def count(run: Run, baseline: Run, tolerance: float) -> BaselineComparison:
    """Return how many rows came out how."""
    changes = compare(run, baseline, tolerance)
    verdicts = [c.verdict for c in changes]
    return BaselineComparison(
        taken_at=baseline.taken_at,
        tolerance=tolerance,
        kept=verdicts.count("kept"),
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
