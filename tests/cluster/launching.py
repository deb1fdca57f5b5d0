"""Starting topocheck's commands as ranks of a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLUSTER = (
    "import sys; from pathlib import Path; from topocheck.cli.cluster import cluster_report; "
    "sys.exit(cluster_report(from_=Path(sys.argv[1]) if sys.argv[1:] else None, format_='json', deadline_s=40))"
)
PAIRS = "import sys; from topocheck.cli.node_pairs import node_pairs; sys.exit(node_pairs(seconds=0.3, format_='json'))"
SCALE = "import typer; from topocheck.cli.scale import scale; typer.run(scale)"
BW = "import typer; from topocheck.cli.bw import bw; typer.run(bw)"
QUICK_SCALE = (
    "--backend", "gloo", "--quick", "--gradient", "512K", "--size", "256K", "--hooks", "fp16", "--buckets", "none",
    "--no-digits", "--format", "json",
)  # fmt: skip
QUICK_BW = ("--quick", "--backend", "gloo", "--collective", "all_reduce", "--sizes", "64K", "--format", "json")


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which topocheck of this tree is imported and no launcher is to be seen."""
    hidden = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TOPOCHECK_NODE")
    kept = {k: v for k, v in os.environ.items() if k not in hidden and not k.startswith(("SLURM_", "OMPI_", "PMI"))}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def run(argv: list[str], env: dict[str, str], timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        argv, env=env, capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL, cwd="/"
    )


def python(code: str, *args: str) -> list[str]:
    """Return the command of one rank."""
    return [sys.executable, "-c", code, *args]
