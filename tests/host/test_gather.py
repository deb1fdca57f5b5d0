"""The gatherer against real child processes that hang and crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.host import sick
from tests.host.sick import SickBackend, SickProbe
from topocheck.host.base import HostError
from topocheck.host.gather import gather, replay, status
from topocheck.host.worker import subjects
from topocheck.model.base import Reason

LETTERS = SickProbe("letters", "files", 30, sick.read_letters)
GPUS = SickProbe("gpus", "nvml", 30, sick.read_four_gpus)
QUICK_GPUS = SickProbe("gpus", "nvml", 0.75, sick.read_four_gpus)
QUICK_LETTERS = SickProbe("letters", "files", 0.75, sick.read_letters)


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
    answers = gather([LETTERS, GPUS], 60, SickBackend())
    assert answers["psutil:b"] == "value of psutil:b"
    assert answers["nvml:DeviceGetUUID|3"] == "value of nvml:DeviceGetUUID|3"
    for probe in (LETTERS, GPUS):
        said = status(probe.name, answers)
        assert (said.state, said.detail) == ("ok", "")
        assert answers[f"duration:{probe.name}"] == said.ms > 0
    assert str(answers["now:"]).endswith("Z")


def test_replay_gives_what_the_child_was_told() -> None:
    answers = gather([LETTERS], 60, SickBackend())
    assert replay(LETTERS, answers) == [f"value of psutil:{c}" for c in "abc"]


def test_fifo_nobody_writes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("first")
    os.mkfifo(tmp_path / "b")
    (tmp_path / "c").write_text("last")
    monkeypatch.setenv("TOPOCHECK_TEST_FOLDER", str(tmp_path))
    probe = SickProbe("folder", "files", 1, sick.read_fifo)
    answers = gather([probe], 60)
    assert error(answers, f"read:{tmp_path}/b").reason is Reason.TIMED_OUT
    said = status("folder", answers)
    assert said.state == "timed_out"
    assert f"read:{tmp_path}/b" in said.detail
    assert replay(probe, answers) == ["first", "timed_out", "last"]


def test_crash_at_one_question_keeps_the_others(way: str) -> None:
    answers = gather([GPUS], 60, SickBackend(crash=("nvml:DeviceGetUUID|1",)))
    crash = error(answers, "nvml:DeviceGetUUID|1")
    assert crash.reason is Reason.UNSUPPORTED
    assert f"signal {signal.SIGSEGV.value}" in crash.detail
    rest = {f"nvml:{c}|{g}" for c in sick.CALLS for g in range(4)} - {"nvml:DeviceGetUUID|1"}
    assert all(answers[k] == f"value of {k}" for k in rest)
    said = status("gpus", answers)
    assert said.state == "failed"
    assert "nvml:DeviceGetUUID|1" in said.detail


def test_child_that_exits_is_told_from_a_crash() -> None:
    answers = gather([LETTERS], 60, SickBackend(leave=("psutil:b",)))
    assert "exit status 7" in error(answers, "psutil:b").detail
    assert answers["psutil:c"] == "value of psutil:c"


def test_one_gpu_of_four_hangs(tmp_path: Path) -> None:
    log = tmp_path / "asked"
    answers = gather([QUICK_GPUS], 60, SickBackend(hang_gpu=2, asked_log=str(log)))
    for call in sick.CALLS:
        assert error(answers, f"nvml:{call}|2").reason is Reason.TIMED_OUT
        for gpu in (0, 1, 3):
            assert answers[f"nvml:{call}|{gpu}"] == f"value of nvml:{call}|{gpu}"
    asked = log.read_text().split()
    assert asked.count("nvml:DeviceGetName|0") == 1, "an answer that was had is not asked for again"
    assert "nvml:DeviceGetSerial|2" not in asked, "after two hangs the GPU is left alone"
    assert status("gpus", answers).state == "timed_out"


def test_child_that_ignores_sigterm_holds_nobody() -> None:
    """The hanging question ignores SIGTERM (tests/host/sick.py)."""
    answers = gather([QUICK_LETTERS], 60, SickBackend(hang=("psutil:a",)))
    assert replay(QUICK_LETTERS, answers)[1:] == ["value of psutil:b", "value of psutil:c"]


def test_budget_ends_everything_and_names_what_hung() -> None:
    slow = SickProbe("letters", "files", 1000, sick.read_letters)
    after = SickProbe("after", "files", 1000, sick.read_four_gpus)
    answers = gather([slow, after], 0.5, SickBackend(hang=("psutil:b",)))
    for name in ("letters", "after"):
        said = status(name, answers)
        assert said.state == "timed_out"
        assert "psutil:b" in said.detail
    assert replay(slow, answers)[0] == "value of psutil:a"
    assert all(text.startswith("timed_out") for text in replay(slow, answers)[1:])
    assert all(v.startswith("timed_out") for gpu in replay(after, answers) for v in gpu.values())


def test_other_groups_go_on_while_one_hangs() -> None:
    answers = gather([QUICK_LETTERS, GPUS], 60, SickBackend(hang=("psutil:a", "psutil:b", "psutil:c")))
    assert status("gpus", answers).state == "ok"
    assert status("letters", answers).state == "timed_out"


def test_restarts_have_a_cap() -> None:
    """Every question about every GPU crashes the child: the gatherer still comes to an end by itself."""
    keys = tuple(f"nvml:{c}|{g}" for c in sick.CALLS for g in range(4))
    answers = gather([GPUS], 60, SickBackend(crash=keys))
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
    probe = SickProbe("odd", "files", 30, read)  # type: ignore[arg-type]
    answers = gather([probe, LETTERS], 60, SickBackend())
    said = status("odd", answers)
    assert said.state == state
    assert word in said.detail
    assert status("letters", answers).state == "ok"


def test_probe_stuck_between_questions() -> None:
    probe = SickProbe("stuck", "files", 0.75, sick.read_stuck_between)
    answers = gather([probe, LETTERS], 60, SickBackend())
    assert status("stuck", answers).state == "timed_out"
    assert answers["psutil:before"] == "value of psutil:before"
    assert status("letters", answers).state == "ok"


def test_no_zombie_is_left() -> None:
    gather([QUICK_LETTERS, GPUS], 60, SickBackend(hang=("psutil:a",), crash=("nvml:DeviceGetName|0",)))
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_no_file_is_left_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    gather([QUICK_LETTERS], 60, SickBackend(hang=("psutil:a",)))
    assert set(os.listdir("/proc/self/fd")) == before


def test_no_process_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    # The test's own process may have threads (pytest-xdist), in which case a fresh interpreter would be started.
    monkeypatch.setattr("topocheck.host.child.fork_is_safe", lambda: True)
    said = status("letters", gather([LETTERS], 60, SickBackend()))
    assert said.state == "failed"
    assert "cannot start a process" in said.detail


def test_standard_output_ends_though_a_child_hangs() -> None:
    """slurmd waits for end of file: a child that cannot be killed must not hold our standard output."""
    code = (
        "import os, signal\n"
        "os.kill = lambda *a: None\n"  # as if the child sat in the kernel, where no signal reaches it
        "from topocheck.host import child\n"
        "child._PATIENCE_S = 0.05\n"
        "from tests.host.sick import *\n"
        "from topocheck.host.gather import gather\n"
        "p = SickProbe('letters', 'files', 0.3, read_letters)\n"
        "gather([p], 1, SickBackend(hang=('psutil:a', 'psutil:b', 'psutil:c')))\n"
        "print('pids', *child._left, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
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
        "from topocheck.host.command import run_command\n"
        'script = \'echo $$ > "$1/new"; mv "$1/new" "$1/pid"; exec sleep 1000\'\n'
        "run_command(['sh', '-c', script, 'sh', sys.argv[1]], 1000)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[2])
    wait_for(lambda: (tmp_path / "pid").exists())
    pid = int((tmp_path / "pid").read_text())
    child.kill()
    child.wait()
    wait_for(lambda: not alive(pid))


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and that nobody has collected yet does not."""
    try:
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")
    except OSError:
        return False


def test_command_of_a_probe_is_ended_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program still running when the time of the run is over is killed, not left to itself."""
    monkeypatch.setenv("TOPOCHECK_TEST_FOLDER", str(tmp_path))
    answers = gather([SickProbe("program", "commands", 1000, sick.read_slow_program)], 2)
    assert status("program", answers).state == "timed_out"
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not alive(pid))
