"""What a child may send, and what becomes of one that sends more or something else."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from topocheck.process import child as child_module
from topocheck.process.child import EVENT_LIMIT, Child
from topocheck.process.frames import LENGTH, FrameError, FrameReader
from topocheck.process.python import child_environment, python_argv
from topocheck.process.spawn import spawn

_WRITE = "import os, sys\nfd = int(sys.argv[1])\nwrite = lambda data: os.write(fd, data)\n"


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        assert child.end()


def start(code: str, children: list[Child]) -> Child:
    children.append(Child([sys.executable, "-c", _WRITE + code, "{fd}"]))
    return children[-1]


def test_an_event_without_end_ends_the_stream(children: list[Child]) -> None:
    """Not before it is known to be too long, and without keeping it."""
    child = start("while True: write(b'x' * 65536)", children)
    event = child.next_event(monotonic() + 60)
    assert event is not None
    assert (event["event"], event["fatal"]) == ("failed", True)
    assert "more than 1024 KiB" in event["reason"]
    assert child.next_event(monotonic() + 60) is None
    assert len(child._rest) == 0


def test_an_event_of_the_limit_passes(children: list[Child]) -> None:
    text = EVENT_LIMIT - len(b'{"a":""}')
    child = start(
        f"for part in [b'{{\"a\":\"', *[b'x' * 1024] * {text // 1024}, b'x' * {text % 1024}, b'\"}}\\n']: write(part)",
        children,
    )
    event = child.next_event(monotonic() + 60)
    assert event is not None
    assert len(event["a"]) == text


@pytest.mark.parametrize("line", [b"no json", b"[1]", b"1", b"\xff", b"{", b"[" * 100_000])
def test_what_is_no_event_ends_the_stream(line: bytes, children: list[Child]) -> None:
    child = start(f"write({line!r} + b'\\n' + b'{{\"event\": \"done\"}}\\n')", children)
    event = child.next_event(monotonic() + 60)
    assert event is not None
    assert event["event"] == "failed"
    assert "no JSON object" in event["reason"]
    assert child.next_event(monotonic() + 60) is None


def test_a_child_that_prints_without_end_is_given_up(children: list[Child], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "OUTPUT_LIMIT", 1 << 20)
    child = start("while True: print('x' * 65536)", children)
    event = child.next_event(monotonic() + 60)
    assert event is not None
    assert "printed more than 1 MiB" in event["reason"]


def test_what_cannot_be_started_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topocheck.process.spawn.one_thread", lambda: True)  # whatever other tests left behind
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        Child(["/no/such/program"])
    assert set(os.listdir("/proc/self/fd")) == before


def test_an_ended_child_leaves_no_file_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    child = Child([sys.executable, "-c", "import time; time.sleep(1000)"])
    assert child.end()
    assert child.end()
    assert set(os.listdir("/proc/self/fd")) == before


def test_children_are_kept_from_the_current_folder() -> None:
    assert python_argv("a.b", "c") == [sys.executable, "-P", "-m", "a.b", "c"]
    assert os.path.isabs(sys.executable)
    env = child_environment({"PATH": f":.:bin:{os.sep}usr/bin", "X": "y"})
    assert (env["PYTHONSAFEPATH"], env["X"]) == ("1", "y")
    assert all(os.path.isabs(folder) for folder in env["PATH"].split(os.pathsep))
    assert "/usr/bin" in env["PATH"].split(os.pathsep)


@pytest.mark.parametrize(
    ("interpreter", "says"),
    [
        ("", "sys.executable is empty"),
        (
            "{}/gone",
            "No such file or directory: this Python interpreter cannot be started; was its environment removed",
        ),
        ("{}/plain", "Permission denied: this Python interpreter cannot be started"),
        ("{}/junk", "Exec format error: this Python interpreter cannot be started"),
    ],
)
def test_an_interpreter_that_is_no_longer_there(
    interpreter: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that is removed or renewed while a program of it runs."""
    (tmp_path / "plain").write_text("")
    (tmp_path / "junk").write_text("junk")
    (tmp_path / "junk").chmod(0o755)
    monkeypatch.setattr(sys, "executable", interpreter.format(tmp_path))
    with pytest.raises(OSError, match=re.escape(says)) as raised:
        spawn(python_argv("topocheck", "--version"), {})
    assert raised.value.filename  # the command line names it, in one line


def test_frames_are_cut_wherever_they_come_apart() -> None:
    frames = [b"", b"a", b"bc" * 1000]
    data = b"".join(LENGTH.pack(len(f)) + f for f in frames)
    for size in (1, 2, 3, 7, len(data)):
        reader = FrameReader(2000, len(data))
        assert [f for at in range(0, len(data), size) for f in reader.feed(data[at : at + size])] == frames


def test_a_frame_larger_than_agreed_is_not_waited_for() -> None:
    with pytest.raises(FrameError, match="4294967295 bytes"):
        list(FrameReader(1 << 20).feed(LENGTH.pack(0xFFFFFFFF)))


def test_all_frames_together_have_a_limit() -> None:
    reader = FrameReader(1 << 20, 2 << 20)
    frame = LENGTH.pack(1 << 20) + bytes(1 << 20)
    assert len(list(reader.feed(frame))) == 1
    with pytest.raises(FrameError, match="2 MiB in all"):
        list(reader.feed(frame))
