"""Sampling this machine for a while, for `watch` and for `check --sample` and `--since`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from topocheck.model.base import InputError, Missing, Reason

if TYPE_CHECKING:
    from topocheck.overtime.history import History
    from topocheck.overtime.types import Header, Sample
    from topocheck.pipeline import Report

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
FULL_S = 30.0
"""Counters that cost much (AER, errors of NVLinks and ports) are read so often, and in the first and last sample: on an
H200 of 18 NVLinks they take 10 ms of a core, all else 0.5 ms (docs/watch.md)."""
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 3600.0


def seconds_of(text: str, option: str) -> float:
    """Return seconds of `60s`, `5m`, `1h`, `2d` or a plain number.

    Raises:
        InputError: it is none of these, or not above 0.
    """
    m = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd]?)", text.strip())
    value = float(m[1]) * _UNITS[m[2]] if m else 0.0
    if not value > 0:
        raise InputError(f"{option} {text!r}: expected a time above 0 such as 30s, 5m or 1h")
    return value


def header_of(report: Report, interval_s: float) -> Header:
    """Return the header of a recording that begins now."""
    from topocheck.host.base import Host, HostError
    from topocheck.host.live.backend import LiveBackend
    from topocheck.model.version import __version__
    from topocheck.monitor.plan import devices_of
    from topocheck.overtime.record import FORMAT, VERSION
    from topocheck.overtime.types import Header

    boot: int | Missing = Missing(Reason.ABSENT, "no btime in /proc/stat")
    try:
        lines = Host(LiveBackend()).read_lines("/proc/stat", "btime ")
        if lines and (m := re.fullmatch(r"btime ([0-9]{1,12})", lines[0].strip())):
            boot = int(m[1])
    except HostError as e:
        boot = e.missing()
    hostname = report.node.system.hostname
    now = time.time()
    return Header(
        format=FORMAT,
        version=VERSION,
        topocheck_version=__version__,
        hostname=hostname if isinstance(hostname, str) else "",
        begun=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
        begun_unix_s=round(now, 3),
        interval_s=interval_s,
        boot_time_s=boot,
        devices=devices_of(report.topology),
    )


def sample(
    report: Report,
    header: Header,
    for_s: float | None,
    each: Callable[[Sample], None] = lambda sample: None,
    *,
    traffic: bool = False,
) -> History:
    """Sample until the time is over or somebody asks to stop (KeyboardInterrupt), and return what was sampled.

    Args:
        report: the machine's devices.
        header: what the recording begins with.
        for_s: how long; until asked to stop where None. 0 is one sample.
        each: called with each sample.
        traffic: read NVLink's counters in each sample.
    """
    from topocheck.monitor.plan import plan_of
    from topocheck.monitor.sampler import Sampler
    from topocheck.overtime.history import History
    from topocheck.overtime.record import Deltas
    from topocheck.overtime.thinning import Kept

    interval = header.interval_s
    last = -1 if for_s is None else int(for_s / interval + 1e-9)
    plan = plan_of(report.topology, report.node, max(1, round(FULL_S / interval)), last, traffic=traffic)
    kept: Kept[Sample] = Kept()
    deltas = Deltas()
    if not plan.gpus and not plan.functions and not plan.ports:
        return History(header=header, samples=())
    sampler = Sampler(plan, interval)
    try:
        while not sampler.done:
            found = sampler.next()
            kept.add(found, changed=deltas.line(found)[1])
            each(found)
    except KeyboardInterrupt:
        pass
    finally:
        sampler.close()
    return History(header=header, samples=tuple(kept.items()))


def load(path: Path) -> History:
    """Return a recording; `-` is standard input.

    Raises:
        InputError: the file cannot be read, or is none.
    """
    from topocheck.host.input import chunks_of
    from topocheck.overtime.record import EXPECTED, parse

    if str(path) != "-" and is_snapshot(path):
        raise InputError(
            f"{path}: a snapshot of a machine, which holds one sample; expected {EXPECTED}. "
            "What its counters say: topocheck check --from FILE, and what grew: check --since OLDER"
        )
    return parse(chunks_of(path, EXPECTED), str(path))


def is_snapshot(path: Path) -> bool:
    """Tell whether a file is compressed as snapshots are, and no recording of `topocheck watch`.

    Raises:
        InputError: the file cannot be read.
    """
    from topocheck.host.input import chunks_of
    from topocheck.overtime.record import EXPECTED, GZIP, is_recording

    start = next(iter(chunks_of(path, EXPECTED)), b"")
    return start.startswith(GZIP) and not is_recording(start)


def of_snapshot(report: Report) -> History:
    """Return the counters of a machine's snapshot as one sample; none where it has no device that counts."""
    from topocheck.monitor.plan import devices_of, plan_of
    from topocheck.overtime.history import History
    from topocheck.overtime.of_node import history_of

    plan = plan_of(report.topology, report.node)
    found = history_of(report.node, devices_of(report.topology), plan.functions)
    if not plan.gpus and not plan.functions and not plan.ports:
        return History(header=found.header, samples=())
    return found


def keeps_identifiers(path: Path) -> bool:
    """Tell whether a snapshot has the names of its host as they are; a file that is no snapshot counts as one that has.

    Raises:
        InputError: the snapshot cannot be read.
    """
    from topocheck.host.recording import snapshot

    return not is_snapshot(path) or snapshot.load(str(path))[0].identifiers == "kept"
