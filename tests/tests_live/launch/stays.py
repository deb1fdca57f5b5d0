"""Starts two ranks that say their process number and stay: `... forked` or `... interpreters`."""

from __future__ import annotations

import os
import sys
import time

from topocheck.tests_live.launch.local import Seat, become, run_ranks, seat_here


def stay(seat: Seat) -> None:
    os.write(1, f"{os.getpid()}\n".encode())
    time.sleep(600)


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        stay(seat_here())
    elif sys.argv[1] == "forked":
        run_ranks(stay, 2)
    else:
        run_ranks(become("tests.tests_live.launch.stays", "rank"), 2)
