"""What torch's own compression hooks refuse over Gloo, asked of the real torch, and how it is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from topocheck.tests_live.train_step import why_not
from topocheck.tests_live.train_types import TrainRow

REPOSITORY = Path(__file__).parents[2]


def test_real_hooks_over_gloo(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    out = tmp_path / "scale.json"
    argv = ["scale", "--backend", "gloo", "--ranks", "2", "--quick", "--gradient", "1MiB", "--size", "1MiB"]
    argv += ["--hooks", "8bit_tensor", "--buckets", "none", "--no-digits", "--no-patterns"]
    done = subprocess.run(
        [sys.executable, "-m", "topocheck", *argv, "--format", "json", "-o", str(out)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [x for x in json.loads(out.read_text())["not_applicable"] if "quantization_pertensor_hook" in x]
    assert "as NCCL gives it" in line
    assert "IndexError" not in line


def test_an_error_that_is_not_known_is_told_as_it_is() -> None:
    row = TrainRow(id="r", backend="nccl", device="gpu", ranks=2, hook="8bit_tensor")
    assert why_not(row, "IndexError: x") == "IndexError: x"
    plain = TrainRow(id="r", backend="gloo", ranks=2)
    assert why_not(plain, "IndexError: x") == "IndexError: x"
    power = TrainRow(id="r", backend="gloo", ranks=2, hook="powersgd")
    assert "GPU tensors only" in why_not(power, "ValueError: Expected a cuda device, but got: cpu")
