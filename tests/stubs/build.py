"""Compile a stand-in for a driver's library, and run Python with it in place of the real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import require_program
from tests.support.waiting import PATIENCE_S

_HERE = Path(__file__).parent
_REPOSITORY = _HERE.parent.parent


def build_library(source: str, folder: Path, name: str, *flags: str) -> Path:
    """Compile `source` of this folder to `folder`/`name`; return `folder`. Skips where there is no gcc."""
    require_program("gcc")
    folder.mkdir(parents=True, exist_ok=True)
    argv = ["gcc", "-Wall", "-Wextra", "-Werror", "-O0", "-shared", "-fPIC", *flags]
    subprocess.run([*argv, "-o", str(folder / name), str(_HERE / source)], check=True, timeout=PATIENCE_S)
    return folder


def run_python(code: str, *args: str, libraries: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own in which `libraries` comes first; it must end by itself."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": str(_REPOSITORY), **variables}
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


_ASK = """
import json, sys
from topocheck.host.live import cuda, nvml
from topocheck.host.base import HostError
out = []
for kind, call, *args in json.loads(sys.argv[1]):
    try:
        out.append({"answer": {"nvml": nvml, "cuda": cuda}[kind].ask(call, *args)})
    except HostError as e:
        out.append({"reason": e.reason.value, "detail": e.detail})
print(json.dumps(out))
"""


def ask_all(questions: list[list[Any]], libraries: Path, **variables: str) -> list[dict[str, Any]]:
    """Put questions ([kind, call, *args]) to NVML and CUDA in one process; return what came back."""
    done = run_python(_ASK, json.dumps(questions), libraries=libraries, **variables)
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers
