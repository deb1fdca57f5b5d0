"""Keys that somebody presses while a table is shown."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable
from signal import SIGINT

_LONGEST = 16
"""Bytes that one key sends: an arrow or function key is an escape sequence."""


class Keys:
    """Reads single keys of the terminal on standard input, until closed; nothing where it is none.

    Ctrl-C and the like stay signals. `q` ends the program as Ctrl-C does. Only a process in the foreground of its
    terminal may read it: one that was started with `&` would be stopped.

    Args:
        pressed: called with each key, in a thread of its own.
    """

    def __init__(self, pressed: Callable[[str], None]) -> None:
        self._pressed = pressed
        self._before: list[object] | None = None
        self._fd = -1
        try:
            if sys.stdin is None or not sys.stdin.isatty():
                return
            self._fd = sys.stdin.fileno()
            if os.tcgetpgrp(self._fd) != os.getpgrp():
                return
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd, termios.TCSADRAIN)
        except (OSError, ValueError, termios.error):
            self._before = None
            return
        self._end, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            ready, _, _ = select.select([self._fd, self._end], [], [])
            if self._end in ready:
                return
            try:
                text = os.read(self._fd, _LONGEST)
            except OSError:
                return
            if not text:
                return
            if text.startswith(b"\x1b"):
                continue  # no key of ours: the rest of its sequence is none either
            for key in text.decode("ascii", "ignore"):
                if key == "q":
                    os.kill(os.getpid(), SIGINT)
                    return
                self._pressed(key)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._before is None:
            return
        os.write(self._wake, b".")
        self._thread.join()
        os.close(self._wake)
        os.close(self._end)
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)  # type: ignore[arg-type]
        self._before = None
