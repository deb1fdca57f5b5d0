"""Finding the processes of a run, and waiting for what they do without guessing how long it takes."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from tests.support.waiting import until

MARKER = "TOPOCHECK_TEST_MARKER"
GONE_S = 15.0
"""The kernel ends them in milliseconds. Less than the twenty seconds after which a child's own alarm would."""


def runs(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and that nobody has collected yet does not."""
    try:
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")
    except OSError:
        return False


def children() -> set[int]:
    """Return the processes whose parent this one is, ended and not collected ones too."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(name))
    return found


class Family:
    """All processes that carry a marker in their environment: those of one run, whatever became of their parents."""

    def __init__(self) -> None:
        self.marker = uuid.uuid4().hex
        self.environment = {**os.environ, MARKER: self.marker}

    def pids(self) -> set[int]:
        """Return the processes of it that run now."""
        mark = f"{MARKER}={self.marker}\0".encode()
        found = set()
        for name in os.listdir("/proc"):
            if name.isdecimal():
                try:
                    environment = Path(f"/proc/{name}/environ").read_bytes() + b"\0"
                except OSError:
                    continue
                if mark in environment and runs(int(name)):
                    found.add(int(name))
        return found

    def wait_until_gone(self) -> None:
        """Wait until none of it is left."""
        left = [_command(p) for p in self.pids()]
        until(lambda: not self.pids(), f"left behind: {left}", limit_s=GONE_S)


def _command(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return f"{pid}, gone by now"
    return f"{pid} {command.decode(errors='replace')}"
