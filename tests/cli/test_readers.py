"""The exit code is that of the result, whatever becomes of the reader: gone early, gone late, or never there."""

from __future__ import annotations

import array
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from tests.support.snapshots import record, write_snapshot
from tests.support.waiting import PATIENCE_S, until
from topocheck.cli.main import main
from topocheck.host.base import HostError
from topocheck.host.recording import snapshot
from topocheck.model.base import Reason
from topocheck.probes.registry import PROBE_SET_VERSION
from topocheck.render.formats import FORMATS

HEALTHY, WARNING, FAILING, UNKNOWN = "h100_x2_vm", "h22_mixed_gpus", "driver_not_loaded", "unknown"
BROKEN_LOG = (
    "n:1:2 [0] misc/socket.cc:480 NCCL WARN socketStartConnect: Connect to 10.0.0.2<1> failed : No route to host\n"
)
CODES = {HEALTHY: 0, WARNING: 0, FAILING: 1, UNKNOWN: 3}


@pytest.fixture(scope="module")
def snaps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Recordings of four machines; on the unknown one, nobody may see the PCI tree."""
    folder = tmp_path_factory.mktemp("snaps")
    paths = {name: str(write_snapshot(folder / f"{name}.snap", name)) for name in (HEALTHY, WARNING, FAILING)}
    answers = record(HEALTHY) | {"list:/sys/bus/pci/devices": HostError(Reason.DENIED, "EACCES")}
    paths[UNKNOWN] = str(folder / "unknown.snap")
    snapshot.save(paths[UNKNOWN], answers, probe_set=PROBE_SET_VERSION)
    return paths


def start(*argv: str, **more: Any) -> subprocess.Popen[bytes]:
    """Start topocheck with its standard output and standard error as pipes."""
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-m", "topocheck", *argv], **(options | more))


def leave_at_once(p: subprocess.Popen[bytes]) -> None:
    assert p.stdout is not None
    p.stdout.close()


def leave_after_a_line(p: subprocess.Popen[bytes]) -> None:
    assert p.stdout is not None
    p.stdout.readline()
    p.stdout.close()


def never_read(p: subprocess.Popen[bytes]) -> None:
    """Whatever the pipe does not hold waits until the reader is gone, which is once something lies in it."""
    assert p.stdout is not None
    unread = array.array("i", [0])
    stdout = p.stdout.fileno()
    until(lambda: p.poll() is not None or bool(fcntl.ioctl(stdout, termios.FIONREAD, unread) or unread[0]))
    leave_at_once(p)


READERS = (leave_at_once, leave_after_a_line, never_read)


def ended(p: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Return exit code and standard error."""
    assert p.stderr is not None
    try:
        error = p.stderr.read()
        return p.wait(PATIENCE_S), error
    finally:
        p.kill()
        p.wait()
        for stream in (p.stdout, p.stderr):
            if stream is not None:
                stream.close()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", CODES)
def test_check_says_by_its_code_what_it_found(snaps: dict[str, str], name: str, reader: Any) -> None:
    p = start("check", "--from", snaps[name])
    reader(p)
    assert ended(p) == (CODES[name], b"")


@pytest.mark.parametrize("format_", sorted(FORMATS))
def test_every_format_keeps_its_code(snaps: dict[str, str], format_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["check", "--from", snaps[FAILING], "--format", format_]
    monkeypatch.setattr(sys, "argv", ["topocheck", *argv])
    with pytest.raises(SystemExit) as heard:
        main()
    p = start(*argv)
    leave_at_once(p)
    assert ended(p) == (heard.value.code or 0, b"")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("report --from HEALTHY", 0),
        ("report --from FAILING --format json", 0),
        ("diff HEALTHY HEALTHY", 0),
        ("diff HEALTHY FAILING", 1),
        ("fleet HEALTHY HEALTHY FAILING", 1),
        ("nccl predict --from HEALTHY", 0),
        ("nccl topo --from HEALTHY", 0),
        ("placement --from HEALTHY", 0),
        ("nccl log LOG", 1),
        ("explain list", 0),
        ("pcie 5 16", 0),
        ("schema report", 0),
        ("--help", 0),
        ("check --help", 0),
        ("--version", 0),
    ],
)
def test_every_command_keeps_its_code(snaps: dict[str, str], tmp_path: Path, command: str, code: int) -> None:
    log = tmp_path / "nccl.log"
    log.write_text("n:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n" + BROKEN_LOG)
    names = {"HEALTHY": snaps[HEALTHY], "FAILING": snaps[FAILING], "LOG": str(log)}
    p = start(*(names.get(a, a) for a in command.split()))
    leave_at_once(p)
    assert ended(p) == (code, b"")


@pytest.mark.parametrize("name", CODES)
def test_closed_streams(snaps: dict[str, str], name: str) -> None:
    """Nothing may take the place of standard output: no recording, no pipe to a child."""
    line = f"exec {sys.executable} -m topocheck check --from {snaps[name]} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", line], timeout=PATIENCE_S, check=False).returncode == CODES[name]


def test_nobody_reads_standard_error_either(snaps: dict[str, str], tmp_path: Path) -> None:
    """An error that nobody hears still has its exit code."""
    p = start("check", "--from", str(tmp_path / "none.snap"), stderr=subprocess.STDOUT)
    leave_at_once(p)
    assert p.wait(PATIENCE_S) == 2


@pytest.mark.parametrize("name", CODES)
def test_the_reader_of_a_named_pipe_leaves(snaps: dict[str, str], tmp_path: Path, name: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    ours = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    p = start("check", "--from", snaps[name], "--format", "json", "-o", str(fifo))
    try:
        written = select.poll()
        written.register(ours, select.POLLIN)
        assert written.poll(1000 * int(PATIENCE_S))
    finally:
        os.close(ours)
    assert ended(p) == (CODES[name], b"")


def test_sigpipe_is_ignored_at_any_moment(snaps: dict[str, str]) -> None:
    p = start("check", "--from", snaps[FAILING])
    assert p.stdout is not None
    p.stdout.readline()  # Python has started
    for _ in range(5):
        p.send_signal(signal.SIGPIPE)
    leave_at_once(p)
    assert ended(p) == (1, b"")


def test_a_pipe_that_somebody_made_non_blocking(snaps: dict[str, str]) -> None:
    """More than a pipe holds (64 KiB, pipe(7)) waits for its reader and arrives whole."""
    whole = start("check", "--from", snaps[FAILING], "--format", "json").communicate(timeout=PATIENCE_S)[0]
    theirs = os.pipe()
    os.set_blocking(theirs[1], False)
    p = start("report", "--from", snaps[FAILING], "--format", "json", stdout=theirs[1])
    os.close(theirs[1])
    with os.fdopen(theirs[0], "rb") as pipe:
        said = pipe.read()
    assert ended(p) == (0, b"")
    assert len(said) > (1 << 16) > 0
    assert said.endswith(b"}\n")
    assert whole.endswith(b"}\n")


@pytest.mark.parametrize("command", ["check --from S", "report --from S", "pcie 5 16", "--version"])
def test_a_full_disk_is_still_an_error(snaps: dict[str, str], command: str) -> None:
    argv = [snaps[HEALTHY] if a == "S" else a for a in command.split()]
    with open("/dev/full", "wb") as full:
        code, error = ended(start(*argv, stdout=full))
    assert code == 2
    assert error.count(b"\n") == 1
    assert b"No space left on device" in error
