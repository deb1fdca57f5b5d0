"""The parent's side of a child: start, deadlines, and an end that leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from time import monotonic, sleep
from typing import Any

import msgspec

from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.tests_live.child import Job
from topocheck.tests_live.rows import CopyRow

START_DEADLINE_S = {"driver": 60.0, "staged": 60.0, "torch": 120.0, "host": 20.0}
"""How long a child may take until it is ready. Loading a driver's state on an idle eight-GPU machine takes seconds."""

CHILD_MODULE = "topocheck.tests_live.child"


OURS: set[int] = set()
"""Process numbers of the children, and of the ranks they started, so that NVML's lists can be read."""


class Process:
    """A child in its own session, with a pipe for events and a file for whatever it prints.

    `{fd}` in its command becomes the number of the pipe's descriptor.
    """

    def __init__(self, argv: list[str], environment: dict[str, str] | None = None) -> None:
        self.read_fd, write_fd = os.pipe()
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in end()
        env = dict(os.environ) if environment is None else environment
        self.process = subprocess.Popen(
            [a.replace("{fd}", str(write_fd)) for a in argv],
            stdin=subprocess.PIPE,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            pass_fds=(write_fd,),
            start_new_session=True,
            env=env,
        )
        OURS.add(self.process.pid)
        os.close(write_fd)
        os.set_blocking(self.read_fd, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.read_fd, selectors.EVENT_READ)
        self._rest = b""
        self._lines: list[bytes] = []
        self._closed = False

    def tell(self, line: bytes) -> None:
        """Write one line to its standard input."""
        stdin = self.process.stdin
        if stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                stdin.write(line + b"\n")
                stdin.flush()

    def event(self, deadline: float) -> dict[str, Any] | None:
        """Return the next event, or None at the end of the pipe.

        Raises:
            TimeoutError: none came before `deadline` (monotonic seconds).
        """
        while not self._lines:
            if self._closed:
                return None
            left = deadline - monotonic()
            if not self._selector.select(max(0.0, left)):
                if left <= 0:
                    raise TimeoutError
                continue
            data = os.read(self.read_fd, 1 << 16)
            self._closed = not data
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += [line for line in lines if line]
        return dict(msgspec.json.decode(self._lines.pop(0)))

    def printed(self, limit: int = 4000) -> str:
        """Return the end of what it printed."""
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - limit))
        return self.output.read().decode("utf-8", "replace").strip()

    def stack(self) -> str:
        """Ask a hung child for its Python stack, and return what came."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR1)
            sleep(0.3)
        return self.printed()

    def end(self, grace_s: float = 2.0) -> bool:
        """Take the child and all it started down; return False where one sleeps in the kernel and stays."""
        for sig, wait in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 3.0)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, sig)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGCONT)
            try:
                self.process.wait(wait)
                break
            except subprocess.TimeoutExpired:
                continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._selector.close()
        with contextlib.suppress(OSError):
            os.close(self.read_fd)
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        gone = self.process.poll() is not None
        self.output.close()
        return gone


def start_child(group: str, module: str = CHILD_MODULE) -> Process:
    """Start a child that loads what its group needs and waits for its job."""
    env = dict(os.environ)
    env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    env["PYTORCH_CUDA_ALLOC_CONF"] = "backend:native,expandable_segments:False"
    env.setdefault("CUDA_MODULE_LOADING", "LAZY")
    return Process([sys.executable, "-m", module, "{fd}", group], env)


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
    child: Process | None = None,
    module: str = CHILD_MODULE,
    software: dict[str, str] | None = None,
    start_deadline_s: float | None = None,
) -> Iterator[Measurement | NotMeasured]:
    """Run rows in a child, and in fresh ones after a hang or a crash, and yield what comes of each.

    After a hang no row that touches one of the hung row's devices is run: what hangs once may hang a driver.
    """
    left = list(rows)
    shunned: set[str] = set()
    try:
        while left:
            if child is None:
                child = start_child(group, module)
            job = Job(group=group, addresses=addresses, rows=tuple(left))
            outcome = yield from _one_child(child, job, listen, software, start_deadline_s)
            child.end()
            child = None
            done, hung = outcome
            left = left[done:]
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
    child: Process,
    job: Job,
    listen: Listener,
    software: dict[str, str] | None,
    start_deadline_s: float | None,
) -> Generator[Measurement | NotMeasured, None, tuple[int, CopyRow | None]]:
    """Run one child to its end; returns (rows that are settled, the row that hung or None)."""
    rows = {r.id: r for r in job.rows}
    child.tell(msgspec.json.encode(job))
    settled, row, call = 0, None, f"start of the {job.group} engine"
    limit = start_deadline_s or START_DEADLINE_S.get(job.group, 60.0)
    begun = monotonic()
    while True:
        try:
            event = child.event(begun + limit)
        except TimeoutError:
            reason = f"{call} did not come back within {limit:.0f} s"
            stack = child.stack()
            gone = child.end()
            if not gone:
                reason += f"; process {child.process.pid} sleeps in the kernel and cannot be ended"
            listen("failed", row, reason)
            if row is None:
                yield from _all_failed(job.rows, reason, stack)
                return len(job.rows), None
            yield NotMeasured(
                id=row.id, reason=f"hung in {call} ({limit:.0f} s)", required=True, next_step=_hang_step(row, stack)
            )
            return settled + 1, row
        if event is None:
            child.process.wait(5)
            rc = child.process.returncode
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


def _status(rc: int) -> str:
    if rc < 0:
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(-rc).name}"
    return f"status {rc}"


def _hang_step(row: CopyRow, stack: str) -> str:
    names = ", ".join(f"{t.source} to {t.destination}" for t in row.transfers)
    step = f"look for Xid lines about {names} in the kernel's log (dmesg), and try the pair alone with --gpus"
    frames = [line.strip() for line in stack.splitlines() if line.strip().startswith("File ")]
    return step + (f"; it stood in {frames[0]}" if frames else "")
