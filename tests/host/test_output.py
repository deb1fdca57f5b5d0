"""The writer of files: what it writes to, what it refuses, and what another user or a full disk makes of it."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Ran, run
from tests.conftest import require_readable_by_others
from topocheck.cli.check import check
from topocheck.cli.common import check_writable
from topocheck.cli.emit import emit
from topocheck.cli.report import report
from topocheck.cli.snapshot import save
from topocheck.host import output
from topocheck.host.output import GrowingFile, write_file
from topocheck.model.base import InputError, OutputError

SNAPSHOT = str(Path(__file__).parents[1] / "recordings" / "h100_x2_vm.snap")
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def monitored(*args: object) -> Ran:
    """Run check for a monitor: a file that cannot be written is reported of, and changes nothing of the verdict."""
    ran = run(check, "--from", SNAPSHOT, *args)
    assert ran.code == 0
    return Ran(2, "", ran.out) if "topocheck: " in ran.out else ran


WRITERS: dict[str, Callable[[object], Ran]] = {
    "report -o": lambda path: run(report, "--from", SNAPSHOT, "--format", "json", "-o", path),
    "check --metrics": lambda path: monitored("--format", "npd", "--metrics", path),
    "check -o": lambda path: monitored("--format", "prometheus", "-o", path),
    "check --write-policy": lambda path: run(check, "--from", SNAPSHOT, "--write-policy", path),
    "emit -o": lambda path: run(emit, "numactl", SNAPSHOT, "-o", path),
    "snapshot save": lambda path: run(save, "--from", SNAPSHOT, path),
}
writers = pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS.keys())


def cli(*args: object, **more: Any) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-m", "topocheck", *map(str, args)]
    return subprocess.run(argv, capture_output=True, timeout=120, check=False, **more)


@writers
def test_a_device_is_written_to_and_stays_a_device(tmp_path: Path, writer: Callable[[object], Ran]) -> None:
    null = tmp_path / "null"
    try:
        os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.close(os.open(null, os.O_WRONLY))
    except OSError as e:
        pytest.skip(f"no device can be made here: {e}")
    assert writer(null).code == 0
    assert stat.S_ISCHR(null.stat().st_mode)
    assert os.listdir(tmp_path) == ["null"]


@writers
def test_a_fifo_is_written_to_and_stays_a_fifo(tmp_path: Path, writer: Callable[[object], Ran]) -> None:
    fifo, read = tmp_path / "fifo", list[bytes]()
    os.mkfifo(fifo)
    end = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    keeps_it_open = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(end, True)

    def reader() -> None:
        with os.fdopen(end, "rb") as f:
            read.append(f.read())

    thread = threading.Thread(target=reader)
    thread.start()
    ran = writer(fifo)
    os.close(keeps_it_open)
    thread.join(60)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert ran.code == 0
    assert read[0]


@pytest.mark.parametrize("command", [("report", "--from", SNAPSHOT, "-o"), ("snapshot", "save", "--from", SNAPSHOT)])
def test_a_fifo_without_a_reader_does_not_hang(tmp_path: Path, command: tuple[str, ...]) -> None:
    os.mkfifo(tmp_path / "fifo")
    said = cli(*command, tmp_path / "fifo")
    assert (said.returncode, said.stdout) == (2, b"")
    assert said.stderr.count(b"\n") == 1
    assert b"no process reads from it" in said.stderr


def test_a_recording_to_a_fifo_needs_its_reader_and_leaves_the_fifo(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(OutputError, match="no process reads from it; start its reader first"):
        GrowingFile(fifo)
    end = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    growing = GrowingFile(fifo)
    growing.write(b"one\n")
    growing.close()
    assert os.read(end, 9) == b"one\n"
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    os.close(end)


def test_a_reader_that_takes_nothing_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PATIENCE_S", 0.05)
    os.mkfifo(tmp_path / "fifo")
    end = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OutputError, match="took nothing"):
        write_file(tmp_path / "fifo", bytes(1 << 21))
    os.close(end)


@writers
@pytest.mark.parametrize("target", ["kept", "absent"])
def test_a_link_is_not_followed(tmp_path: Path, writer: Callable[[object], Ran], target: str) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "link").symlink_to(target)
    ran = writer(tmp_path / "link")
    assert ran.code == 2
    assert "link: is a symbolic link to" in ran.error
    assert target in ran.error
    assert (tmp_path / "kept").read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["kept", "link"]
    assert os.readlink(tmp_path / "link") == target


@pytest.mark.parametrize("kind", ["folder", "socket", "block device"])
def test_other_kinds_are_refused(tmp_path: Path, kind: str) -> None:
    import socket

    path = tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with contextlib.chdir(tmp_path), socket.socket(socket.AF_UNIX) as s:
            s.bind("x")
    else:
        try:
            os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(7, 200))
        except OSError as e:
            pytest.skip(f"no device can be made here: {e}")
    for ran in (WRITERS["report -o"](path), WRITERS["snapshot save"](path)):
        assert ran.code == 2
        assert f"is a {kind}; expected a file" in ran.error
    with pytest.raises(InputError, match=f"--save .*: is a {kind}; expected a file"):
        check_writable(path, "--save")


@pytest.mark.service
@pytest.mark.parametrize("old", ["", "old"])
@pytest.mark.parametrize(
    "command",
    [
        ("report", "--from", SNAPSHOT, "--format", "json", "-o"),
        ("check", "--from", SNAPSHOT, "--format", "junit", "-o"),
        ("check", "--from", SNAPSHOT, "--metrics"),
        ("snapshot", "save", "--from", SNAPSHOT),
    ],
)
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, command: tuple[str, ...], old: str) -> None:
    prepared = f"mount -t tmpfs -o size=4k none {tmp_path}" + (f" && printf {old} >{tmp_path}/x" if old else "")
    can = subprocess.run(["unshare", "-m", "sh", "-c", prepared], capture_output=True, check=False)
    if can.returncode:
        pytest.skip(f"no file system of its own can be mounted here: {can.stderr.decode()}")
    if not old:
        # An empty tmpfs has one page for the file, which a short result would fit into.
        prepared += f" && head -c 4096 /dev/zero >{tmp_path}/y"
    words = " ".join([sys.executable, "-m", "topocheck", *command, f"{tmp_path}/x"])
    script = f'{prepared} && {{ {words}; echo "rc $?"; cd {tmp_path}; ls -A; cat x 2>/dev/null; }}'
    said = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert "No space left on device" in said.stderr
    assert said.stderr.count("\n") == 1
    # Metrics are reported of and change nothing of the verdict, which is 0.
    _, _, left = said.stdout.partition("rc 0\n" if "--metrics" in command else "rc 2\n")
    assert left == ("x\nold" if old else "y\n")


@pytest.mark.parametrize("command", [("report", "--from", SNAPSHOT, "-o"), ("snapshot", "save", "--from", SNAPSHOT)])
def test_a_limit_on_the_size_leaves_nothing_behind(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "x").write_text("old")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))

    said = cli(*command, tmp_path / "x", preexec_fn=limit, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert said.returncode == 2
    assert said.stderr.endswith(b"cannot be written: File too large\n")
    assert (tmp_path / "x").read_text() == "old"
    assert os.listdir(tmp_path) == ["x"]


UNNAMED = pytest.mark.parametrize("unnamed", [True, False])


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, unnamed: bool) -> None:
    """A file system with or without files that have no name (O_TMPFILE)."""
    real = os.open

    def without(path: Any, flags: int, *args: Any, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, *args, **more)

    if not unnamed:
        monkeypatch.setattr(os, "open", without)


@UNNAMED
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT, errno.ENOSPC, errno.EFBIG])
@pytest.mark.parametrize("call", ["write", "fchmod", "rename"])
def test_every_error_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str) -> None:
    (tmp_path / "x").write_text("old")

    def bad(*args: object, **more: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, bad)
    with pytest.raises(OutputError) as caught:
        write_file(tmp_path / "x", b"new")
    monkeypatch.undo()
    assert str(caught.value) == f"{tmp_path}/x: cannot be written: {os.strerror(number)}"
    assert (tmp_path / "x").read_text() == "old"
    assert os.listdir(tmp_path) == ["x"]


@UNNAMED
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("before", "umask", "after"),
    [
        (None, 0o022, 0o644),
        (None, 0o077, 0o600),
        (None, 0, 0o644),
        (0o640, 0, 0o640),
        (0o660, 0o077, 0o660),
        (0o666, 0, 0o664),
        (0o4755, 0, 0o755),
    ],
)
def test_mode(tmp_path: Path, before: int | None, umask: int, after: int) -> None:
    path = tmp_path / "x"
    if before is not None:
        path.touch()
        path.chmod(before)
    old = os.umask(umask)
    try:
        write_file(path, b"new")
    finally:
        assert os.umask(old) == umask
    assert stat.S_IMODE(path.stat().st_mode) == after
    assert path.read_bytes() == b"new"


@needs_root
def test_a_file_of_another_user_gives_no_mode(tmp_path: Path) -> None:
    """Who made the file first would else choose who may read what root writes to it."""
    path = tmp_path / "x"
    path.touch()
    path.chmod(0o666)
    os.chown(path, NOBODY, NOBODY)
    old = os.umask(0o077)
    try:
        write_file(path, b"new")
    finally:
        os.umask(old)
    assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (0, 0o600)
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o666)
    assert WRITERS["snapshot save"](path).code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("redirect", ["-o /dev/stdout", "-o /dev/fd/3 3>&1", "-o /proc/self/fd/3 3>&1"])
@pytest.mark.parametrize("end", ["| cat", ""])
def test_streams_that_are_open_are_written_to(tmp_path: Path, redirect: str, end: str) -> None:
    words = f"{sys.executable} -m topocheck report --from {SNAPSHOT} {redirect} {end}"
    with (tmp_path / "out").open("wb") as f:
        subprocess.run(["bash", "-c", words], stdout=f, stderr=subprocess.DEVNULL, timeout=120, check=True)
    assert (tmp_path / "out").read_text() == run(report, "--from", SNAPSHOT).out
    assert os.listdir(tmp_path) == ["out"]


def test_a_stream_that_is_closed_or_ours_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "ours").open("wb") as f, pytest.raises(OutputError, match="Bad file descriptor"):
        write_file(f"/dev/fd/{f.fileno()}", b"x")
    for words in ("-o /dev/stdout >&-", "-o /dev/fd/77", "-o /dev/stdin </dev/null"):
        said = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m topocheck report --from {SNAPSHOT} {words}"],
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert said.returncode == 2, words
        assert said.stderr.count(b"\n") == 1


@pytest.mark.parametrize("how", ["</dev/null 1<&0", "512 bytes", ">/dev/full"])
@pytest.mark.parametrize("words", ["--help", "--version", f"report --from {SNAPSHOT}", "explain list"])
def test_standard_output_that_cannot_be_written_is_one_line(tmp_path: Path, how: str, words: str) -> None:
    if how == "512 bytes" and words == "--version":
        pytest.skip("fits")
    line = f"exec {sys.executable} -m topocheck {words}"
    line = f"ulimit -f 0; {line} >{tmp_path}/x" if how == "512 bytes" else f"{line} {how}"
    said = subprocess.run(
        ["bash", "-c", line],
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert said.returncode == 2
    assert said.stderr.startswith(b"topocheck: standard output cannot be written: ")
    assert said.stderr.count(b"\n") == 1


ENDLESS = """
import os, signal, sys
from topocheck.host.output import write_file
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have it ignored
print("ready", flush=True)
while True:
    for byte in (b"a", b"b"):
        write_file(sys.argv[1], byte * (1 << 20))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupt_leaves_a_whole_file_and_nothing_else(tmp_path: Path, number: signal.Signals) -> None:
    for pause_ms in range(0, 60, 5):
        argv = [sys.executable, "-c", ENDLESS, str(tmp_path / "x")]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as p:
            try:
                assert p.stdout is not None
                p.stdout.readline()
                threading.Event().wait(pause_ms / 1000)  # whenever it comes: what is asserted holds at every moment
                p.send_signal(number)
                assert p.wait(60) != 0
            finally:
                p.kill()
        assert os.listdir(tmp_path) in ([], ["x"])
        if (tmp_path / "x").exists():
            assert (tmp_path / "x").read_bytes() in (b"a" * (1 << 20), b"b" * (1 << 20))


@needs_root
@pytest.mark.parametrize("uid", [0, NOBODY])
def test_a_mounted_file_is_written_in_place(tmp_path: Path, uid: int) -> None:
    """Kubernetes mounts a file of its own at /dev/termination-log, in a folder that the container cannot write to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as open_to_all:
        folder = Path(open_to_all) / "dev"
        folder.mkdir()
        log, behind = folder / "termination-log", Path(open_to_all) / "behind"
        log.touch()
        behind.write_text("longer than what comes now\n" * 9)
        behind.chmod(0o666)
        os.chmod(open_to_all, 0o755)
        code = f"from topocheck.host.output import *; check_file({str(log)!r}); write_file({str(log)!r}, b'new')"
        script = (
            'mount --bind "$1" "$2" && shift 2 && exec setpriv --reuid "$1" --regid "$1" --clear-groups "$2" -c "$3"'
        )
        argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(behind), str(log), str(uid), sys.executable, code]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        if "unshare failed" in done.stderr or "mount:" in done.stderr:
            pytest.skip("no mount namespaces here")
        if uid:
            require_readable_by_others()
        assert (done.returncode, done.stderr) == (0, "")
        assert behind.read_bytes() == b"new"
        assert sorted(p.name for p in folder.iterdir()) == ["termination-log"]
