"""What a child does about its parent: ends with it, and sends it events."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from topocheck.process.lifeline import bind_myself, inherited

_PR_SET_PDEATHSIG = 1
"""Of linux/prctl.h; see prctl(2)."""
_SIGKILL = 9


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that comes about.

    A child of ours has a lifeline. One that a foreign launcher started has only PR_SET_PDEATHSIG, which ends it with
    the thread that started it: the launcher's, which does nothing else.
    """
    fd = inherited()
    if fd is None:
        deathsig()()
        return
    os.set_inheritable(fd, False)
    bind_myself(fd)


def deathsig() -> Callable[[], None]:
    """Return what asks the kernel to kill this process when the thread that started it ends."""
    import ctypes

    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return lambda: None

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)

    return ask


class EventPipe:
    """Writes events, one JSON object on a line each; a parent that is gone ends the child."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.row = ""

    def send(self, event: str, **fields: Any) -> None:
        """Write one event."""
        line = msgspec.json.encode({"event": event, "row": self.row} | fields) + b"\n"
        try:
            while line:
                line = line[os.write(self.fd, line) :]
        except BrokenPipeError:
            os._exit(1)

    def at(self, call: str) -> None:
        """Say which call comes next."""
        self.send("at", call=call)
