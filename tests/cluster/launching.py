"""Starting topocheck's commands as ranks of a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
CLUSTER = ("report", "--cluster", "--format", "json", "--deadline", "400")
PAIRS = ("network", "bw", "--transport", "tcp", "--transport", "gloo", "--seconds", "0.3", "--format", "json")
SCALE = (
    "scale", "--backend", "gloo", "--quick", "--gradients", "512K", "--size", "256K", "--buckets", "none",
    "--no-digits", "--no-patterns", "--format", "json", "--hooks",
)  # fmt: skip
"""Over Gloo, small; the compression hooks follow, or `none`."""
BW = ("bw", "--quick", "--backend", "gloo", "--collective", "all_reduce", "--sizes", "64K", "--format", "json")


def topocheck(*args: str) -> list[str]:
    """Return the command of one rank, of this tree."""
    return [sys.executable, "-c", "from topocheck.cli.main import main; main()", *args]


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which topocheck of this tree is imported and no launcher is to be seen."""
    hidden = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TOPOCHECK_NODE")
    kept = {k: v for k, v in os.environ.items() if k not in hidden and not k.startswith(("SLURM_", "OMPI_", "PMI"))}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def run(argv: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        argv,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd="/",
    )
