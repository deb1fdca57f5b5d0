"""Work in children, of which some die, hang, or answer too much."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time

import pytest

from tests.support.processes import children, runs
from tests.support.waiting import until
from topocheck import parallel
from topocheck.process.fork import reap
from topocheck.process.pool import Lost, work_through


def work(piece: bytes) -> bytes:
    match piece:
        case b"die":
            os.kill(os.getpid(), signal.SIGKILL)
        case b"leave":
            os._exit(3)
        case b"die slowly":
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000)  # a busy machine takes as long until the process is gone
            os.kill(os.getpid(), signal.SIGKILL)
        case b"hang":
            time.sleep(1000)
        case b"much":
            return bytes(2 << 20)
        case b"pid":
            return str(os.getpid()).encode()
    return piece.upper()


def through(pieces: list[bytes], children: int = 2, **options: object) -> dict[bytes, bytes | Lost]:
    answers = list(work_through(iter(pieces), work, children, **options))  # type: ignore[arg-type]
    assert sorted(p for p, _ in answers) == sorted(pieces), "each piece is answered once"
    return dict(answers)


@pytest.fixture(autouse=True)
def nothing_stays_open() -> object:
    files, processes = set(os.listdir("/proc/self/fd")), children()
    yield
    assert set(os.listdir("/proc/self/fd")) == files
    until(lambda: reap() and children() <= processes, "the end of the children")


def test_every_piece_is_answered_once() -> None:
    pieces = [f"p{i}".encode() for i in range(500)]
    assert through(pieces, 3) == {p: p.upper() for p in pieces}
    assert through([], 3) == {}
    assert through([b"one"], 8) == {b"one": b"ONE"}


def test_large_pieces_and_answers() -> None:
    pieces = [bytes([65 + i]) * (1 << 20) for i in range(8)]
    assert through(pieces) == {p: p.upper() for p in pieces}


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (b"die", "was killed (out of memory?)"),
        (b"die slowly", "was killed (out of memory?)"),
        (b"leave", "ended (exit status 3)"),
    ],
)
def test_a_child_that_dies_loses_its_piece_alone(bad: bytes, word: str) -> None:
    pieces = [f"p{i}".encode() for i in range(40)]
    answers = through([*pieces[:20], bad, *pieces[20:]])
    lost = answers.pop(bad)
    assert isinstance(lost, Lost)
    assert word in lost.why
    assert answers == {p: p.upper() for p in pieces}


def test_every_child_dies() -> None:
    assert all(isinstance(a, Lost) for _, a in work_through(iter([b"die"] * 10), work, 2))


def test_a_child_that_hangs_loses_its_piece_alone() -> None:
    answers = through([b"a", b"hang", b"b", b"c"], deadline_s=1.0)
    lost = answers.pop(b"hang")
    assert isinstance(lost, Lost)
    assert "not done within 1 s" in lost.why
    assert answers == {p: p.upper() for p in (b"a", b"b", b"c")}


def test_an_answer_too_large_is_not_taken() -> None:
    answers = through([b"a", b"much", b"b"], answer_limit=1 << 20)
    lost = answers.pop(b"much")
    assert isinstance(lost, Lost)
    assert "the limit is 1 MiB" in lost.why
    assert answers == {b"a": b"A", b"b": b"B"}


def test_who_loses_interest_ends_the_children() -> None:
    answers = work_through(iter([b"pid", b"hang", b"hang", b"hang"]), work, 1)
    _, pid = next(answers)
    assert isinstance(pid, bytes)
    answers.close()
    until(lambda: not runs(int(pid)))


def test_few_pieces_are_taken_at_a_time() -> None:
    taken = 0

    def pieces() -> object:
        nonlocal taken
        for _ in range(100):
            taken += 1
            yield b"x"

    answers = work_through(pieces(), work, 2)  # type: ignore[arg-type]
    next(answers)
    assert taken <= 8
    answers.close()


def test_a_process_with_threads_works_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert dict(parallel.in_children(iter([b"pid"]), work, 2)) == {b"pid": str(os.getpid()).encode()}
    finally:
        done.set()
        thread.join()
    monkeypatch.setattr(parallel, "one_thread", lambda: True)
    ((_, pid),) = parallel.in_children(iter([b"pid"]), work, 2)
    assert pid != str(os.getpid()).encode()
