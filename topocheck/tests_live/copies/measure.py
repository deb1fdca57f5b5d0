"""One row from start to measurement: the same for every engine.

An engine prepares a row and then takes samples when told; when to stop, what a sample amounts to and what is
compared is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Protocol

import msgspec

from topocheck.bandwidth.cases import HOST, CopyRow
from topocheck.bandwidth.stats import median, sample_until_stable, spread
from topocheck.model.measurement import EngineName, Measurement

Progress = Callable[[str], None]
"""Told the call that comes next, so that a hang can be named."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample: seconds of each transfer by the device's clock, of all together, and by the host's clock.

    `wall_s` runs from letting the queued copies go to their end; 0 where it was not taken.
    """

    seconds: tuple[float, ...]
    window_s: float
    wall_s: float = 0.0


class Prepared(Protocol):
    """A row ready to be sampled."""

    allocator: str
    placement: str
    peer_access: bool | None
    notes: list[str]

    def clear(self) -> None:
        """Make every destination wrong, so that only a copy can make it right."""

    def sample(self) -> Sample:
        """Run the row's copies once: warm-ups untimed, then the timed ones."""

    def check(self) -> str:
        """Compare every byte of every destination; return the empty text or what is wrong."""

    def close(self) -> None:
        """Give back what only this row needs."""


class Engine(Protocol):
    """What moves the data."""

    name: EngineName

    def open(self, addresses: tuple[str, ...], progress: Progress) -> dict[str, str]:
        """Get ready for the devices at these addresses; return versions of the software in use."""

    def prepare(self, row: CopyRow, progress: Progress) -> Prepared:
        """Get one row ready."""

    def close(self) -> None:
        """Give everything back."""


class UnsupportedRowError(Exception):
    """The engine, the driver or the device cannot do this row; the text says why. Not a failure of the machine."""


def rate_of(row: CopyRow, sample: Sample) -> float:
    """Return a sample's value: GB/s, or microseconds per copy for a latency.

    One way: that transfer's rate. Both ways: the sum of the two rates, each over its own time, as nvbandwidth's
    bidirectional tests sum them. Aggregate: all bytes over the time from the common start to the last end.
    """
    moved = row.copies * row.size_bytes
    if row.kind in ("latency", "latency_host"):
        return sample.seconds[0] / row.copies * 1e6
    if row.direction == "aggregate":
        return moved * len(sample.seconds) / sample.window_s / 1e9
    return sum(moved / s for s in sample.seconds) / 1e9


def run_row(engine: Engine, row: CopyRow, progress: Progress) -> Measurement:
    """Run one row and return its measurement; the labels are the parent's to fill in.

    Raises:
        UnsupportedRowError: see there.
    """
    begun = monotonic()
    prepared = engine.prepare(row, progress)
    taken: list[Sample] = []
    wrong: list[str] = []

    def take() -> float:
        progress(f"sample {len(taken) + 1}")
        prepared.clear()
        sample = prepared.sample()
        taken.append(sample)
        if row.verify == "each":
            _keep(wrong, prepared.check(), len(taken))
        return rate_of(row, sample)

    try:
        samples, why = sample_until_stable(
            take,
            at_least=row.samples_min,
            at_most=row.samples_max,
            budget_s=row.budget_s,
            tolerance=row.tolerance,
        )
        if row.verify != "each":
            progress("compare the last sample")
            _keep(wrong, prepared.check(), len(taken))
    finally:
        prepared.close()
    notes = list(prepared.notes)
    limit = _host_limit(taken)
    if limit:
        notes.append(limit)
    latency = row.kind in ("latency", "latency_host")
    mid = median(samples)
    first = row.transfers[0]
    shown = len(row.transfers) == 1 or row.direction == "bidirectional"
    return Measurement(
        id=row.id,
        kind=row.kind,
        from_=first.source if shown else "",
        to=first.destination if shown else "",
        members=() if shown else tuple(dict.fromkeys(e for t in row.transfers for e in (t.source, t.destination))),
        direction=row.direction,
        issuer=_issuer(row),
        engine=engine.name,
        allocator=prepared.allocator,
        peer_access=prepared.peer_access,
        placement=prepared.placement,
        pageable=row.pageable,
        far_node=row.host_node if row.far else None,
        size_bytes=row.size_bytes,
        iterations=row.copies,
        samples=samples,
        median=mid,
        min=min(samples),
        max=max(samples),
        spread=spread(samples),
        unit="us" if latency else "GB/s",
        bandwidth_gb_s=None if latency else mid,
        latency_us=mid if latency else None,
        time_us=mid if latency else median([s.window_s for s in taken]) / row.copies * 1e6,
        verified=not wrong,
        wrong="; ".join(wrong),
        stop_reason=why,
        wall_s=round(monotonic() - begun, 4),
        notes=tuple(notes),
    )


def _keep(wrong: list[str], text: str, number: int) -> None:
    if text:
        wrong.append(f"sample {number}: {text}")


def _issuer(row: CopyRow) -> str:
    t = row.transfers[0]
    if HOST in (t.source, t.destination) or t.source == t.destination:
        return HOST if t.issuer == HOST else "device"
    return "source" if t.issuer == t.source else "destination"


def _host_limit(taken: list[Sample]) -> str:
    """Say so where the host's clock saw a fifth more than the device's: the host was then part of what was timed."""
    both = [(s.wall_s, s.window_s) for s in taken if s.wall_s > 0 and s.window_s > 0.001]
    if not both:
        return ""
    ratio = median([w / d for w, d in both])
    return f"the host's clock saw {ratio:.2f} times the device's time: the host held it up" if ratio > 1.2 else ""
