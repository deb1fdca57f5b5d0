"""Forked children that stream to their parent, and may be left behind.

Imports as little as possible: the child that asks the driver is forked before anything else is loaded.
"""

from __future__ import annotations

import gc
import os
import sys
import time

from topocheck.process.lifeline import bind_myself

TYPE_CHECKING = False  # not from typing: loading it costs milliseconds before the driver is asked
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FORK_UNSAFE = ("torch", "pynvml", "cuda.bindings", "cupy")
_SIGKILL = 9
_PATIENCE_S = 0.5

_left: set[int] = set()
"""Workers not yet waited for."""


class Worker:
    """The parent's side of a child that streams: its process id, and the end of its pipe that is read here.

    The pipe does not block. `lifeline` is this end of what ends the child with this process.
    """

    __slots__ = ("lifeline", "pid", "pipe")

    def __init__(self, pid: int, pipe: int, lifeline: int) -> None:
        self.pid, self.pipe, self.lifeline = pid, pipe, lifeline
        _left.add(pid)

    def abandon(self) -> None:
        """Kill it and all it started; never waits. What sleeps in the kernel stays until it wakes, and holds nothing.

        It is not reaped here: see `reap`.
        """
        if self.pid in _left:
            for kill, target in ((os.killpg, self.pid), (os.kill, self.pid)):
                try:
                    kill(target, _SIGKILL)
                except OSError:
                    continue
        os.close(self.pipe)
        os.close(self.lifeline)


def reap(pid: int | None = None, patience_s: float = _PATIENCE_S) -> str:
    """Collect workers that have ended, waiting a moment for those just killed; return how `pid` ended.

    A process that ends closes its pipes first: how it ended is known only later, on a busy machine much later.
    """
    end = time.monotonic() + patience_s
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


def one_thread() -> bool:
    """Tell whether this process has one thread: a lock that another one holds during a fork is never released."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:  # no /proc here: threads that Python did not start cannot be seen
        import threading

        return threading.active_count() == 1


def fork_is_safe() -> bool:
    """Tell whether this process has one thread and no library that does not survive a fork."""
    if not sys.executable:
        return True
    return one_thread() and not any(m in sys.modules for m in _FORK_UNSAFE)


def fork(body: Callable[[int], None], keep: Sequence[int] = ()) -> Worker:
    """Fork a child that owns nothing of its parent but `keep`, runs `body(pipe)` and ends.

    Raises:
        OSError: no process or pipe can be had.
    """
    opened: list[int] = []
    mine: tuple[int, ...] = ()
    try:
        for _ in range(2):
            opened += os.pipe2(os.O_CLOEXEC)
        ours, theirs, life, lifeline = opened
        os.set_blocking(ours, False)
        worker = Worker(_forked(body, theirs, life, keep), ours, lifeline)
        mine = (ours, lifeline)
        return worker
    finally:
        for fd in opened:
            if fd not in mine:
                os.close(fd)


def _forked(body: Callable[[int], None], pipe: int, life: int, keep: Sequence[int]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            gc.freeze()  # so that no file object of the parent is closed here under a number that is now ours
            _forget_handlers()
            _new_session()
            bind_myself(life)
            detach([pipe, life, *keep])
            body(pipe)
            status = 0
        finally:
            os._exit(status)
    return pid


def _new_session() -> None:
    try:
        os.setsid()
    except OSError:  # already leads one
        return


def _forget_handlers() -> None:
    """Undo what the parent did about signals; nothing, where it has not even loaded the module."""
    if (signal := sys.modules.get("signal")) is not None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)


def _open_files() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:  # no /proc here
        return list(range(1024))


def detach(keep: Sequence[int]) -> None:
    """Close everything of the parent: its standard streams and its open files."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for fd in _open_files():
        if fd > 2 and fd not in keep:
            try:
                os.close(fd)
            except OSError:  # not open: the descriptor that listed the folder
                continue
