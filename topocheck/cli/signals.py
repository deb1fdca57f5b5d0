"""Signals that ask a measurement to stop."""

from __future__ import annotations

import signal

ASK_TO_STOP = (signal.SIGTERM, signal.SIGHUP)


def stop_cleanly() -> None:
    """Take SIGTERM and SIGHUP as Ctrl-C is taken, so that ranks are ended and temporary folders removed.

    A signal that is ignored already stays so: `nohup` ignores SIGHUP for its command.
    """
    for number in ASK_TO_STOP:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    # A terminal that goes away sends SIGHUP more than once: the next must not interrupt the clearing away.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise KeyboardInterrupt
