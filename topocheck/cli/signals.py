"""Signals that ask a measurement to stop."""

from __future__ import annotations

import os
import signal

ASK_TO_STOP = (signal.SIGTERM, signal.SIGHUP)


def stop_cleanly(*, launched: bool = False) -> None:
    """Take SIGTERM and SIGHUP as Ctrl-C is taken, so that ranks are ended and temporary folders removed.

    A signal that is ignored already stays so: `nohup` ignores SIGHUP for its command.

    Args:
        launched: this process is a rank of torchrun, srun or mpirun, which end all ranks when one of them ends.
    """
    why = (
        "; a launcher sends it to all ranks where one of them ended or was killed: it may say which" if launched else ""
    )

    def interrupt(number: int, frame: object) -> None:
        # A terminal that goes away sends SIGHUP more than once: the next must not interrupt the clearing away.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # Not by print: the signal may have come while standard error was being written.
        os.write(2, f"topocheck: stopped by {signal.Signals(number).name}{why}\n".encode())
        raise KeyboardInterrupt

    for number in ASK_TO_STOP:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
