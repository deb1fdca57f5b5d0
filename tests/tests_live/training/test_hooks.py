"""Compression hooks over Gloo with the real torch: ours run, and one that fails loses its own rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import PATIENCE_S
from topocheck.tests_live.launch.training_job import HOOKS, MIB
from topocheck.tests_live.training.plan import train_rows
from topocheck.tests_live.training.report_types import JobLayout, ScaleOptions
from topocheck.tests_live.training.run import rows_after_hook

REPOSITORY = Path(__file__).parents[3]


SMALL = ("--backend", "gloo", "--ranks", "2", "--quick", "--gradients", "1MiB", "--buckets", "none", "--no-digits")


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
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return dict(json.loads(out.read_text()))


@pytest.mark.slow
@pytest.mark.torch
def test_every_hook_runs_over_gloo(tmp_path: Path) -> None:
    hooks = [h for h in HOOKS if h != "powersgd"]
    report = scale(tmp_path, "--hooks", ",".join(h for h in hooks if h != "none"), "--no-patterns")
    errors = {t["hook"]: t["gradient_error"] for t in report["training"] if t["ranks"] == 2 and t["hook"] != "none"}
    assert set(errors) == {"fp16", "bf16", "fp8", "8bit_tensor", "8bit_channel", "topk", "sign"}
    # Bits kept, or elements and signs alone.
    assert errors["fp16"] < errors["bf16"] < errors["8bit_channel"] < errors["8bit_tensor"] < errors["sign"] < 1
    assert errors["fp8"] < 2**-4
    assert report["not_applicable"] == []


NO_NUMPY = """
import sys
sys.modules["numpy"] = None  # as if it were not installed
"""
POWERSGD_KILLS = """
import os, numpy.random
numpy.random.RandomState = lambda seed: os.kill(os.getpid(), 9)  # PowerSGDState makes one
"""


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    ("at_start", "code", "why"),
    [
        (NO_NUMPY, 0, "PowerSGD: needs numpy, which is not installed: pip install numpy"),
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
    assert why in rows["powersgd"]["reason"]
    assert rows["fp16"]["step_us"] > 0
    assert rows["fp16"]["reason"] == ""
    assert {p["pattern"] for p in report["patterns"]} == {"backend", "ring", "parameter_server"}
    assert [n["id"] for n in report["not_measured"]] == (["scale:train:gloo:host:2:hook powersgd"] if code else [])
    assert "DETAIL" not in json.dumps(report["not_measured"])


def test_after_a_hook_that_ended_the_ranks_its_own_other_rows_are_left_out() -> None:
    rows = train_rows(JobLayout(ranks=2), ScaleOptions(gradient_bytes=MIB, hooks=("none", "powersgd", "fp16")))
    stem = "scale:train:gloo:host:2"
    later = [r.id for r in rows_after_hook(rows, {f"{stem}:hook powersgd"})]
    assert later[:2] == [f"{stem}:hook fp16", f"{stem}:digits fp16"]
    assert f"{stem}:digits powersgd" not in later
    # Without a hook the ranks themselves are at fault: nothing is begun anew.
    assert rows_after_hook(rows, {f"{stem}:step"}) == ()
    assert rows_after_hook(rows, set()) == ()
