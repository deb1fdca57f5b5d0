"""Labs with real ranks: started here over Gloo, and by mpirun over MPI."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require_program
from tests.support.waiting import PATIENCE_S

REPOSITORY = Path(__file__).parents[3]


def lab(folder: Path, name: str, *argv: str) -> dict[str, Any]:
    """Run a lab in a process of its own and return its JSON."""
    pytest.importorskip("torch", reason="torch is not installed")
    out = folder / "lab.json"
    done = subprocess.run(
        [sys.executable, "-m", "topocheck", "lab", name, *argv, "--quick", "--format", "json", "-o", str(out)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(out.read_text()))


def column(report: dict[str, Any], table: int, key: str) -> list[Any]:
    found = report["tables"][table]
    at = [c["key"] for c in found["spec"]["columns"]].index(key)
    return [r["values"][at] for r in found["rows"]]


@pytest.mark.slow
@pytest.mark.torch
def test_exchanges_over_gloo(tmp_path: Path) -> None:
    report = lab(tmp_path, "collectives", "--backend", "gloo,nccl", "--ranks", "2,4", "--sizes", "4KiB")
    assert report["record"]["nodes"][0]["framework"].startswith("torch")
    backends = column(report, 0, "backend")
    assert set(backends) == {"gloo", "nccl"}
    data = [d for d, b in zip(column(report, 0, "data"), backends, strict=True) if b == "gloo"]
    # Six ways with two ranks, and with four the hierarchical one as well.
    assert data == ["right"] * 13


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.service
def test_a_pipeline_and_servers_over_mpi(tmp_path: Path) -> None:
    require_program("mpirun")
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    argv = ("--backend", "mpi", "--ranks", "3", "--compute", "1")
    report = lab(tmp_path, "pipeline", *argv, "--pieces", "2")
    assert column(report, 0, "data") == ["right", "right"]
    report = lab(tmp_path, "parameter-server", *argv, "--sizes", "4KiB")
    assert all(
        v is not None for v, r in zip(column(report, 0, "measured"), column(report, 0, "ranks"), strict=True) if r <= 3
    )


@pytest.mark.slow
@pytest.mark.torch
def test_torchs_own_pipeline_moves_the_same_and_holds_as_much(tmp_path: Path) -> None:
    report = lab(tmp_path, "pipeline", "--backend", "gloo", "--ranks", "2", "--pieces", "4", "--compute", "2")
    assert column(report, 0, "schedule") == ["F-then-B", "F-then-B (torch)", "1F1B", "1F1B (torch)"]
    # F-then-B keeps all 4 micro-batches, 1F1B as many as there are stages; torch's are counted in its passes.
    assert column(report, 0, "held") == [4, 4, 2, 2]
    assert column(report, 0, "data") == ["right"] * 4
    # (4 + 2 - 1) forward and backward passes one after the other, 2 ms and 4 ms: no step can be shorter.
    assert all(t >= 30_000 for t in column(report, 0, "time_us"))
