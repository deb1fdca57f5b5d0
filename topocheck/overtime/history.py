"""A recording as a whole: each device's readings over time, and the growth of its counters."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from topocheck.model.base import Missing, known
from topocheck.overtime.counters import width
from topocheck.overtime.growth import Growth, growth
from topocheck.overtime.types import Device, GpuReading, Header, Kind, PortReading, Reading, Sample, sample_of

R = TypeVar("R", bound=Reading)
_OTHER_BOOT_S = 120
"""The kernel's boot time moves by some seconds when the clock is set."""


class History(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The samples of a recording in order, and what is known of the devices.

    `rebooted` says that the machine was started again after the samples that were to be compared, which are left out.
    """

    header: Header
    samples: tuple[Sample, ...]
    rebooted: bool = False

    @property
    def seconds(self) -> float:
        """From the first sample to the last."""
        return self.samples[-1].at_s - self.samples[0].at_s if self.samples else 0.0

    @functools.cached_property
    def devices(self) -> dict[str, Device]:
        """PCI address -> device."""
        return {d.address: d for d in self.header.devices}

    @functools.cached_property
    def readings(self) -> dict[Kind, dict[str, list[tuple[float, Reading]]]]:
        """Kind -> subject -> (seconds, reading) in order of time."""
        out: dict[Kind, dict[str, list[tuple[float, Reading]]]] = {k: {} for k in Kind}
        for s in self.samples:
            parts: tuple[tuple[Kind, tuple[Reading, ...]], ...] = (
                (Kind.GPU, s.gpus),
                (Kind.FUNCTION, s.functions),
                (Kind.NVLINK, s.nvlinks),
                (Kind.PORT, s.ports),
            )
            for kind, found in parts:
                for r in found:
                    out[kind].setdefault(r.subject, []).append((s.at_s, r))
        return out

    @functools.cached_property
    def growth(self) -> dict[Kind, dict[str, dict[str, Growth]]]:
        """Kind -> subject -> counter -> its growth."""
        return {
            kind: {subject: _growths(kind, series) for subject, series in subjects.items()}
            for kind, subjects in self.readings.items()
        }

    def gpus(self) -> dict[str, list[tuple[float, GpuReading]]]:
        """Return address -> (seconds, reading) of each GPU."""
        return _of_type(self.readings[Kind.GPU], GpuReading)

    def ports(self) -> dict[str, list[tuple[float, PortReading]]]:
        """Return `mlx5_0/1` -> (seconds, reading) of each port."""
        return _of_type(self.readings[Kind.PORT], PortReading)

    def label(self, address: str) -> str:
        """Return `0000:18:00.0 GPU0`, or the address of what has no label."""
        device = self.devices.get(address)
        return f"{address} {device.label}" if device is not None else address


def _of_type(readings: dict[str, list[tuple[float, Reading]]], form: type[R]) -> dict[str, list[tuple[float, R]]]:
    return {s: [(at, r) for at, r in series if isinstance(r, form)] for s, series in readings.items()}


def _growths(kind: Kind, series: list[tuple[float, Reading]]) -> dict[str, Growth]:
    points: dict[str, list[tuple[float, int | Missing]]] = {}
    for at, r in series:
        for name, value in r.counters.items():
            points.setdefault(name, []).append((at, value))
        for name, why in r.missing.items():
            points.setdefault(name, []).append((at, why))
    return {
        name: growth(values, width(kind, name))
        for name, values in sorted(points.items())
        if any(known(v) for _, v in values)
    }


def joined(before: History, now: History) -> History:
    """Return the last sample of one recording followed by those of a later one, on the later one's clock.

    Where the machine was started again in between, only the later one, which says so. The devices are the later
    one's.
    """
    if not before.samples:
        return now
    old, new = before.header.boot_time_s, now.header.boot_time_s
    if known(old) and known(new) and abs(old - new) > _OTHER_BOOT_S:
        return msgspec.structs.replace(now, rebooted=True)
    shift = before.header.begun_unix_s - now.header.begun_unix_s
    last = last_known(before.samples)
    last = msgspec.structs.replace(last, at_s=last.at_s + shift)
    return msgspec.structs.replace(now, samples=(last, *now.samples))


def last_known(samples: Iterable[Sample]) -> Sample:
    """Return the latest reading of each device with the latest value of each counter, at the time of the last sample.

    Counters that cost much are not read in each sample.
    """
    latest: dict[tuple[type[Reading], str], Reading] = {}
    at = 0.0
    for s in samples:
        at = s.at_s
        for r in (*s.gpus, *s.functions, *s.nvlinks, *s.ports):
            before = latest.get((type(r), r.subject))
            counters = r.counters if before is None else {**before.counters, **r.counters}
            latest[type(r), r.subject] = msgspec.structs.replace(r, counters=counters)
    return sample_of(at, latest.values())
