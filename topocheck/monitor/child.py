"""The process that samples one source, so that a read that hangs holds up nothing else.

`python -m topocheck.monitor.child SOURCE FD` reads its Job, one line of JSON, from standard input, and writes one
Tick a line to the descriptor until its parent ends it.
"""

from __future__ import annotations

import os
import sys
from time import monotonic, sleep
from typing import Literal

import msgspec
from msgspec.structs import replace

from topocheck.host.base import Host
from topocheck.monitor.events import Events
from topocheck.monitor.plan import Plan
from topocheck.overtime.types import GpuEvent, GpuReading, Reading, Sample, sample_of

Source = Literal["nvml", "sysfs"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to sample, and when: sample n at `start` + n * `interval_s` (CLOCK_MONOTONIC seconds)."""

    plan: Plan
    start: float
    interval_s: float


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """Sample `number`, taken at `at` (CLOCK_MONOTONIC seconds, the same for all processes of a machine)."""

    number: int
    at: float
    sample: Sample


def read(host: Host, source: Source, plan: Plan, *, full: bool) -> list[Reading]:
    """Return the readings of one source."""
    if source == "nvml":
        from topocheck.monitor.read_nvml import read_gpus

        return read_gpus(host, plan, full=full)
    from topocheck.monitor.read_sysfs import read_links_and_ports

    return read_links_and_ports(host, plan, full=full)


def run(host: Host, source: Source, job: Job, fd: int) -> None:
    """Sample until the parent is gone; samples whose time passed while another was taken are left out."""
    number = 0
    full_from = 0
    events = Events(job.plan) if source == "nvml" and job.plan.counters else None
    while True:
        wait = job.start + number * job.interval_s - monotonic()
        if wait > 0:
            sleep(wait)
        at = monotonic()
        full = number >= full_from or 0 <= job.plan.last <= number
        if full:
            full_from = number + job.plan.full_every
        readings = read(host, source, job.plan, full=full)
        found: tuple[GpuEvent, ...] = ()
        if events is not None:
            readings, found = _with_events(host, events, readings)
        tick = Tick(number=number, at=at, sample=sample_of(at - job.start, readings, None, found))
        data = msgspec.json.encode(tick) + b"\n"
        try:
            while data:
                data = data[os.write(fd, data) :]
        except OSError:
            return
        following = max(number + 1, int((monotonic() - job.start) / job.interval_s))
        number = min(following, job.plan.last) if number < job.plan.last else following


def _with_events(host: Host, events: Events, readings: list[Reading]) -> tuple[list[Reading], tuple[GpuEvent, ...]]:
    """Return the readings, with why a GPU's events are not sent, and the events that came."""
    gpus = [r for r in readings if isinstance(r, GpuReading)]
    events.register(host, frozenset(g.address for g in gpus if not g.suspended and not g.lost))
    found = events.take(host)
    why = events.refused
    told = [
        replace(r, missing={**r.missing, "events": why[r.address]})
        if isinstance(r, GpuReading) and r.address in why
        else r
        for r in readings
    ]
    return told, found


def main() -> None:
    """Body of the process."""
    from topocheck.host.live.backend import LiveBackend
    from topocheck.process.parent import die_with_parent

    die_with_parent()
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    source: Source = "nvml" if sys.argv[1] == "nvml" else "sysfs"
    run(Host(LiveBackend()), source, job, int(sys.argv[2]))


if __name__ == "__main__":
    main()
