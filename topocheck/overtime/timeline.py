"""A recording as panels of tracks over time: one value of each device, downsampled, with what happened marked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from topocheck.model.base import known
from topocheck.overtime.counters import width
from topocheck.overtime.growth import growth
from topocheck.overtime.history import History
from topocheck.overtime.series import counts_errors
from topocheck.overtime.types import (
    SLOWDOWNS,
    FunctionReading,
    GpuReading,
    Kind,
    NvLinkReading,
    PortReading,
    Reading,
)

BUCKETS = 400
"""Points of a track."""
MOST_MARKS = 200
"""Marks of one device; a counter that grows all the time would fill a page."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a device between two times (seconds since the first sample).

    `counted`: an error counter grew, which a healthy machine may have now and then; else a state or an event.
    """

    from_s: float
    to_s: float
    text: str
    counted: bool = False


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """One device. `points` are (seconds, lowest, highest value) of each part of the time that has a value."""

    label: str
    points: tuple[tuple[float, float, float], ...]
    marks: tuple[Mark, ...] = ()
    more_marks: int = 0


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of all devices that have it."""

    title: str
    unit: str
    tracks: tuple[Track, ...]


Marks = dict[str, tuple[Mark, ...]]


def panels(history: History) -> tuple[Panel, ...]:
    """Return what is drawn of a recording: clocks, load, temperature and traffic of GPUs, traffic of ports."""
    if not history.samples:
        return ()
    marks = marks_of(history)

    def gauges(title: str, unit: str, field: str) -> Panel:
        return Panel(title=title, unit=unit, tracks=tuple(_gauges(history, marks, field)))

    def rates(title: str, kind: Kind, unit_bytes: int, *names: str) -> Panel:
        return Panel(title=title, unit="GB/s", tracks=tuple(_rates(history, marks, kind, unit_bytes, names)))

    found = [
        gauges("SM clock", "MHz", "clock_sm_mhz"),
        gauges("GPU load", "%", "utilization_percent"),
        gauges("GPU temperature", "°C", "temperature_c"),
        rates("NVLink traffic", Kind.GPU, 1024, "nvlink_tx_kib", "nvlink_rx_kib"),
        Panel(title="PCIe traffic of GPUs", unit="GB/s", tracks=tuple(_pcie(history, marks))),
        rates("Traffic of RDMA ports", Kind.PORT, 4, "port_xmit_data", "port_rcv_data"),
    ]
    return tuple(p for p in found if p.tracks)


def _gauges(history: History, marks: Marks, field: str) -> Iterator[Track]:
    for address, series in history.readings[Kind.GPU].items():
        points = [(at, float(v)) for at, r in series if isinstance(v := getattr(r, field), int)]
        if points:
            yield _track(history, marks, address, points)


def _rates(history: History, marks: Marks, kind: Kind, unit_bytes: int, names: tuple[str, ...]) -> Iterator[Track]:
    """Yield traffic of both directions together; none for a time across which a counter fell or was not read."""
    for subject, series in history.readings[kind].items():
        totals: dict[float, float] = {}
        for name in names:
            read = [(at, r.counters[name]) for at, r in series if name in r.counters]
            totals.update({at: totals.get(at, 0.0) for at, _ in read[1:]})
            for from_s, to_s, by in growth(read, width(kind, name)).steps:
                totals[to_s] += by * unit_bytes / (to_s - from_s) / 1e9 if to_s > from_s else 0.0
        if totals:
            yield _track(history, marks, subject, sorted(totals.items()))


def _pcie(history: History, marks: Marks) -> Iterator[Track]:
    for address, series in history.gpus().items():
        points = [
            (at, (r.pcie_tx_kb_s + r.pcie_rx_kb_s) / 1e6)
            for at, r in series
            if known(r.pcie_tx_kb_s) and known(r.pcie_rx_kb_s)
        ]
        if points:
            yield _track(history, marks, address, points)


def _track(history: History, marks: Marks, subject: str, points: list[tuple[float, float]]) -> Track:
    mine = marks.get(subject, ())
    start = history.samples[0].at_s
    return Track(
        label=_short(history, subject),
        points=tuple((at - start, low, high) for at, low, high in _downsampled(points)),
        marks=tuple(replace(m, from_s=m.from_s - start, to_s=m.to_s - start) for m in mine[:MOST_MARKS]),
        more_marks=max(0, len(mine) - MOST_MARKS),
    )


def _short(history: History, subject: str) -> str:
    device = history.devices.get(subject)
    return device.label if device is not None else subject


def _downsampled(points: list[tuple[float, float]]) -> Iterator[tuple[float, float, float]]:
    start, span = points[0][0], max(points[-1][0] - points[0][0], 1e-9)
    parts: dict[int, list[tuple[float, float]]] = {}
    for at, value in points:
        parts.setdefault(min(BUCKETS - 1, int(BUCKETS * (at - start) / span)), []).append((at, value))
    for part in parts.values():
        values = [v for _, v in part]
        yield part[-1][0], min(values), max(values)


def marks_of(history: History) -> Marks:
    """Return GPU's address or port -> what happened to it, states and events first, each in order of time."""
    found: dict[str, list[Mark]] = {}
    for subject, mark in _all_marks(history):
        found.setdefault(subject, []).append(mark)
    return {s: tuple(sorted(marks, key=lambda m: (m.counted, m.from_s))) for s, marks in found.items()}


def _all_marks(history: History) -> Iterator[tuple[str, Mark]]:
    for kind, subjects in history.readings.items():
        for subject, series in subjects.items():
            owner = subject.partition(" ")[0]  # an NVLink is its GPU's
            name = subject.removeprefix(owner).strip()
            start = f"{name}: " if name else ""
            for from_s, to_s, text in _spans(_troubles(series)):
                yield owner, Mark(from_s=from_s, to_s=to_s, text=start + text)
            for counter, g in history.growth[kind][subject].items():
                if counts_errors(counter):
                    for from_s, to_s, by in g.steps:
                        yield owner, Mark(from_s=from_s, to_s=to_s, text=f"{start}{counter} +{by}", counted=True)
    for s in history.samples:
        for e in s.events:
            text = f"Xid {e.data}" if e.data else f"event 0x{e.type:x}"
            yield e.address, Mark(from_s=s.at_s, to_s=s.at_s, text=text)


def _spans(points: Iterable[tuple[float, str]]) -> Iterator[tuple[float, float, str]]:
    """Yield (from, to, text) of each run of the same text; none where it is empty."""
    begun, last, now = 0.0, 0.0, ""
    for at, text in points:
        if text != now:
            if now:
                yield begun, at, now
            begun, now = at, text
        last = at
    if now:
        yield begun, last, now


def _troubles(series: list[tuple[float, Reading]]) -> Iterator[tuple[float, str]]:
    """Yield (time, what is wrong with a device); the empty text for nothing that its readings show."""
    readings = [r for _, r in series]
    was_up = any(isinstance(r, NvLinkReading) and r.active is True for r in readings)
    was_up |= any(isinstance(r, PortReading) and r.state == "ACTIVE" for r in readings)
    widths = [r.width_lanes for r in readings if isinstance(r, FunctionReading) and isinstance(r.width_lanes, int)]
    rates = [r.rate_gbit_s for r in readings if isinstance(r, PortReading) and isinstance(r.rate_gbit_s, float)]
    for at, r in series:
        match r:
            case GpuReading():
                yield at, _gpu(r)
            case FunctionReading():
                narrow = isinstance(r.width_lanes, int) and r.width_lanes < max(widths)
                yield at, "gone" if r.gone else f"x{r.width_lanes} of x{max(widths)}" if narrow else ""
            case NvLinkReading():
                yield at, "down" if r.active is False and was_up else ""
            case PortReading():
                slow = isinstance(r.rate_gbit_s, float) and r.state == "ACTIVE" and r.rate_gbit_s < max(rates)
                yield at, _port(r, was_up=was_up) or (f"{r.rate_gbit_s:g} of {max(rates):g} Gb/s" if slow else "")


def _gpu(r: GpuReading) -> str:
    reasons = [n for b, n in SLOWDOWNS.items() if known(r.clock_reasons) and r.clock_reasons & b]
    return "lost" if r.lost else ", ".join(reasons)


def _port(r: PortReading, *, was_up: bool) -> str:
    if r.gone:
        return "gone"
    return r.state if known(r.state) and r.state != "ACTIVE" and was_up else ""
