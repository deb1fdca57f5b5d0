"""Files that people name are read up to a limit and never waited for without end; what is wrong is one line."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from topocheck.host import input as given
from topocheck.host.input import MAX_DEPTH, chunks_of, read_file, read_input, walk
from topocheck.model.base import InputError

LIMIT = 1 << 16
EXPECTED = "a short file"
Reader = Callable[[Path], bytes]


def whole(path: Path) -> bytes:
    return read_file(path, LIMIT, EXPECTED)


def input_or(path: Path) -> bytes:
    return read_input(path, LIMIT, EXPECTED)


def pieces(path: Path) -> bytes:
    return b"".join(chunks_of(path, EXPECTED))


READERS = pytest.mark.parametrize("read", [whole, input_or, pieces])


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


@contextlib.contextmanager
def written(path: Path | str, data: bytes) -> Iterator[None]:
    """Have somebody write to a FIFO from its other end, until all is read or the reader has gone."""

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), open(path, "wb", buffering=0) as f:
            f.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    yield
    writer.join()


@READERS
@pytest.mark.parametrize("data", [b"", b"x", bytes(LIMIT)])
def test_a_file_up_to_the_limit_is_read(read: Reader, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(data)
    assert read(path) == data


@pytest.mark.parametrize("read", [whole, input_or])
def test_a_larger_file_is_refused_unread(read: Reader, tmp_path: Path) -> None:
    """1 TiB with nothing in it."""
    path = tmp_path / "f"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(InputError, match=f"{path}: larger than 64 KiB; expected a short file"):
        read(path)


@READERS
def test_what_is_no_file_is_refused(read: Reader, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(tmp_path / "socket"))
        (tmp_path / "loop").symlink_to("loop")
        for name, why in {
            tmp_path: "is a folder; expected a short file",
            tmp_path / "socket": "is a socket; expected a short file",
            tmp_path / "absent": "cannot be read: No such file or directory",
            tmp_path / "loop": "cannot be read: Too many levels of symbolic links",
            Path("/dev/zero"): "is a device; for standard input give -",
            tmp_path / "a\0b": "cannot be read: embedded null byte",
        }.items():
            with pytest.raises(InputError) as e:
                read(name)
            assert str(e.value) == f"{name}: {why}"


@READERS
def test_a_fifo_is_read_where_somebody_writes(read: Reader, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")
    with written(tmp_path / "f", b"abc" * 10_000):
        assert read(tmp_path / "f") == b"abc" * 10_000


@READERS
def test_what_a_writer_leaves_behind_between_two_looks_is_read(
    read: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "f")
    real = select.poll

    class Poll:
        def __init__(self) -> None:
            self.real = real()
            self.register = self.real.register

        def poll(self, ms: float) -> list[tuple[int, int]]:
            into = os.open(tmp_path / "f", os.O_WRONLY | os.O_NONBLOCK)
            os.write(into, b"abc")
            os.close(into)
            return self.real.poll(ms)

    monkeypatch.setattr(select, "poll", Poll)
    assert read(tmp_path / "f") == b"abc"


@READERS
def test_a_pipe_of_a_shell_is_read(read: Reader) -> None:
    """`<(zcat x.gz)` is /dev/fd/N."""
    out, into = os.pipe()
    os.write(into, b"abc")
    os.close(into)
    assert read(Path(f"/dev/fd/{out}")) == b"abc"
    os.close(out)


@READERS
def test_a_fifo_that_nobody_writes_to_is_refused(read: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "WRITER_S", 0)
    os.mkfifo(tmp_path / "f")
    with pytest.raises(InputError, match="f: is a FIFO without a writer"):
        read(tmp_path / "f")


@READERS
def test_a_writer_who_is_stuck_is_given_up(read: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "WAIT_S", 0.05)
    out, into = os.pipe()
    os.write(into, b"abc")
    with pytest.raises(InputError, match=r"no end of it within 0\.05 s; whatever writes it is stuck or too slow"):
        read(Path(f"/dev/fd/{out}"))
    os.close(out)
    os.close(into)


@pytest.mark.parametrize("read", [whole, input_or])
def test_a_writer_without_an_end_is_given_up(read: Reader, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")
    with written(tmp_path / "f", bytes(1 << 24)), pytest.raises(InputError, match="larger than 64 KiB"):
        read(tmp_path / "f")


def test_a_writer_who_drips_is_given_up_in_the_time_of_a_whole_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece comes at once, and there is no last one: every look at the clock is a second later."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    clock = iter(range(10_000))

    def monotonic() -> float:
        with contextlib.suppress(BlockingIOError):
            os.write(into, b"x")
        return float(next(clock))

    monkeypatch.setattr(given.time, "monotonic", monotonic)
    with pytest.raises(InputError, match="no end of it within 60 s"):
        read_file(f"/dev/fd/{out}", LIMIT, EXPECTED)
    assert next(clock) < 100
    os.close(out)
    os.close(into)


def test_a_fifo_is_refused_where_only_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")
    with pytest.raises(InputError, match="f: is a FIFO; expected a short file"):
        read_file(tmp_path / "f", LIMIT, EXPECTED, regular=True)


def test_standard_input_is_bounded_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(LIMIT + 1))
    with open(tmp_path / "f") as f:
        monkeypatch.setattr("sys.stdin", f)
        with pytest.raises(InputError, match="standard input: larger than 64 KiB"):
            read_input("-", LIMIT, EXPECTED)
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        read_input("-", LIMIT, EXPECTED)


def test_folders_nested_without_end_are_refused(tmp_path: Path) -> None:
    """os.walk calls itself for each level, a thousand of which Python refuses with a traceback."""
    at = tmp_path
    for _ in range(MAX_DEPTH + 2):
        at = at / "d"
        at.mkdir()
    with pytest.raises(InputError, match=f"nested more than {MAX_DEPTH} deep"):
        list(walk(tmp_path))
    assert len(list(walk(tmp_path / "d" / "d" / "d"))) == MAX_DEPTH
