"""Nothing is imported from the current folder, by no command and by none of its children."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import require_program
from tests.support.snapshots import write_snapshot

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
MODULES = ("topocheck", "torch", "mpi4py", "msgspec", "numpy", "psutil", "pynvml", "typer", "rich", "select", "fcntl")
INSTALLED = [sys.executable, "-P", "-c", "from topocheck.cli.main import main; main()"]
"""What the script that pip installs does: the folder of a script is on its path, the current folder is not."""
AS_CODE = [sys.executable, "-c", "from topocheck.cli.main import main; main()"]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder in which every module that is imported leaves its name in `ran`."""
    folder = tmp_path / "hostile"
    for name in MODULES:
        package = folder / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(
            f"import os\nwith open({str(tmp_path / 'ran')!r}, 'a') as f: print(__name__, os.getpid(), file=f)\n"
        )
        (package / "__main__.py").write_text("")
    write_snapshot(tmp_path / "hgx.snap", "hgx_h100_cx7")
    for i in range(20):
        shutil.copy(tmp_path / "hgx.snap", tmp_path / f"fleet{i}.snap")
    return folder


def run(argv: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # The tests may be run from a checkout that is not installed: its folder is then on the path by name.
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    ran = folder.parent / "ran"
    assert not ran.exists(), f"imported from the current folder:\n{ran.read_text()}{done.stderr}"
    return done


STATIC = [
    ["report"],
    ["check"],
    ["fleet", "..", "--processes", "2"],
    ["snapshot", "save", "../new.snap"],
    ["report", "--from", "../hgx.snap"],
    ["placement"],
    ["emit", "numactl", "--from", "../hgx.snap"],
]


@pytest.mark.parametrize("words", STATIC, ids=lambda w: " ".join(w[:2]))
def test_static_commands(words: list[str], hostile: Path) -> None:
    done = run([*INSTALLED, *words], hostile)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1, 3), done.stderr


def test_copies_of_host_memory(hostile: Path) -> None:
    run([*INSTALLED, "bw", "--quick"], hostile)


@pytest.mark.torch
def test_collectives(hostile: Path) -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    done = run([*INSTALLED, "bw", "--quick", "--backend", "gloo", "--sizes", "1K", "--format", "json"], hostile)
    assert done.returncode == 0, done.stderr


@pytest.mark.torch
def test_training(hostile: Path) -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    small = ["--ranks", "2", "--backend", "gloo", "--quick", "--no-digits", "--no-patterns"]
    done = run([*INSTALLED, "scale", *small, "--format", "json"], hostile)
    assert done.returncode == 0, done.stderr


@pytest.mark.service
def test_over_mpi(hostile: Path) -> None:
    require_program("mpirun")
    pytest.importorskip("mpi4py", reason="needs mpi4py (the [mpi] extra)")
    done = run([*INSTALLED, "bw", "--quick", "--backend", "mpi", "--sizes", "1K", "--format", "json"], hostile)
    assert done.returncode == 0, done.stderr


def test_started_with_the_current_folder_on_the_path(hostile: Path) -> None:
    """`python -c` puts it first: once the command runs it is taken off, for itself and for its children."""
    for name in ("topocheck", "select", "fcntl"):  # Python's own doing, before any line of ours
        shutil.rmtree(hostile / name)
    run([*AS_CODE, "report"], hostile)
    run([*AS_CODE, "bw", "--quick"], hostile)
    for name in ("select", "fcntl"):
        shutil.copytree(hostile / "torch", hostile / name)
    run([sys.executable, "-m", "topocheck", "report"], hostile)


def test_in_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    """`python -m topocheck` there finds the package only by the current folder, and so must its children."""
    code = (
        "import sys, importlib.machinery as m\n"
        "from topocheck.process.python import child_environment, leave_current_folder\n"
        "leave_current_folder()\n"
        "print(sys.path[0] == '', child_environment().get('PYTHONPATH'))\n"
    )
    shutil.copytree(REPOSITORY / "topocheck", tmp_path / "topocheck", ignore=shutil.ignore_patterns("__pycache__"))
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"True {os.path.realpath(tmp_path)}\n"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env["PYTHONPATH"] = str(tmp_path)
    done = subprocess.run(argv, cwd=elsewhere, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"False {tmp_path}\n"
