"""`topocheck watch` on a real pseudo-terminal: the table, its keys, and the terminal as it was at the end."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stubs.build import build_library
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HELP = "s sort by the next column"


class Terminal:
    """A program on a pseudo-terminal of 120 columns, whose foreground process it is."""

    def __init__(self, libraries: Path, *args: str) -> None:
        self.fd, child = pty.openpty()
        termios.tcsetwinsize(child, (40, 120))
        self.before = termios.tcgetattr(child)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(libraries), "TERM": "xterm"}
        environment.pop("OMPI_COMM_WORLD_RANK", None)
        # The new session takes its standard input as its terminal, as a login shell's program has it.
        code = "import fcntl,os,sys,termios; fcntl.ioctl(0,termios.TIOCSCTTY,0); os.execv(sys.argv[1], sys.argv[1:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, sys.executable, "-m", "topocheck", "watch", *args],
            env=environment,
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
        )
        self.child = child
        self.seen = ""

    def shows(self, pattern: str, *, since: int = 0) -> int:
        """Wait until the screen has shown a pattern after some place; return where it ended."""
        end = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.seen[since:])) is None:
            assert time.monotonic() < end, f"{pattern!r} was not shown:\n{self.seen[since:]}"
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    raw = os.read(self.fd, 1 << 16).decode("utf-8", "replace")
                except OSError:  # the program has ended, and with it the terminal's other end
                    raw = ""
                self.seen += _ESCAPES.sub("", raw)
        return since + found.end()

    def press(self, key: str) -> int:
        """Press a key; return the place of the screen's text."""
        os.write(self.fd, key.encode())
        return len(self.seen)

    def end(self) -> int:
        """Wait for the end and return the exit code."""
        limit = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < limit:
            if select.select([self.fd], [], [], 0.05)[0]:
                self.seen += _ESCAPES.sub("", os.read(self.fd, 1 << 16).decode("utf-8", "replace"))
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.fd)
        os.close(self.child)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library("nvml_stub.c", tmp_path_factory.mktemp("nvml"), "libnvidia-ml.so.1")


@pytest.fixture
def terminal(libraries: Path) -> Iterator[Terminal]:
    t = Terminal(libraries, "--interval", "0.2")
    yield t
    t.close()


def test_the_table_and_its_keys(terminal: Terminal) -> None:
    at = terminal.shows(HELP)
    assert re.search(r"device ▲ +clock +temp +load +link +GB/s +PCIe GB/s +procs +held back", terminal.seen)
    assert re.search(r"GPU0 +\d+ MHz.*\n.*GPU1 +\d+ MHz", terminal.seen)
    at = terminal.press("s")
    at = terminal.shows("device +clock ▼ +temp", since=at)
    at = terminal.press("r")
    at = terminal.shows("device +clock ▲ +temp", since=at)
    terminal.press("rssssssss")  # back to the first column, which is reversed next
    at = terminal.shows("device ▲ +clock", since=at)
    at = terminal.press("r")
    terminal.shows(r"device ▼(.|\n)*GPU1(.|\n)*GPU0", since=at)


def test_frozen_until_pressed_again(terminal: Terminal) -> None:
    terminal.shows(HELP)
    at = terminal.press("f")
    at = terminal.shows("FROZEN", since=at)
    # Some samples later the same second still stands there: nothing was drawn since.
    with pytest.raises(AssertionError):
        _shown_within(terminal, r"\d s", at, seconds=1.0)
    at = terminal.press("f")
    terminal.shows(HELP, since=at)


def _shown_within(terminal: Terminal, pattern: str, since: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([terminal.fd], [], [], 0.05)[0]:
            terminal.seen += _ESCAPES.sub("", os.read(terminal.fd, 1 << 16).decode("utf-8", "replace"))
    assert re.search(pattern, terminal.seen[since:])


@pytest.mark.parametrize("how", ["q", "Ctrl-C", "SIGTERM"])
def test_it_ends_judges_and_leaves_the_terminal_as_it_was(terminal: Terminal, how: str) -> None:
    at = terminal.shows(HELP)
    # While it runs, keys are not echoed and come one by one.
    assert not termios.tcgetattr(terminal.child)[3] & (termios.ECHO | termios.ICANON)
    if how == "SIGTERM":
        terminal.process.send_signal(signal.SIGTERM)
    else:
        terminal.press("q" if how == "q" else "\x03")
    terminal.shows(r"UNKNOWN: .+ by \d+ check", since=at)
    assert terminal.end() == 3
    assert termios.tcgetattr(terminal.child) == terminal.before


def test_arrow_keys_and_others_change_nothing(terminal: Terminal) -> None:
    at = terminal.shows(HELP)
    at = terminal.press("\x1b[Ax\xff")
    terminal.shows("device ▲", since=at)
    assert terminal.process.poll() is None


def test_a_pipe_gets_lines(libraries: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "topocheck", "watch", "--interval", "0.2", "--for", "0.4s"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(libraries)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "\x1b" not in done.stdout
    assert re.search(r"^ +0\.\d s  \d of 2 GPUs busy", done.stdout, re.M)
