"""Signals that ask a measurement to stop."""

from __future__ import annotations

import os
import signal
from time import monotonic

ASK_TO_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_S = 1.0
"""A terminal and a launcher often send the same signal to the same process: within this time it is one request."""

_asked: list[int] = []
"""The signal that asked this process to stop."""


def exit_code() -> int:
    """Return the exit code of a command that was asked to stop: 128 and the signal's number, SIGINT's by default."""
    return 128 + (_asked[0] if _asked else signal.SIGINT)


def stop_cleanly(*, launched: bool = False) -> None:
    """Take SIGINT, SIGTERM and SIGHUP as a KeyboardInterrupt, so that ranks are ended and temporary folders removed.

    Who asks again more than a second later does not wait for that. A signal that is ignored already stays so: `nohup`
    ignores SIGHUP for its command.

    Args:
        launched: this process is a rank of torchrun, srun or mpirun, which end all ranks when one of them ends.
    """
    why = (
        "; a launcher sends it to all ranks where one of them ended or was killed: it may say which" if launched else ""
    )
    asked: list[float] = []
    _asked.clear()

    def interrupt(number: int, frame: object) -> None:
        if asked:
            if monotonic() - asked[0] > _AGAIN_S:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        asked.append(monotonic())
        _asked[:] = [number]
        if number != signal.SIGINT:
            # Not by print: the signal may have come while standard error was being written.
            os.write(2, f"topocheck: stopped by {signal.Signals(number).name}{why}\n".encode())
        raise KeyboardInterrupt

    for number in ASK_TO_STOP:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
