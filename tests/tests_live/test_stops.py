"""Runs that are asked to stop, and ranks that cannot meet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec
import pytest

from tests.tests_live.test_collectives import row
from topocheck.cli.signals import stop_cleanly
from topocheck.model.measurement import NotMeasured
from topocheck.tests_live.launch import loopback
from topocheck.tests_live.launch import ranks as collect
from topocheck.tests_live.launch.loopback import loopback_problem
from topocheck.tests_live.run import quiet_limit_s

ASKED = "from topocheck.cli.signals import stop_cleanly\nimport os, signal\nstop_cleanly()\n"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_request_to_stop_is_an_interrupt(name: str) -> None:
    # Whoever runs the tests may ignore the signal (nohup does), and a child inherits that.
    program = (
        f"import signal\nsignal.signal(signal.{name}, signal.SIG_DFL)\n"
        + ASKED
        + f"try:\n os.kill(os.getpid(), signal.{name})\nexcept KeyboardInterrupt:\n print('cleared')"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "cleared\n"


def test_what_nohup_ignores_stays_ignored() -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGHUP, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        stop_cleanly()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGHUP)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_loopback_that_answers_is_no_problem() -> None:
    assert loopback_problem() == ""


def test_loopback_that_cannot_be_bound_is_told() -> None:
    # 192.0.2.0/24 is set aside for documentation (RFC 5737): no interface has it.
    assert "loopback interface does not work" in loopback_problem("192.0.2.1")


def test_ranks_that_cannot_meet_are_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "loopback_problem", lambda: "down")
    monkeypatch.setattr(collect, "Ranks", None)
    (result,) = collect.run_collectives((row(),))
    assert isinstance(result, NotMeasured)
    assert (result.reason, result.required, result.next_step) == ("down", True, loopback.LOOPBACK_STEP)


def test_a_quick_run_that_hangs_is_told_soon() -> None:
    assert quiet_limit_s("quick", (row(estimate_s=2.0),), joined=False) == 20
    assert quiet_limit_s("quick", (row(estimate_s=6.0),), joined=False) == 30
    usual = collect.QUIET_S
    over_nccl = msgspec.structs.replace(row(estimate_s=2.0), backend="nccl")
    assert quiet_limit_s("quick", (row(estimate_s=600.0),), joined=False) == usual
    assert quiet_limit_s("quick", (row(estimate_s=2.0),), joined=True) == usual
    assert quiet_limit_s("quick", (over_nccl,), joined=False) == usual
    assert quiet_limit_s("standard", (row(estimate_s=2.0),), joined=False) == usual
