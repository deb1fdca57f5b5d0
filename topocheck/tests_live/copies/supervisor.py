"""Rows run in a child process, and in fresh ones after a hang or a crash."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
from collections.abc import Callable, Generator, Iterator
from time import monotonic

import msgspec

from topocheck.bandwidth.cases import CopyRow
from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.process.child import Child
from topocheck.process.python import python_argv
from topocheck.tests_live.copies.child import Job

START_DEADLINE_S = {"driver": 60.0, "staged": 60.0, "torch": 120.0, "host": 20.0}
"""How long a child may take until it is ready. Loading a driver's state on an idle eight-GPU machine takes seconds."""

CHILD_MODULE = "topocheck.tests_live.copies.child"


def start_child(group: str, module: str = CHILD_MODULE) -> Child:
    """Start a child that loads what its group needs and waits for its job."""
    env = dict(os.environ)
    env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    env["PYTORCH_CUDA_ALLOC_CONF"] = "backend:native,expandable_segments:False"
    env.setdefault("CUDA_MODULE_LOADING", "LAZY")
    return Child(python_argv(module, "{fd}", group), env)


def driver_installed() -> bool:
    """Tell whether cuda-bindings is there, without importing it."""
    try:
        return importlib.util.find_spec("cuda.bindings.driver") is not None
    except ModuleNotFoundError:
        return False


def warm_child(engine: str) -> Child | None:
    """Start the first child while the machine is still being looked at; it loads what it needs and waits."""
    return start_child("driver") if engine in ("driver", "both") and driver_installed() else None


def row_deadline_s(row: CopyRow) -> float:
    """Return how long a row may take: three times its estimate and its sampling budget, and five seconds."""
    return 3 * (row.estimate_s + row.budget_s) + 5


Listener = Callable[[str, CopyRow | None, str], None]
"""Told (`row` | `at` | `measured` | `failed`, the row, the call or reason) as it happens."""


def run_group(
    group: str,
    rows: tuple[CopyRow, ...],
    addresses: tuple[str, ...],
    *,
    listen: Listener,
    child: Child | None = None,
    module: str = CHILD_MODULE,
    software: dict[str, str] | None = None,
    start_deadline_s: float | None = None,
    end: Callable[[Child], object] | None = None,
) -> Iterator[Measurement | NotMeasured]:
    """Run rows in a child, and in fresh ones after a hang or a crash, and yield what comes of each.

    After a hang no row that touches one of the hung row's devices is run: what hangs once may hang a driver.
    The last child ends by itself once it has run every row. It is given to `end` where there is one: a driver takes
    0.1 s per device to take its state down, which the caller may spend on something else.
    """
    left = list(rows)
    shunned: set[str] = set()
    try:
        while left:
            if child is None:
                child = start_child(group, module)
            job = Job(group=group, addresses=addresses, rows=tuple(left))
            done, hung = yield from _one_child(child, job, listen, software, start_deadline_s)
            left = left[done:]
            if end is None or left or hung is not None:
                child.end()
            else:
                end(child)
            child = None
            if hung is not None:
                shunned |= {e for t in hung.transfers for e in (t.source, t.destination) if e != "host"}
                for row in [r for r in left if shunned & {e for t in r.transfers for e in (t.source, t.destination)}]:
                    left.remove(row)
                    yield NotMeasured(id=row.id, reason=f"left out: a device of it hung in {hung.id}", required=False)
                addresses = tuple(a for a in addresses if a not in shunned)
    finally:
        if child is not None:
            child.end()


def _one_child(
    child: Child,
    job: Job,
    listen: Listener,
    software: dict[str, str] | None,
    start_deadline_s: float | None,
) -> Generator[Measurement | NotMeasured, None, tuple[int, CopyRow | None]]:
    """Run one child to its end; returns (rows that are settled, the row that hung or None)."""
    rows = {r.id: r for r in job.rows}
    child.send_line(msgspec.json.encode(job))
    settled, row, call = 0, None, f"start of the {job.group} engine"
    limit = start_deadline_s or START_DEADLINE_S.get(job.group, 60.0)
    begun = monotonic()
    while True:
        over = settled == len(job.rows)
        if row is not None and not over and row is not job.rows[settled]:
            # Between two rows: what happens now is the next one's.
            row, call = job.rows[settled], "start of the row"
            begun, limit = monotonic(), row_deadline_s(row)
        try:
            event = child.next_event(begun + limit)
        except TimeoutError:
            if over:
                return settled, None
            reason = f"{call} did not come back within {limit:.0f} s"
            stack = child.stack()
            gone = child.end()
            if not gone:
                reason += f"; process {child.pid} sleeps in the kernel and cannot be ended"
            listen("failed", row, reason)
            if row is None:
                yield from _all_failed(job.rows, reason, stack)
                return len(job.rows), None
            yield NotMeasured(
                id=row.id, reason=f"hung in {call} ({limit:.0f} s)", required=True, next_step=_hang_step(row, stack)
            )
            return settled + 1, row
        if event is None and over:
            return settled, None
        if event is None:
            rc = child.wait(5)
            reason = f"the {job.group} engine's process ended with {_status(rc)} in {call}"
            last = child.printed(300).splitlines()[-1:] or [""]
            listen("failed", row, reason)
            if row is None:
                yield from _all_failed(job.rows, reason, last[0])
                return len(job.rows), None
            yield NotMeasured(id=row.id, reason=reason, required=True, next_step=last[0])
            return settled + 1, None
        kind = event["event"]
        if kind == "at":
            call = str(event["call"])
            listen("at", row, call)
        elif kind == "ready":
            if software is not None:
                software.update(event["software"])
        elif kind == "row":
            row = rows[event["row"]]
            begun, limit, call = monotonic(), row_deadline_s(row), "prepare"
            listen("row", row, "")
        elif kind == "measured" and row is not None:
            settled += 1
            m = msgspec.convert(event["measurement"], Measurement)
            listen("measured", row, "")
            yield m
        elif kind == "unsupported" and row is not None:
            settled += 1
            listen("failed", row, str(event["reason"]))
            yield NotMeasured(id=row.id, reason=str(event["reason"]))
        elif kind == "failed":
            reason = str(event["reason"])
            listen("failed", row, reason)
            if event.get("fatal") or row is None:
                yield from _all_failed(job.rows, reason, "")
                return len(job.rows), None
            settled += 1
            yield NotMeasured(id=row.id, reason=f"{reason}, in {call}", required=True)
        elif kind == "done":
            return settled, None


def _all_failed(rows: tuple[CopyRow, ...], reason: str, detail: str) -> Iterator[NotMeasured]:
    for row in rows:
        yield NotMeasured(id=row.id, reason=reason, required=True, next_step=detail[-500:])


def _status(rc: int | None) -> str:
    if rc is None:
        return "no status (it still runs, without its pipe)"
    if rc < 0:
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(-rc).name}"
    return f"status {rc}"


def _hang_step(row: CopyRow, stack: str) -> str:
    names = ", ".join(f"{t.source} to {t.destination}" for t in row.transfers)
    step = f"look for Xid lines about {names} in the kernel's log (dmesg), and try the pair alone with --gpus"
    frames = [line.strip() for line in stack.splitlines() if line.strip().startswith("File ")]
    return step + (f"; it stood in {frames[0]}" if frames else "")
