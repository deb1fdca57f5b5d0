"""Ranks started here: what becomes of them, and of the rest, when one ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.waiting import PATIENCE_S, until
from topocheck.bandwidth.cases import CollectiveRow
from topocheck.process.together import process_state
from topocheck.tests_live.launch.failures import RankState, failure_text
from topocheck.tests_live.launch.job import RankJob
from topocheck.tests_live.launch.local import RankFailedError, Seat, become, run_ranks

ROOT = Path(__file__).parents[3]


def test_each_rank_has_its_seat_and_its_environment(tmp_path: Path) -> None:
    def work(seat: Seat) -> None:
        told = " ".join(os.environ[n] for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        (tmp_path / str(seat.rank)).write_text(f"{seat.rank} of {seat.size}: {told}")

    run_ranks(work, 3)
    assert sorted(p.read_text() for p in tmp_path.iterdir()) == ["0 of 3: 0 3 0", "1 of 3: 1 3 1", "2 of 3: 2 3 2"]


def test_the_first_failure_is_named_and_the_rest_ended(tmp_path: Path) -> None:
    def work(seat: Seat) -> None:
        (tmp_path / str(seat.rank)).write_text(str(os.getpid()))
        if seat.rank == 1:
            while len(list(tmp_path.iterdir())) < 3:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        if seat.rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)

    with pytest.raises(RankFailedError) as e:
        run_ranks(work, 3)
    assert e.value.failures == {0: "running", 1: -signal.SIGKILL, 2: "stopped by a signal"}
    for p in tmp_path.iterdir():
        assert process_state(int(p.read_text())) == "gone"


def test_an_exception_is_exit_code_1_and_never_returns_here(capfd: pytest.CaptureFixture[str]) -> None:
    def work(seat: Seat) -> None:
        raise ValueError("no apples")

    me = os.getpid()
    with pytest.raises(RankFailedError) as e:
        run_ranks(work, 1)
    assert os.getpid() == me
    assert e.value.failures == {0: 1}
    assert "ValueError: no apples" in capfd.readouterr().err


@pytest.mark.parametrize("how", ["forked", "interpreters"])
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_die_with_who_started_them(how: str, sig: signal.Signals) -> None:
    argv = [sys.executable, "-m", "tests.tests_live.launch.stays", how]
    starter = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": "."})
    assert starter.stdout is not None
    ranks = [int(starter.stdout.readline()) for _ in range(2)]
    starter.send_signal(sig)
    starter.wait(PATIENCE_S)
    until(lambda: [process_state(r) for r in ranks] == ["gone", "gone"], "the end of the ranks")
    starter.stdout.close()


class _Silent:
    """A process that printed nothing."""

    def printed(self, limit: int) -> str:
        return ""


def said(failures: dict[str, int | str], states: dict[int, RankState]) -> str:
    ended = {"event": "failed", "reason": "x", "failures": failures}
    return failure_text((), states, _Silent(), ended)[0]  # type: ignore[arg-type]


def test_who_is_still_there_when_the_others_gave_up_is_the_one_they_waited_for() -> None:
    waited = RankState(pid=11, step=5, call="all_reduce", failed="RuntimeError: Timed out waiting 1000ms for recv")
    hangs = RankState(pid=12, step=5, call="all_reduce")
    assert said({"0": 1, "1": "running"}, {0: waited, 1: hangs}) == (
        "rank 1 (process 12) in all_reduce did not come; the others waited in vain"
    )
    assert "rank 1 (process 12, stopped by a signal)" in said(
        {"0": 1, "1": "stopped by a signal"}, {0: waited, 1: hangs}
    )
    # A rank that fails by itself is the cause, whoever is left.
    broken = RankState(pid=11, step=5, call="all_reduce", failed="RuntimeError: out of apples")
    assert said({"0": 1, "1": "running"}, {0: broken, 1: hangs}) == (
        "rank 0 failed in all_reduce: RuntimeError: out of apples"
    )


@pytest.mark.torch
def test_ranks_that_are_interpreters_of_their_own_meet_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ranks with GPUs are started; here without one, since what is tested is how they start and meet."""
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    row = CollectiveRow(
        id="r", collective="all_reduce", backend="gloo", ranks=2, sizes_bytes=(4096,), samples_min=2, samples_max=2
    )
    job = RankJob(rows=(row,), events=str(tmp_path / "events"), store=str(tmp_path / "store"), timeout_s=60)
    (tmp_path / "job").write_bytes(msgspec.json.encode(job))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    words: list[dict[str, Any]] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(job.events)

        def hear() -> None:
            while text := heard.recv(1 << 20):
                words.append(msgspec.json.decode(text))

        hearing = threading.Thread(target=hear)
        hearing.start()
        try:
            run_ranks(become("topocheck.tests_live.rank_child", str(tmp_path / "job"), "rank"), 2)
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
                last.sendto(b"", job.events)
            hearing.join(PATIENCE_S)
    assert [w["rank"] for w in words if w["event"] == "measured"] == [0]
    assert sorted(w["rank"] for w in words if w["event"] == "finished") == [0, 1]
    assert len({w["pid"] for w in words}) == 2
