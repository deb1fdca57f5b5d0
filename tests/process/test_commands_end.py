"""Commands that are ended from outside, at several moments: nothing of them stays, and their readers see the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require_program
from tests.stubs.build import build_library
from tests.support.processes import Family
from tests.support.waiting import until

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
RECORDING = REPOSITORY / "tests/recordings/h100_x2_vm.snap"
ENDINGS = [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
COMMAND = "from topocheck.cli.main import main; main()"


@pytest.fixture
def family() -> Iterator[Family]:
    family = Family()
    yield family
    for pid in family.pids():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def hung_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library("nvml_stub.c", tmp_path_factory.mktemp("nvml"), "libnvidia-ml.so.1")


@pytest.fixture(scope="module")
def many_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So many that the command is not done before it is ended."""
    folder = tmp_path_factory.mktemp("fleet")
    shutil.copy(RECORDING, folder / "0.snap")
    for i in range(1, 2000):
        os.link(folder / "0.snap", folder / f"{i}.snap")
    return folder


def end_at(argv: list[str], members: int, ending: signal.Signals, family: Family, **variables: str) -> None:
    """Start a command, end it once it has `members` processes, and see that nothing is left."""
    env = family.environment | {"PYTHONPATH": str(REPOSITORY)} | variables
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *argv],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
    )
    until(lambda: len(family.pids()) >= members or command.poll() is not None)
    assert command.poll() is None, command.communicate()[1].decode()
    command.send_signal(ending)
    _, err = command.communicate(timeout=60)  # end of file, whatever became of the children
    assert b"Traceback" not in err, err.decode()
    # What was measured until then is printed; where nothing can be, the signal itself is the end.
    assert command.returncode in (-ending, 128 + ending)
    family.wait_until_gone()


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("members", [2, 4])
@pytest.mark.parametrize("command", ["report", "check"])
def test_while_nvml_hangs(command: str, members: int, ending: signal.Signals, family: Family, hung_nvml: Path) -> None:
    library = {"LD_LIBRARY_PATH": str(hung_nvml), "NVML_STUB_SLEEP": "nvmlInitWithFlags"}
    end_at([command], members, ending, family, **library)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("members", [2, 3])
def test_while_files_are_read(members: int, ending: signal.Signals, family: Family, many_files: Path) -> None:
    end_at(["fleet", str(many_files), "--processes", "2"], members, ending, family)


@pytest.mark.parametrize("ending", ENDINGS)
def test_while_a_fresh_interpreter_asks(ending: signal.Signals, family: Family, hung_nvml: Path) -> None:
    """A process with threads starts its children as fresh interpreters."""
    code = (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "from topocheck.host.gather.gather import gather\n"
        "from topocheck.probes.registry import PROBES\n"
        "gather([p for p in PROBES if p.group == 'nvml'], 1000)\n"
    )
    library = {"LD_LIBRARY_PATH": str(hung_nvml), "NVML_STUB_SLEEP": "nvmlInitWithFlags"}
    asker = subprocess.Popen(
        [sys.executable, "-c", code],
        env=family.environment | {"PYTHONPATH": str(REPOSITORY)} | library,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    until(lambda: len(family.pids()) == 2)
    asker.send_signal(ending)
    asker.communicate(timeout=60)
    family.wait_until_gone()


@pytest.mark.parametrize("ending", ENDINGS)
def test_while_host_memory_is_copied(ending: signal.Signals, family: Family) -> None:
    end_at(["bw", "--full", "--no-color"], 2, ending, family)


@pytest.mark.torch
@pytest.mark.parametrize("members", [2, 4])
@pytest.mark.parametrize("ending", ENDINGS)
def test_while_ranks_measure(ending: signal.Signals, members: int, family: Family) -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    end_at(["bw", "--full", "--no-copies", "--backend", "gloo", "--ranks", "2"], members, ending, family)


@pytest.mark.service
@pytest.mark.parametrize("members", [2, 4])
@pytest.mark.parametrize("ending", ENDINGS)
def test_while_ranks_of_mpirun_measure(ending: signal.Signals, members: int, family: Family) -> None:
    """mpirun gives its ranks process groups of their own."""
    require_program("mpirun")
    pytest.importorskip("mpi4py", reason="needs mpi4py (the [mpi] extra)")
    end_at(["bw", "--full", "--no-copies", "--backend", "mpi", "--ranks", "2"], members, ending, family)
