"""Jobs that died by an exception of Python or by a signal to their launcher, as Python and torchrun print it."""

# ruff: noqa: E501 - lines as the programs print them
from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from topocheck.cli.nccl import app
from topocheck.nccl.logs.reader import read_text

VERSION = "n1:10:10 [0] NCCL INFO NCCL version 2.27.3+cuda12.9\n"
INIT = "n1:10:11 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 busId 1000 - Init COMPLETE\n"
NAN = """Traceback (most recent call last):
  File "/home/u/train.py", line 120, in <module>
    main()
  File "/home/u/train.py", line 88, in main
    raise ValueError("loss is NaN")
ValueError: loss is NaN
"""
CHAINED = """Traceback (most recent call last):
  File "/home/u/a.py", line 1, in <module>
    table["x"]
    ~~~~~^^^^^
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/u/a.py", line 3, in <module>
    raise mine.NoTable("x")
mine.NoTable: x
"""
INTERRUPT = """^CTraceback (most recent call last):
  File "/home/u/train.py", line 9, in <module>
    time.sleep(1)
KeyboardInterrupt
"""
BOX = """╭───────────── Traceback (most recent call last) ─────────────╮
│ /home/u/train.py:88 in main                                 │
╰─────────────────────────────────────────────────────────────╯
ValueError: loss is NaN
"""
ELASTIC = """E1129 09:00:01 100 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 1 (pid: 11)
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
  exitcode  : 1 (pid: 11)
"""


def behind(prefix: str, text: str) -> str:
    return "".join(prefix + line for line in text.splitlines(keepends=True))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NAN, "ValueError: loss is NaN"),
        (CHAINED, "mine.NoTable: x"),
        (INTERRUPT, "KeyboardInterrupt"),
        (BOX, "ValueError: loss is NaN"),
        (" 10%|# | 1/10 [00:01<00:09, 9.9it/s]" + NAN, "ValueError: loss is NaN"),
        (behind("[rank0]: ", NAN), "ValueError: loss is NaN"),
        (behind("0: ", NAN), "ValueError: loss is NaN"),
        (NAN + ELASTIC, "ValueError: loss is NaN"),
    ],
    ids=["plain", "chained", "interrupt", "rich", "progress bar", "prefix of a rank", "srun -l", "and the launcher"],
)
def test_the_exception_that_ended_a_program(text: str, said: str) -> None:
    (failure,) = read_text(VERSION + INIT + text).failures
    assert (failure.code, failure.text, failure.count) == ("program ended", said, 1)
    assert (VERSION + INIT + text).splitlines()[failure.line - 1].endswith(said)
    assert said in failure.causes[0].cause
    assert f"line {failure.line}" in failure.causes[0].cause


def test_ranks_that_print_at_the_same_time() -> None:
    lines = zip(behind("[rank0]: ", NAN).splitlines(True), behind("[rank1]: ", NAN).splitlines(True), strict=True)
    (failure,) = read_text(VERSION + INIT + "".join(a + b for a, b in lines)).failures
    assert (failure.text, failure.count) == ("ValueError: loss is NaN", 2)


def test_it_comes_after_causes_of_nccl() -> None:
    warning = "n1:10:11 [0] misc/socket.cc:1 NCCL WARN NET/IB : Got completion from peer with status=12\n"
    stated = "RuntimeError: NCCL error: unhandled system error\n"
    failures = read_text(VERSION + NAN + warning + stated).failures
    assert [f.code for f in failures][-1] == "program ended"
    assert failures[-1].causes[0].id == "traceback"
    assert len(failures) > 1


def test_an_exception_that_nccl_raised_is_one_failure() -> None:
    raised = NAN.replace("ValueError: loss is NaN", "torch.distributed.DistBackendError: NCCL error: remote error")
    assert [f.code for f in read_text(VERSION + INIT + raised).failures] == ["remote error"]


@pytest.mark.parametrize(
    "text",
    [
        VERSION + NAN + INIT,
        VERSION + INIT + "Exception ignored in: <function f at 0x7f>\n" + NAN,
        VERSION + INIT + "Exception in thread Thread-1:\n" + NAN,
        VERSION + INIT + "Loss: 3.2\nAccuracy: 0.5\nEpoch\n",
    ],
    ids=["before the init", "ignored by Python", "of a thread", "no traceback"],
)
def test_programs_that_went_on(text: str) -> None:
    assert read_text(text).failures == ()


@pytest.mark.parametrize(
    "line",
    [
        "W1129 09:00:00 1 torch/distributed/elastic/agent/server/api.py:719] Received Signals.SIGINT death signal, shutting down workers",
        "W1129 09:00:00 1 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 100 got signal: 15",
    ],
)  # fmt: skip
def test_a_launcher_that_was_ended_by_a_signal(line: str) -> None:
    assert [[c.id for c in f.causes] for f in read_text(VERSION + INIT + line + "\n").failures] == [["death_signal"]]


def test_sigint_to_the_launcher_is_one_failure() -> None:
    signal = "W1129 api.py:719] Received Signals.SIGINT death signal, shutting down workers\n"
    assert [f.causes[0].id for f in read_text(VERSION + INIT + signal + INTERRUPT).failures] == ["death_signal"]


def test_a_sigkill_that_torchrun_saw_is_one_failure() -> None:
    text = (
        "E1129 09:00:01 100 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 1\n"
        "    raise ChildFailedError(\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        "  exitcode  : -9 (pid: 11)\n  traceback : Signal 9 (SIGKILL) received by PID 11\n"
    )
    assert [f.causes[0].id for f in read_text(VERSION + INIT + text).failures] == ["sigkill"]


def test_the_command_fails(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(VERSION + INIT + NAN)
    done = CliRunner().invoke(app, ["log", str(path), "--width", "100"])
    assert done.exit_code == 1
    assert "the program ended with ValueError: loss is NaN, line 8" in done.stdout


def test_a_traceback_that_was_caught_is_no_end() -> None:
    more = "".join(f"epoch {n} loss 0.{n}\n" for n in range(60))
    destroyed = "n1:10:11 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 busId 1000 - Destroy COMPLETE\n"
    for after in (more, "epoch 2\n" + destroyed):
        log = read_text(VERSION + INIT + NAN + after)
        assert log.failures == (), after
        assert any("after which the job went on" in n for n in log.notes), after
    for after in ("", "epoch 2\n", more + NAN, destroyed + NAN):
        assert read_text(VERSION + INIT + NAN + after).failures, after
    # A launcher that says that the job failed ends the doubt.
    assert any("loss is NaN" in f.text for f in read_text(VERSION + INIT + NAN + more + ELASTIC).failures)
