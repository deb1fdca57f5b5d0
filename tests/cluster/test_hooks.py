"""What torch's own compression hooks refuse over Gloo, asked of the real torch, and how it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from topocheck.tests_live.scale import rows_after_hook
from topocheck.tests_live.scale_plan import train_rows
from topocheck.tests_live.scale_types import Ground, ScaleOptions
from topocheck.tests_live.train_step import why_not
from topocheck.tests_live.train_types import MIB, TrainRow

REPOSITORY = Path(__file__).parents[2]


SMALL = ("--backend", "gloo", "--ranks", "2", "--quick", "--gradient", "1MiB", "--buckets", "none", "--no-digits")


def scale(folder: Path, *argv: str, code: int = 0, **environment: str) -> dict[str, Any]:
    """Run `topocheck scale` in a process of its own and return its JSON."""
    pytest.importorskip("torch", reason="torch is not installed")
    out = folder / "scale.json"
    done = subprocess.run(
        [sys.executable, "-m", "topocheck", "scale", *SMALL, *argv, "--format", "json", "-o", str(out)],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return dict(json.loads(out.read_text()))


def test_real_hooks_over_gloo(tmp_path: Path) -> None:
    report = scale(tmp_path, "--hooks", "8bit_tensor", "--no-patterns")
    (line,) = [x for x in report["not_applicable"] if "quantization_pertensor_hook" in x]
    assert "as NCCL gives it" in line
    assert "IndexError" not in line


NO_NUMPY = """
import sys
sys.modules["numpy"] = None  # as if it were not installed
"""
POWERSGD_KILLS = """
import os, numpy.random
numpy.random.RandomState = lambda seed: os.kill(os.getpid(), 9)  # PowerSGDState makes one
"""


@pytest.mark.parametrize(
    ("at_start", "code", "why"),
    [
        (NO_NUMPY, 0, "PowerSGD, rank 1: needs numpy, which is not installed: pip install numpy"),
        (POWERSGD_KILLS, 3, "was ended by SIGKILL in build the model"),
    ],
    ids=["no numpy", "killed"],
)
def test_a_hook_that_fails_loses_its_own_row_only(tmp_path: Path, at_start: str, code: int, why: str) -> None:
    pytest.importorskip("numpy", reason="numpy is not installed")
    (tmp_path / "sitecustomize.py").write_text(at_start)
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    report = scale(tmp_path, "--hooks", "powersgd,fp16", code=code, PYTHONPATH=path)
    rows = {t["hook"]: t for t in report["training"] if t["ranks"] == 2}
    assert rows["powersgd"]["step_us"] is None
    assert why in rows["powersgd"]["why"]
    assert rows["fp16"]["step_us"] > 0
    assert rows["fp16"]["why"] == ""
    assert {p["pattern"] for p in report["patterns"]} == {"backend", "ring", "parameter_server"}
    assert [n["id"] for n in report["not_measured"]] == (["scale:train:gloo:host:2:hook powersgd"] if code else [])
    assert "DETAIL" not in json.dumps(report["not_measured"])


def test_an_error_that_is_not_known_is_told_as_it_is() -> None:
    row = TrainRow(id="r", backend="nccl", device="gpu", ranks=2, hook="8bit_tensor")
    assert why_not(row, "IndexError: x") == "IndexError: x"
    plain = TrainRow(id="r", backend="gloo", ranks=2)
    assert why_not(plain, "IndexError: x") == "IndexError: x"
    power = TrainRow(id="r", backend="gloo", ranks=2, hook="powersgd")
    assert "GPU tensors only" in why_not(power, "ValueError: Expected a cuda device, but got: cpu")


def test_after_a_hook_that_ended_the_ranks_its_own_other_rows_are_left_out() -> None:
    rows = train_rows(Ground(ranks=2), ScaleOptions(gradient_bytes=MIB, hooks=("none", "powersgd", "fp16")))
    stem = "scale:train:gloo:host:2"
    later = [r.id for r in rows_after_hook(rows, {f"{stem}:hook powersgd"})]
    assert later[:2] == [f"{stem}:hook fp16", f"{stem}:digits fp16"]
    assert f"{stem}:digits powersgd" not in later
    # Without a hook the ranks themselves are at fault: nothing is begun anew.
    assert rows_after_hook(rows, {f"{stem}:step"}) == ()
    assert rows_after_hook(rows, set()) == ()
