"""Signals that ask a measurement to stop."""

from __future__ import annotations

import os
import signal

ASK_TO_STOP = (signal.SIGTERM, signal.SIGHUP)
LAUNCHED = ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""Variables by which a launcher shows that this process is one rank of several."""


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
    text = f"topocheck: stopped by {signal.Signals(number).name}"
    if any(name in os.environ for name in LAUNCHED):
        text += "; a launcher sends it to all ranks where one of them ended or was killed: it may say which"
    # Not by print: the signal may have come while standard error was being written.
    os.write(2, f"{text}\n".encode())
    raise KeyboardInterrupt
