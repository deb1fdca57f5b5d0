"""Child processes that may be left behind: started by fork, or as a fresh interpreter where fork is not safe."""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import sys
import time
from functools import partial

import msgspec

from topocheck.host.early import fork, fork_is_safe, piped
from topocheck.host.worker import JOB_FD, PIPE_FD, Job, run_job

_left: set[int] = set()
"""Children not yet waited for."""
_PATIENCE_S = 0.5


class Child(msgspec.Struct):
    """One child: its process id and the end of its pipe that is read here (not blocking)."""

    pid: int
    pipe: int

    @classmethod
    def start(cls, job: Job) -> Child:
        """Start a child that does `job`.

        Raises:
            OSError: no process or pipe can be had.
            Exception: the job cannot be pickled (fresh interpreter only).
        """
        if fork_is_safe():
            return cls.adopt(*piped(partial(fork, partial(run_job, job))))
        return cls.adopt(*piped(partial(_spawn, job)))

    @classmethod
    def adopt(cls, pid: int, pipe: int) -> Child:
        """Take over a child that was started elsewhere, with the reading end of its pipe."""
        _left.add(pid)
        return cls(pid, pipe)


def _spawn(job: Job, pipe: int) -> int:
    code = f"import sys; sys.path[:] = {sys.path!r}; from topocheck.host.worker import spawned_main; spawned_main()"
    with open(os.memfd_create("topocheck-job"), "wb") as file:
        file.write(pickle.dumps(job))
        file.flush()
        # Both numbers moved out of the way first, so that neither overwrites the other in the child.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (pipe, file.fileno())]
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", code],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
                (os.POSIX_SPAWN_DUP2, high[0], PIPE_FD),
                (os.POSIX_SPAWN_DUP2, high[1], JOB_FD),
            ],
        )
    finally:
        for fd in high:
            os.close(fd)


def abandon(child: Child) -> None:
    """Close the pipe and send SIGKILL; never waits. A child in an uninterruptible sleep stays until it wakes."""
    os.close(child.pipe)
    if child.pid in _left:
        try:
            os.kill(child.pid, signal.SIGKILL)
        except OSError:
            return


def reap(pid: int | None = None) -> str:
    """Collect children that have ended, waiting a moment for those just killed; return how `pid` ended."""
    end = time.monotonic() + _PATIENCE_S
    how = "unknown"
    while True:
        for left in [pid] if pid is not None else list(_left):
            try:
                done, code = os.waitpid(left, os.WNOHANG)
            except OSError:  # somebody else collected it
                _left.discard(left)
                continue
            if done:
                _left.discard(left)
                code = os.waitstatus_to_exitcode(code)
                how = f"signal {-code}" if code < 0 else f"exit status {code}"
        if (pid is None and not _left) or (pid is not None and pid not in _left) or time.monotonic() > end:
            return how
        time.sleep(0.002)
