"""The child that starts NVML before the rest of the program is loaded: whatever becomes of it, no answer is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.stubs.build import build_library, run_python

NAME = "libnvidia-ml.so.1"
_ASK = """
import json, sys, time
from topocheck import collect
from topocheck.host.gather import gpus
gpus.driver_is_loaded = lambda: True
{before}
began = time.monotonic()
collect.begin(cross_check=False)
answers = collect.ask_machine(budget_s=20.0)
gpus = answers["nvml:DeviceGetCount"]
print(json.dumps([
    gpus if isinstance(gpus, int) else str(gpus),
    answers["probe:nvml"],
    time.monotonic() - began,
    answers["probe:pci"]["state"],
]))
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library("nvml_stub.c", tmp_path_factory.mktemp("nvml"), NAME)


def asked(libraries: Path, before: str = "", **variables: str) -> tuple[Any, dict[str, Any], float]:
    """Return (number of GPUs or the error, how the probe went, seconds) of asking as `topocheck report` does."""
    done = run_python(_ASK.format(before=before), libraries=libraries, **variables)
    assert done.returncode == 0, done.stderr
    gpus, status, seconds, pci = json.loads(done.stdout)
    assert pci == "ok"
    return gpus, status, seconds


def test_it_is_the_early_child_that_answers(stub: Path) -> None:
    # Were it another child, this one would be started by start_child, which here cannot start one for NVML.
    before = (
        "from topocheck.host.gather import gather\n"
        "start = gather.start_child\n"
        "def refuse(job):\n"
        "    if job.probes[0].name == 'nvml': raise OSError('no second child')\n"
        "    return start(job)\n"
        "gather.start_child = refuse\n"
    )
    gpus, status, _ = asked(stub, before, NVML_STUB_GPUS="3")
    assert (gpus, status["state"]) == (3, "ok")


def test_a_process_with_threads_asks_in_the_ordinary_way(stub: Path) -> None:
    before = "import threading\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    before += "from topocheck.process import fork\nfork.fork = None\n"
    gpus, status, _ = asked(stub, before)
    assert (gpus, status["state"]) == (2, "ok")


def test_no_second_process_for_it_to_be_had(stub: Path) -> None:
    before = (
        "import os\n"
        "fork, refused = os.fork, []\n"
        "def once():\n"
        "    if refused: return fork()\n"
        "    refused.append(1)\n"
        "    raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "os.fork = once\n"
    )
    gpus, status, _ = asked(stub, before)
    assert (gpus, status["state"]) == (2, "ok")


def test_crash_before_the_first_question_loses_nothing(stub: Path, tmp_path: Path) -> None:
    gpus, status, _ = asked(stub, NVML_STUB_ONCE=str(tmp_path / "crashed"))
    assert (tmp_path / "crashed").exists()
    assert (gpus, status["state"]) == (2, "ok")


@pytest.mark.slow
def test_hang_before_the_first_question_loses_nothing_but_time(stub: Path, tmp_path: Path) -> None:
    gpus, status, seconds = asked(stub, NVML_STUB_ENDLESS=str(tmp_path / "hung"))
    assert (tmp_path / "hung").exists()
    assert (gpus, status["state"]) == (2, "ok")
    assert seconds >= 4  # the early child was waited for
    assert seconds < 14  # and no longer than its 5 s: 15 s would leave an ordinary child too little of the 20 s


@pytest.mark.slow
@pytest.mark.parametrize(("variable", "word"), [("NVML_STUB_CRASH", "signal 11"), ("NVML_STUB_SLEEP", "no answer in")])
def test_sick_start_is_named_by_its_question(stub: Path, variable: str, word: str) -> None:
    gpus, status, seconds = asked(stub, **{variable: "nvmlInitWithFlags"})
    assert word in gpus
    assert status["state"] in ("failed", "timed_out")
    assert "DeviceGetCount" in status["detail"]
    assert seconds < 25


def test_no_library(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("not a library")
    gpus, status, _ = asked(tmp_path)
    assert "not found" in gpus
    assert status["state"] == "empty"
