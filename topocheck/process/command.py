"""Running a program: no shell, no input, a deadline, bounded output, and never a wait for what cannot be killed."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from topocheck.process.spawn import end, spawn, wait

_LAST_WORDS_S = 0.2
"""How long to wait for the output of a program that has ended but whose own children keep the pipe."""


class Finished(NamedTuple):
    """What became of a program: its exit status (negative: the signal that ended it) and its output."""

    rc: int
    stdout: str
    stderr: str


class OutputTooLargeError(Exception):
    """The program wrote more than it may."""


def run(argv: Sequence[str], environment: Mapping[str, str], timeout_s: float, output_limit: int) -> Finished:
    """Run a program to its end; bad UTF-8 in its output becomes U+FFFD.

    The program gets its own session. It and what is left of its process group are killed at the end, when the time is
    up, when it writes more than `output_limit` bytes, and when this process ends.

    Raises:
        TimeoutError: it took longer than `timeout_s` seconds.
        OutputTooLargeError: it wrote too much.
        OSError: it could not be started.
    """
    process, lifeline = spawn(argv, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        streams = _collect(process, time.monotonic() + timeout_s, output_limit)
    finally:
        if not end(process, lifeline, ((signal.SIGKILL, _LAST_WORDS_S),) if process.returncode is None else ()):
            process.returncode = -signal.SIGKILL  # asleep in the kernel: nobody waits for it, not even at exit
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    return Finished(process.returncode, *(b"".join(s).decode("utf-8", "replace") for s in streams))


def _collect(process: subprocess.Popen[bytes], end: float, limit: int) -> tuple[list[bytes], list[bytes]]:
    """Read both streams until the program is done."""
    streams: tuple[list[bytes], list[bytes]] = ([], [])
    total = 0
    with selectors.DefaultSelector() as selector:
        for stream, parts in zip((process.stdout, process.stderr), streams, strict=True):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, parts)
        while selector.get_map():
            left = end - time.monotonic()
            if left <= 0:
                # A daemon that the program left behind may hold the pipe; the program itself is done.
                if process.poll() is None:
                    raise TimeoutError
                return streams
            for ready, _ in selector.select(min(left, _LAST_WORDS_S)):
                part = os.read(ready.fd, 1 << 16)
                total += len(part)
                if total > limit:
                    raise OutputTooLargeError
                if part:
                    ready.data.append(part)
                else:
                    selector.unregister(ready.fileobj)
            if process.poll() is not None:
                end = min(end, time.monotonic() + _LAST_WORDS_S)
    if wait(process, end - time.monotonic()) is None:
        raise TimeoutError
    return streams
