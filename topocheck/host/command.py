"""Running a program: no shell, no input, a deadline, bounded output, and never a wait for what cannot be killed."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from topocheck.host.base import HostError
from topocheck.model.base import Reason

OUTPUT_LIMIT = 8 << 20
_PR_SET_PDEATHSIG = 1
"""Of linux/prctl.h; see prctl(2)."""
_LAST_WORDS_S = 0.2
"""How long to wait for the output of a program that has ended but whose own children keep the pipe."""


def run_command(argv: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """Run `argv` and return its `rc`, `stdout` and `stderr` (text; bad UTF-8 becomes U+FFFD).

    The program gets its own session and is killed with its whole process group when the time is up or when it
    writes more than OUTPUT_LIMIT bytes; the kernel kills it where this process is killed first.

    Raises:
        HostError: no such program, it may not be run, it took too long, or it wrote too much.
        OSError: it could not be started for another reason.
    """
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"
    program = shutil.which(argv[0], path=path) if argv else None
    if program is None:
        raise HostError(Reason.ABSENT, f"{argv[0] if argv else 'an empty command'}: no such program")
    env = {k: v for k, v in os.environ.items() if k != "LANGUAGE" and not k.startswith("LC_")}
    process = subprocess.Popen(
        [program, *argv[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**env, "LC_ALL": "C", "LANG": "C"},
        start_new_session=True,
        bufsize=0,
        preexec_fn=_end_with(os.getpid()),
    )
    try:
        streams, why = _collect(process, time.monotonic() + timeout_s)
    finally:
        _end(process)
    if why == "time":
        raise HostError(Reason.TIMED_OUT, f"{argv[0]} was not done within {timeout_s:.3g} s")
    if why == "size":
        raise HostError(Reason.UNSUPPORTED, f"{argv[0]} wrote more than {OUTPUT_LIMIT >> 20} MiB")
    stdout, stderr = (b"".join(s).decode("utf-8", "replace") for s in streams)
    return {"rc": process.returncode, "stdout": stdout, "stderr": stderr}


def _end_with(parent: int) -> Callable[[], None]:
    """Return what a new process does before it becomes the program: ask to be killed when its parent is gone."""
    import ctypes  # here: a report that runs no command does without

    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # gone before it was asked
            os._exit(1)

    return ask


def _collect(process: subprocess.Popen[bytes], end: float) -> tuple[tuple[list[bytes], list[bytes]], str]:
    """Read both streams until the program is done. The second value is "" or what went wrong: time, size."""
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
                return streams, "" if process.poll() is not None else "time"
            for ready, _ in selector.select(min(left, _LAST_WORDS_S)):
                part = os.read(ready.fd, 1 << 16)
                total += len(part)
                if total > OUTPUT_LIMIT:
                    return streams, "size"
                if part:
                    ready.data.append(part)
                else:
                    selector.unregister(ready.fileobj)
            if process.poll() is not None:
                end = min(end, time.monotonic() + _LAST_WORDS_S)
    return streams, "" if _wait(process, end - time.monotonic()) else "time"


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            process.kill()
        if not _wait(process, _LAST_WORDS_S):
            process.returncode = -signal.SIGKILL  # stuck in the kernel: leave it, and let nobody wait for it
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
