"""The prediction beside the logs that NCCL itself wrote on two H100s (docs/measurements/)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
LOGS = REPOSITORY / "docs/measurements/2026-11-28-h100x2/nccl_oracle"


def test_prediction_agrees_with_every_log():
    argv = [sys.executable, str(REPOSITORY / "benchmarks/nccl_oracle.py"), "compare", str(LOGS)]
    said = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    rows = [line for line in said.stdout.splitlines() if (line.startswith("| ") and "P2P" in line) or "SHM" in line]
    assert len(list(LOGS.glob("*.log"))) == 18
    assert said.stdout.count("| agrees |") == 18, said.stdout + said.stderr
    assert rows
