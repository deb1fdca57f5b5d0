"""The gatherer against real child processes that hang and crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.host import sick
from tests.host.sick import SickProbe, sick_backend
from tests.support.processes import children
from tests.support.waiting import PATIENCE_S, until
from topocheck.host.base import HostError
from topocheck.host.gather import worker
from topocheck.host.gather.gather import Gathering, gather, replay, status
from topocheck.host.gather.worker import ANSWER_LIMIT, Job, decode_job, encode_job, subjects
from topocheck.model.base import Reason
from topocheck.process.fork import fork
from topocheck.process.frames import write_frame

LETTERS = SickProbe("letters", "files", PATIENCE_S, sick.read_letters)
GPUS = SickProbe("gpus", "nvml", PATIENCE_S, sick.read_four_gpus)
QUICK_S = 4.0
"""Waited out where something hangs; whatever does not hang has to be answered in it."""
QUICK_GPUS = SickProbe("gpus", "nvml", QUICK_S, sick.read_four_gpus)
QUICK_LETTERS = SickProbe("letters", "files", QUICK_S, sick.read_letters)


@pytest.fixture(params=["fork", "fresh interpreter"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways of starting a child; a second thread makes the gatherer choose the fresh interpreter."""
    if request.param == "fork":
        yield "fork"
        return
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield "fresh interpreter"
    done.set()
    thread.join()


def error(answers: dict[str, object], key: str) -> HostError:
    answer = answers[key]
    assert isinstance(answer, HostError)
    return answer


def test_well_machine(way: str) -> None:
    answers = gather([LETTERS, GPUS], PATIENCE_S, sick_backend())
    assert answers["psutil:b"] == "value of psutil:b"
    assert answers["nvml:DeviceGetUUID|3"] == "value of nvml:DeviceGetUUID|3"
    for probe in (LETTERS, GPUS):
        said = status(probe.name, answers)
        assert (said.state, said.detail) == ("ok", "")
        assert answers[f"duration:{probe.name}"] == said.ms > 0
    assert str(answers["now:"]).endswith("Z")


def test_replay_gives_what_the_child_was_told() -> None:
    answers = gather([LETTERS], PATIENCE_S, sick_backend())
    assert replay(LETTERS, answers) == [f"value of psutil:{c}" for c in "abc"]


@pytest.mark.slow
def test_fifo_nobody_writes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("first")
    os.mkfifo(tmp_path / "b")
    (tmp_path / "c").write_text("last")
    monkeypatch.setenv("TOPOCHECK_TEST_FOLDER", str(tmp_path))
    probe = SickProbe("folder", "files", QUICK_S, sick.read_fifo)
    answers = gather([probe], PATIENCE_S)
    assert error(answers, f"read:{tmp_path}/b").reason is Reason.TIMED_OUT
    said = status("folder", answers)
    assert said.state == "timed_out"
    assert f"read:{tmp_path}/b" in said.detail
    assert replay(probe, answers) == ["first", "timed_out", "last"]


def test_crash_at_one_question_keeps_the_others(way: str) -> None:
    answers = gather([GPUS], PATIENCE_S, sick_backend(crash=("nvml:DeviceGetUUID|1",)))
    crash = error(answers, "nvml:DeviceGetUUID|1")
    assert crash.reason is Reason.UNSUPPORTED
    assert f"signal {signal.SIGSEGV.value}" in crash.detail
    rest = {f"nvml:{c}|{g}" for c in sick.CALLS for g in range(4)} - {"nvml:DeviceGetUUID|1"}
    assert all(answers[k] == f"value of {k}" for k in rest)
    said = status("gpus", answers)
    assert said.state == "failed"
    assert "nvml:DeviceGetUUID|1" in said.detail


def test_child_that_exits_is_told_from_a_crash() -> None:
    answers = gather([LETTERS], PATIENCE_S, sick_backend(leave=("psutil:b",)))
    assert "exit status 7" in error(answers, "psutil:b").detail
    assert answers["psutil:c"] == "value of psutil:c"


@pytest.mark.slow
def test_one_gpu_of_four_hangs(tmp_path: Path) -> None:
    log = tmp_path / "asked"
    answers = gather([QUICK_GPUS], PATIENCE_S, sick_backend(hang_gpu=2, asked_log=str(log)))
    for call in sick.CALLS:
        assert error(answers, f"nvml:{call}|2").reason is Reason.TIMED_OUT
        for gpu in (0, 1, 3):
            assert answers[f"nvml:{call}|{gpu}"] == f"value of nvml:{call}|{gpu}"
    asked = log.read_text().split()
    assert asked.count("nvml:DeviceGetName|0") == 1, "an answer that was had is not asked for again"
    assert "nvml:DeviceGetSerial|2" not in asked, "after two hangs the GPU is left alone"
    assert status("gpus", answers).state == "timed_out"


@pytest.mark.slow
def test_child_that_ignores_sigterm_holds_nobody() -> None:
    """The hanging question ignores SIGTERM (tests/host/sick.py)."""
    answers = gather([QUICK_LETTERS], PATIENCE_S, sick_backend(hang=("psutil:a",)))
    assert replay(QUICK_LETTERS, answers)[1:] == ["value of psutil:b", "value of psutil:c"]


@pytest.mark.slow
def test_budget_ends_everything_and_names_what_hung() -> None:
    slow = SickProbe("letters", "files", 1000, sick.read_letters)
    after = SickProbe("after", "files", 1000, sick.read_four_gpus)
    answers = gather([slow, after], QUICK_S, sick_backend(hang=("psutil:b",)))
    for name in ("letters", "after"):
        said = status(name, answers)
        assert said.state == "timed_out"
        assert "psutil:b" in said.detail
    assert replay(slow, answers)[0] == "value of psutil:a"
    assert all(text.startswith("timed_out") for text in replay(slow, answers)[1:])
    assert all(v.startswith("timed_out") for gpu in replay(after, answers) for v in gpu.values())


@pytest.mark.slow
def test_other_groups_go_on_while_one_hangs() -> None:
    answers = gather([QUICK_LETTERS, GPUS], PATIENCE_S, sick_backend(hang=("psutil:a", "psutil:b", "psutil:c")))
    assert status("gpus", answers).state == "ok"
    assert status("letters", answers).state == "timed_out"


def test_restarts_have_a_cap() -> None:
    """Every question about every GPU crashes the child: the gatherer still comes to an end by itself."""
    keys = tuple(f"nvml:{c}|{g}" for c in sick.CALLS for g in range(4))
    answers = gather([GPUS], PATIENCE_S, sick_backend(crash=keys))
    assert status("gpus", answers).state in ("failed", "timed_out")


@pytest.mark.parametrize(
    ("read", "state", "word"),
    [
        (sick.read_bug, "failed", "a fault in the probe"),
        (sick.read_absent, "empty", "ENOENT"),
        (sick.read_denied, "failed", "EACCES"),
        (sick.read_binding_bug, "empty", "KeyError"),
    ],
)
def test_state_of_a_probe_and_the_next_one_runs(read: object, state: str, word: str) -> None:
    probe = SickProbe("odd", "files", PATIENCE_S, read)  # type: ignore[arg-type]
    answers = gather([probe, LETTERS], PATIENCE_S, sick_backend())
    said = status("odd", answers)
    assert said.state == state
    assert word in said.detail
    assert status("letters", answers).state == "ok"


def test_a_probe_that_did_not_ask_its_source_says_why() -> None:
    """Other answers (here the letters) do not show that the source answers."""
    quiet = msgspec.structs.replace(LETTERS, asks="cuda", unasked="not asked: nobody needs it")
    said = status("letters", gather([quiet], PATIENCE_S, sick_backend()))
    assert (said.state, said.detail) == ("empty", "not asked: nobody needs it")
    asking = msgspec.structs.replace(LETTERS, asks="psutil", unasked="not asked")
    assert status("letters", gather([asking], PATIENCE_S, sick_backend())).state == "ok"


@pytest.mark.slow
def test_probe_stuck_between_questions() -> None:
    probe = SickProbe("stuck", "files", QUICK_S, sick.read_stuck_between)
    answers = gather([probe, LETTERS], PATIENCE_S, sick_backend())
    assert status("stuck", answers).state == "timed_out"
    assert answers["psutil:before"] == "value of psutil:before"
    assert status("letters", answers).state == "ok"


def test_an_answer_too_large_is_cut_and_said(way: str) -> None:
    answers = gather([LETTERS], PATIENCE_S, sick_backend(bytes_each=ANSWER_LIMIT + 1))
    for letter in "abc":
        cut = error(answers, f"psutil:{letter}")
        assert cut.reason is Reason.UNPARSABLE
        assert "limit 16 MiB" in cut.detail
    assert status("letters", answers).state == "failed"


def test_all_answers_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "ANSWERS_LIMIT", 10_000)
    monkeypatch.setattr(
        "topocheck.host.gather.child.fork_is_safe", lambda: True
    )  # a fresh interpreter has the real limit
    answers = gather([GPUS], PATIENCE_S, sick_backend(bytes_each=3_000, crash=("nvml:DeviceGetUUID|0",)))
    kept = [k for k, a in answers.items() if isinstance(a, bytes)]
    assert len(kept) == 3, "what an earlier child sent counts too"
    assert error(answers, "nvml:DeviceGetSerial|3").reason is Reason.UNPARSABLE
    assert "exceed" in error(answers, "nvml:DeviceGetSerial|3").detail


def test_garbage_in_the_pipe_is_no_answer(way: str) -> None:
    """A driver's library that writes over the child's memory must not make the parent wait, grow or fail."""
    answers = gather([LETTERS], PATIENCE_S, sick_backend(garbage=("psutil:b",)))
    sent = error(answers, "psutil:b")
    assert sent.reason is Reason.UNPARSABLE
    assert "4294967295 bytes" in sent.detail
    assert replay(LETTERS, answers) == ["value of psutil:a", str(sent), "value of psutil:c"]


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x90", b"\x91\x01", b"\x93\xa5error\x01\x02", b"\xa3abc", b"\x91" * 9999]
)
def test_frame_of_another_form(data: bytes) -> None:
    """msgpack's own unused byte, an empty list, lists without words or fields, text, a list in a list in a list..."""
    theirs, ours = os.pipe()
    life, mine = os.pipe()
    write_frame(ours, data)
    os.close(ours)
    os.set_blocking(theirs, False)
    child = fork(lambda pipe: None)
    os.close(child.pipe)
    os.close(child.lifeline)
    child.pipe, child.lifeline = theirs, mine
    try:
        answers = Gathering([LETTERS], PATIENCE_S, sick_backend(), early={"files": child}).finish(60)
    finally:
        os.close(life)
    assert status("letters", answers).state in ("failed", "ok")


def test_job_for_a_fresh_interpreter_is_all_it_was() -> None:
    answers = {"a": b"bytes", "b": [1, {"c": None}], "d": HostError(Reason.DENIED, "EACCES")}
    given_up = {"nvml|0": HostError(Reason.TIMED_OUT, "no answer")}
    job = decode_job(encode_job(Job([GPUS], sick_backend(hang_gpu=2), answers, given_up, 1.5, 7)))
    assert (job.left_s, job.spent_bytes, job.answers["a"], job.answers["b"]) == (1.5, 7, b"bytes", answers["b"])
    assert str(job.answers["d"]) == "denied: EACCES"
    assert str(job.given_up["nvml|0"]) == "timed_out: no answer"
    assert [(p.name, p.group, p.deadline_s, p.path) for p in job.probes] == [
        ("gpus", "nvml", PATIENCE_S, "tests.host.sick:read_four_gpus")
    ]
    assert job.backend.make() == sick.SickBackend(hang_gpu=2)


@pytest.mark.slow
def test_no_zombie_is_left() -> None:
    before = children()
    gather([QUICK_LETTERS, GPUS], PATIENCE_S, sick_backend(hang=("psutil:a",), crash=("nvml:DeviceGetName|0",)))
    assert children() <= before


@pytest.mark.slow
def test_no_file_is_left_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    gather([QUICK_LETTERS], PATIENCE_S, sick_backend(hang=("psutil:a",)))
    assert set(os.listdir("/proc/self/fd")) == before


def test_no_process_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    # The test's own process may have threads (pytest-xdist), in which case a fresh interpreter would be started.
    monkeypatch.setattr("topocheck.host.gather.child.fork_is_safe", lambda: True)
    said = status("letters", gather([LETTERS], PATIENCE_S, sick_backend()))
    assert said.state == "failed"
    assert "cannot start a process" in said.detail


def test_standard_output_ends_though_a_child_hangs() -> None:
    """slurmd waits for end of file: a child that cannot be killed must not hold our standard output."""
    code = (
        "import os, signal\n"
        # As if the child sat in the kernel, where no signal reaches it.
        "os.kill = os.killpg = lambda *a: None\n"
        "from topocheck.process import fork\n"
        "fork.bind_myself = lambda fd: None\n"
        "fork._PATIENCE_S = 0.05\n"
        "from tests.host.sick import *\n"
        "from topocheck.host.gather.gather import gather\n"
        "p = SickProbe('letters', 'files', 0.3, read_letters)\n"
        "gather([p], 1, sick_backend(hang=('psutil:a', 'psutil:b', 'psutil:c')))\n"
        "print('pids', *fork._left, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    word, *pids = done.stdout.split()
    assert (done.returncode, word, done.stderr) == (0, "pids", "")
    assert pids, "the children were to survive their parent"
    for pid in pids:
        os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize(
    ("question", "about"),
    [
        ("nvml:DeviceGetName|2", ("nvml|2", "nvml")),
        ("nvml:DeviceGetNvLinkState|2|17", ("nvml|2", "nvml")),
        ("nvml:DeviceGetP2PStatus|0|3|1", ("nvml|0", "nvml|3", "nvml")),
        ("nvml:SystemGetDriverVersion", ("nvml",)),
        ("cuda:DeviceGetName|0", ("cuda|0", "cuda")),
        ("run:10|lspci|-v", ("run|lspci",)),
        ("read:/sys/bus/pci/devices/0000:3b:00.0/config|256", ("/sys/bus/pci/devices/0000:3b:00.0",)),
        ("list:/", ("/",)),
        ("psutil:virtual_memory", ("psutil:virtual_memory",)),
        ("environ:", ("environ:",)),
    ],
)
def test_subjects(question: str, about: tuple[str, ...]) -> None:
    assert subjects(question) == about


def test_command_of_a_child_that_is_killed_is_killed_too(tmp_path: Path) -> None:
    """The child itself has no time to end it: the kernel does."""
    code = (
        "import os, sys\n"
        "from topocheck.host.live.command import run_command\n"
        'script = \'echo $$ > "$1/new"; mv "$1/new" "$1/pid"; exec sleep 1000\'\n'
        "run_command(['sh', '-c', script, 'sh', sys.argv[1]], 1000)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[2])
    until(lambda: (tmp_path / "pid").exists())
    pid = int((tmp_path / "pid").read_text())
    child.kill()
    child.wait()
    until(lambda: not alive(pid))


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and that nobody has collected yet does not."""
    try:
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")
    except OSError:
        return False


@pytest.mark.slow
def test_command_of_a_probe_is_ended_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program still running when the time of the run is over is killed, not left to itself."""
    monkeypatch.setenv("TOPOCHECK_TEST_FOLDER", str(tmp_path))
    answers = gather([SickProbe("program", "commands", 1000, sick.read_slow_program)], 10)
    assert status("program", answers).state == "timed_out"
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not alive(pid))
