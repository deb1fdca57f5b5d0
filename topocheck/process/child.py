"""The parent's side of a child: start, events with deadlines, and an end that leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any

import msgspec

from topocheck.process.python import child_environment
from topocheck.process.spawn import end, spawn, wait

EVENT_LIMIT = 1 << 20
"""Bytes of one event; a longer one ends the child's stream."""
OUTPUT_LIMIT = 64 << 20
"""Bytes that it may print: they lie in a file of the temporary folder."""
_LOOKS_S = 1.0
"""How often is looked how much that is."""

PIDS: set[int] = set()
"""Process numbers of the children, and of the ranks they started, so that NVML's lists can be read."""


class Child:
    """A child in its own session, with a pipe for events and a file for whatever it prints.

    It ends with this process, however this process ends (`topocheck.process.lifeline`).

    Args:
        argv: the command; `{fd}` in it becomes the number of the event pipe's descriptor.
        environment: its environment, this process's own where None; see `child_environment`.

    Raises:
        OSError: it could not be started.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._events, theirs = os.pipe2(os.O_CLOEXEC)
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in end()
        try:
            self.process, self._lifeline = spawn(
                [a.replace("{fd}", str(theirs)) for a in argv],
                child_environment(environment),
                stdin=subprocess.PIPE,
                stdout=self.output.fileno(),
                stderr=subprocess.STDOUT,
                keep=(theirs,),
            )
        except BaseException:
            os.close(self._events)
            self.output.close()
            raise
        finally:
            os.close(theirs)
        PIDS.add(self.pid)
        os.set_blocking(self._events, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._events, selectors.EVENT_READ)
        self._rest = b""
        self._lines: list[bytes] = []
        self._closed = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def send_line(self, line: bytes) -> None:
        """Write one line to its standard input."""
        stdin = self.process.stdin
        if stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                stdin.write(line + b"\n")
                stdin.flush()

    def next_event(self, deadline: float) -> dict[str, Any] | None:
        """Return the next event, or None at the end of the pipe.

        After an event that is no JSON object or longer than EVENT_LIMIT, or more output than OUTPUT_LIMIT, there is
        one that says so, `failed`, and no more.

        Raises:
            TimeoutError: none came before `deadline` (monotonic seconds).
        """
        while not self._lines:
            if self._closed:
                return None
            if os.fstat(self.output.fileno()).st_size > OUTPUT_LIMIT:
                return self._failed(f"printed more than {OUTPUT_LIMIT >> 20} MiB")
            left = deadline - monotonic()
            if not self._selector.select(min(max(0.0, left), _LOOKS_S)):
                if left <= 0:
                    raise TimeoutError
                continue
            data = os.read(self._events, 1 << 16)
            self._closed = not data
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += [line for line in lines if line]
            if len(self._rest) > EVENT_LIMIT:
                return self._failed(f"sent an event of more than {EVENT_LIMIT >> 10} KiB")
        try:
            return msgspec.json.decode(self._lines.pop(0), type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._failed("sent an event that is no JSON object")

    def _failed(self, what: str) -> dict[str, Any]:
        """Read no more of this child, whose events cannot be trusted to be whole."""
        self._closed, self._rest = True, b""
        self._lines.clear()
        return {"event": "failed", "row": "", "reason": f"process {self.pid} {what}", "fatal": True}

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

    def wait(self, seconds: float) -> int | None:
        """Return its exit status (negative: the signal that ended it), or None where it still runs after `seconds`."""
        return wait(self.process, seconds)

    def end(self, grace_s: float = 2.0) -> bool:
        """Take the child and all it started down; return False where one sleeps in the kernel and stays."""
        if self._events < 0:
            return self.process.poll() is not None
        # A stopped process takes no SIGTERM before it goes on.
        gone = end(self.process, self._lifeline, ((signal.SIGTERM, 0), (signal.SIGCONT, grace_s), (signal.SIGKILL, 3)))
        self._selector.close()
        os.close(self._events)
        self._events = self._lifeline = -1
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        self.output.close()
        return gone
