"""A pipe that ends a child when its parent ends, however the parent ends.

The parent holds the writing end and never writes. The child holds the reading end, and the kernel has been asked to
send SIGKILL to its process group when something happens there (fcntl(2), F_SETSIG and F_SETOWN): the only thing that
ever happens is that the parent's end is closed, by the parent or by the kernel. Neither a thread nor the cooperation
of the child is needed. PR_SET_PDEATHSIG alone would not do: it belongs to the thread that started the child, it
reaches only the child itself, and a setuid program clears it.

Imports as little as possible: the child that asks the driver is forked before anything else is loaded.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat

VARIABLE = "TOPOCHECK_LIFELINE"
"""Names the reading end in the environment of a child of ours, as `descriptor:inode`."""
_SIGKILL = 9


def bind(fd: int, owner: int) -> None:
    """Have the kernel kill `owner`, a process id or a negative process group, when the writing end of `fd` closes.

    Raises:
        OSError: `fd` is no pipe, or the owner is gone.
    """
    fcntl.fcntl(fd, fcntl.F_SETSIG, _SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETOWN, owner)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


def bind_myself(fd: int) -> None:
    """Bind this process, and its process group where it leads one; end it at once where the parent is already gone."""
    me = os.getpid()
    try:
        bind(fd, -me if os.getpgrp() == me else me)
        poll = select.poll()
        poll.register(fd, 0)  # a hang-up is always reported
        gone = bool(poll.poll(0))
    except OSError:
        return
    if gone:
        os._exit(1)


def named(fd: int) -> str:
    """Return what VARIABLE says of a reading end."""
    return f"{fd}:{os.fstat(fd).st_ino}"


def inherited() -> int | None:
    """Return the reading end that the environment names, where its descriptor is still the pipe that was meant.

    A program in between hands the variable on, but not the descriptor: its number may mean another file by then.
    """
    fd, _, inode = os.environ.pop(VARIABLE, "").partition(":")
    try:
        status = os.fstat(int(fd))
        return int(fd) if stat.S_ISFIFO(status.st_mode) and status.st_ino == int(inode) else None
    except (ValueError, OSError):
        return None
