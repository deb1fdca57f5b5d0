"""Ranks that end or fall silent while they work: noticed by rank 0, and known to all."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.waiting import until
from tests.tests_live.launch.callers import meeting
from topocheck.tests_live.launch import alive
from topocheck.tests_live.launch.pulse import BYE, Life, Pulse, lost_texts
from topocheck.tests_live.launch.ranks import call_limit_s


def test_silence_counts_from_the_last_good_word() -> None:
    p = Pulse()
    for rank in (0, 1, 2):
        p.beat(rank, f"caller {rank}", b"", 100.0)
    p.beat(0, "caller 0", b"", 109.0)
    p.beat(1, "caller 1", b"its process 7 is stopped by a signal", 109.0)
    assert p.lost(10.0, 110.0) == {}
    assert p.lost(10.0, 111.0) == {
        1: "did not answer for 10 s (its process 7 is stopped by a signal)",
        2: "did not answer for 10 s",
    }
    p.beat(1, "caller 1", b"", 111.0)
    assert set(p.lost(10.0, 112.0)) == {2}


def test_a_connection_that_ends_without_goodbye_is_the_end_of_its_rank() -> None:
    p = Pulse()
    p.beat(1, "one", b"", 0.0)
    p.beat(2, "two", b"", 0.0)
    p.beat(2, "two", BYE, 0.0)
    for caller in ("two", "one", "somebody else"):
        p.left(caller)
    assert p.lost(10.0, 1.0) == {1: "ended while the others worked"}


def test_who_never_said_anything_did_not_come_and_is_not_lost() -> None:
    assert Pulse().lost(10.0, 1000.0) == {}


def test_rank_0_that_was_stopped_itself_blames_nobody() -> None:
    p = Pulse()
    p.beat(1, "one", b"", 0.0)
    p.begin_anew(500.0)
    assert p.lost(10.0, 505.0) == {}
    assert set(p.lost(10.0, 511.0)) == {1}


def test_ranks_with_one_fate_are_one_sentence() -> None:
    text = lost_texts({1: "ended", 2: "ended", 5: "hangs"}, lambda ranks: f"ranks {ranks}")
    assert text == {1: "ranks [1, 2] ended", 2: "ranks [1, 2] ended", 5: "ranks [5] hangs"}


def test_a_rank_that_ends_is_named_on_all_ranks() -> None:
    with meeting(4) as ranks:
        for r in ranks:
            alive.watch(r, 60)
        ranks[1]._connection.close()  # as the kernel does for a process that was killed
        for r in (ranks[0], ranks[2]):
            until(lambda r=r: r.life.text, "the loss is known")
            assert r.life.lost == {1: f"rank 1 on node {ranks[1].node} ended while the others worked"}
        # Who has done its part is not lost, as the next one to be lost shows.
        ranks[2].close()
        ranks[3]._connection.close()
        until(lambda: 3 in ranks[0].life.lost, "the next loss is known")
        assert set(ranks[0].life.lost) == {1, 3}


def test_where_rank_0_ends_the_others_know_and_wait_no_longer() -> None:
    with meeting(2) as ranks:
        for r in ranks:
            alive.watch(r, 60)
        ranks[0]._place.close()
        until(lambda: ranks[1].life.text, "the loss is known")
        assert ranks[1].life.lost[0].startswith(f"rank 0 on node {ranks[0].node} ended, or did not answer")


@pytest.fixture
def stopped() -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"]) as p:
        p.send_signal(signal.SIGSTOP)
        yield p.pid
        p.kill()


def test_a_rank_whose_process_is_stopped_is_lost_after_the_deadline(
    stopped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alive, "BEAT_S", 0.1)
    monkeypatch.setattr(alive, "LEAST_S", 5.0)
    with meeting(2) as ranks:
        for r in ranks:
            alive.watch(r, 5)
        ranks[1].life.child = stopped
        until(lambda: ranks[0].life.text, "the loss is known")
        assert ranks[0].life.lost[1] == (
            f"rank 1 on node {ranks[1].node} did not answer for 5 s (its process {stopped} is stopped by a signal)"
        )


def test_calls_are_given_up_after_the_deadline_within_bounds() -> None:
    with meeting(2) as ranks:
        ranks[0].life = Life()
        assert call_limit_s(ranks[0], 80) == 80  # nobody watches
        for deadline, limit in ((5, 30), (45, 45), (3600, 80)):
            ranks[0].life.limit_s = deadline
            assert call_limit_s(ranks[0], 80) == limit
    assert call_limit_s(None, 80) == 80


def test_an_interrupt_names_who_ended_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    """torchrun ends all ranks with SIGTERM once one is gone; those that it ends leave with a goodbye."""
    with meeting(3) as ranks:
        for r in ranks:
            alive.watch(r, 60)
        ranks[1]._connection.close()
        ranks[2].close()
        until(lambda: not ranks[0]._place.others(), "both have left")
        with contextlib.suppress(KeyboardInterrupt), ranks[0]:
            raise KeyboardInterrupt
        assert capsys.readouterr().err == f"topocheck: rank 1 on node {ranks[1].node} ended while the others worked\n"
