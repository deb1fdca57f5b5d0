"""Processes that belong together: forked from this one, waited for, and ended when one of them fails.

They end with this process, and stay in its process group, so that whoever ends that ends them too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import NoReturn

from topocheck.process.parent import deathsig

GRACE_S = 2.0
"""Seconds in which the others end by themselves once one has failed."""
TERM_S = 5.0
"""Seconds that the rest have to end after SIGTERM; then they are killed."""
KILL_S = 3.0
POLL_S = 0.02
_STARTER = "TOPOCHECK_STARTER"
"""Names the process that forked this one, once this is another program."""


def run_together(work: Callable[[int], None], count: int) -> dict[int, int | str]:
    """Fork `count` processes, each of which calls `work` with its number, and wait until all have ended.

    Returns:
        Where one ended with anything but 0: its number -> its exit code, or the number of the signal that ended it as a
        negative one; for those that had not ended GRACE_S later (they have been ended) `running` or what
        `process_state` says of them. Else nothing.
    """
    numbers: dict[int, int] = {}
    me = os.getpid()
    try:
        for number in range(count):
            pid = os.fork()
            if not pid:
                _be(work, number, me)
            numbers[pid] = number
        return _wait(numbers)
    finally:
        _end(numbers)


def become(argv: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Become another program, which calls `end_with_starter`; for the work of `run_together`."""
    os.execve(argv[0], argv, {**environment, _STARTER: str(os.getppid())})


def end_with_starter() -> None:
    """Let this program, which a process of `run_together` has become, end with the process that forked it."""
    _end_with(int(os.environ.pop(_STARTER)))


def process_state(pid: int) -> str:
    """Return `stopped by a signal`, `asleep in the kernel`, `gone` or such of a process; empty where it just runs."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "gone"
    letter = text.rpartition(")")[2].split()[0]
    return {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "asleep in the kernel", "Z": "gone"}.get(
        letter, ""
    )


def _end_with(starter: int) -> None:
    deathsig()()
    if os.getppid() != starter:
        os._exit(1)


def _be(work: Callable[[int], None], number: int, starter: int) -> NoReturn:
    """Be one of them to its end."""
    code = 1
    try:
        _end_with(starter)
        work(number)
        code = 0
    except BaseException:  # noqa: BLE001 - it must never return into the code of who forked it
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _wait(numbers: dict[int, int]) -> dict[int, int | str]:
    """Wait for all; `numbers` (process -> number) keeps those that have not ended."""
    failures: dict[int, int | str] = {}
    while numbers and not failures:
        failures |= _reap(numbers, 0) or {}
    end = monotonic() + GRACE_S
    while numbers and monotonic() < end:
        ended = _reap(numbers, os.WNOHANG)
        failures |= ended or {}
        if ended is None:
            sleep(POLL_S)
    return failures | {number: process_state(pid) or "running" for pid, number in numbers.items()}


def _reap(numbers: dict[int, int], flags: int) -> dict[int, int] | None:
    """Take note of one that has ended and return its failure, empty where it did well; None where none has."""
    pid, status = os.waitpid(-1, flags)
    if not pid:
        return None
    number = numbers.pop(pid, None)
    code = os.waitstatus_to_exitcode(status)
    if number is None or code == 0:
        return {}
    return {number: code}


def _end(numbers: dict[int, int]) -> None:
    """End those that are left; one that sleeps in the kernel stays until the kernel lets it die."""
    for sig, limit in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
        for pid in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)
                os.kill(pid, signal.SIGCONT)
        end = monotonic() + limit
        while numbers and monotonic() < end:
            if _reap(numbers, os.WNOHANG) is None:
                sleep(POLL_S)
