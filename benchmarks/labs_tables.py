"""Print the table of every lab, with ranks of this node and on two nodes of a real Slurm, and keep what was printed.

    python benchmarks/labs_tables.py docs/measurements/2026-11-29-labs-cpu             # all; some minutes on idle cores
    python benchmarks/labs_tables.py FOLDER --only pipeline,halo --no-slurm

Each table is one command of topocheck, whose line is printed with its exit code, its seconds and the load before it.
Writes NAME.txt, slurm_NAME.txt and NAME.svg where the lab has curves, and `commands.md` with the table of what was
run. The Slurm is two slurmd of this machine (tests/support/slurm.py; as root, with munge). Exit code 3 (a row that
cannot run here, with its reason) is expected on a machine without GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

COMMON = ("--quick", "--width", "100")
LABS: dict[str, str] = {
    "record": "",
    "p2p": "--backend gloo,mpi --ranks 2 --sizes 4,4KiB,64KiB,1MiB",
    "collectives": "--backend gloo,mpi --ranks 2,4 --sizes 256KiB",
    "broadcast": "--backend gloo,mpi --ranks 2,4 --pieces 1,2,4,8 --sizes 1MiB",
    "bounds": "--from docs/examples/half_width.snap",
    "parameter-server": "--backend gloo --ranks 1,2,4",
    "compression": "--backend gloo --ranks 1,2,4 --epochs 4 --gradients 1MiB",
    "compression_mpi": "--backend mpi --ranks 1,2 --epochs 2 --gradients 1MiB",
    "fusion": "--backend gloo --ranks 2,4 --gradients 2MiB",
    "pipeline": "--backend gloo,mpi --ranks 2,4 --pieces 2,4,8 --compute 20",
    "halo": "--backend gloo,mpi --ranks 2,4",
    "backends": "--ranks 1,2,4 --gradients 1MiB",
    "models": "--backend gloo --ranks 1,2,4",
}
"""File, which is the lab's name up to `_`, -> options. Labs of pairs and groups begin at two ranks, the others have a
serial row. Ranks of MPI spin while they wait, so more of them than cores take minutes."""
SLURM = {
    "record": "",
    "p2p": "--backend gloo --sizes 4,4KiB,64KiB,1MiB",
    "collectives": "--backend gloo --sizes 256KiB",
    "broadcast": "--backend gloo --ranks 4 --sizes 1MiB",
    "parameter-server": "--backend gloo --ranks 2,4",
    "compression": "--backend gloo --ranks 1,4 --epochs 2 --gradients 1MiB",
    "fusion": "--backend gloo --ranks 4 --gradients 1MiB --sizes 4KiB,64KiB,512KiB,4MiB",
    "pipeline": "--backend gloo --ranks 4 --pieces 4,8 --compute 20",
    "halo": "--backend gloo --ranks 4",
    "backends": "--backend gloo --gradients 1MiB",
    "models": "--backend gloo --ranks 1,4",
}
"""The same on two nodes: two ranks on each."""
SRUN = ("srun", "-N2", "-n4", "--overcommit")
LIMIT_S = 300


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="labs by comma")
    parser.add_argument("--no-slurm", action="store_true")
    parser.add_argument("--no-local", action="store_true")
    args = parser.parse_args()
    chosen = set(args.only.split(",")) if args.only else set(LABS)
    args.folder.mkdir(parents=True, exist_ok=True)
    began, rows = time.monotonic(), []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the Slurm of this run ends with it
    if not args.no_local:
        for name in (n for n in LABS if n in chosen):
            lab = name.partition("_")[0]
            words = ["lab", lab, *LABS[name].split()]
            chart = ["--curve", str(args.folder / f"{name}.svg")] if lab in curves() else []
            rows.append(one(args.folder / f"{name}.txt", [*words, *COMMON, *chart], (), dict(os.environ)))
    if not args.no_slurm:
        from tests.support.slurm import free_ports

        with cluster() as (environment, folder):
            for name in (n for n in SLURM if n in chosen):
                words = ["lab", name, *SLURM[name].split(), *COMMON]
                environment["MASTER_PORT"] = str(free_ports(1)[0])
                rows.append(one(args.folder / f"slurm_{name}.txt", words, SRUN, environment, folder))
    rows = kept(args.folder / "commands.md", rows) + rows
    head = [f"{datetime.date.today().isoformat()}, {time.monotonic() - began:.0f} s for the last run", ""]
    head += ["| file | command | exit code | seconds | load before |", "| --- | --- | --- | --- | --- |"]
    (args.folder / "commands.md").write_text("\n".join((*head, *rows, "")))


def kept(path: Path, rows: list[str]) -> list[str]:
    """Return the lines of files that an earlier run wrote and this one did not."""
    old = path.read_text().splitlines() if path.exists() else []
    new = {r.split("|")[1] for r in rows}
    return [line for line in old if line.startswith("| `") and line.split("|")[1] not in new]


def curves() -> frozenset[str]:
    """Return the labs that have curves."""
    from topocheck.bandwidth.lab_catalogue import LABS as ALL

    return frozenset(x.name for x in ALL if any(t.curves for t in x.tables))


def one(path: Path, words: list[str], before: tuple[str, ...], environment: dict[str, str], at: Path = Path()) -> str:
    """Run one command, write what it prints, and return its line of the table."""
    load, began = os.getloadavg()[0], time.monotonic()
    shown = shlex.join([*before, "topocheck", *(Path(w).name if w.endswith(".svg") else w for w in words)])
    print(f"$ {shown}", flush=True)
    command = [*before, sys.executable, "-P", "-m", "topocheck", *words]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S,
            check=False, cwd=at if before else HERE.parent, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        code, text = str(done.returncode), done.stdout or done.stderr
    except subprocess.TimeoutExpired:
        code, text = "stopped", f"stopped after {LIMIT_S} s\n"
    path.write_text(text)
    took = time.monotonic() - began
    print(f"{text}\nexit code {code}, {took:.0f} s, load {load:.1f} before\n", flush=True)
    return f"| `{path.name}` | `{shown}` | {code} | {took:.0f} | {load:.1f} |"


@contextlib.contextmanager
def cluster() -> Iterator[tuple[dict[str, str], Path]]:
    """Start two slurmd; give the environment of a job of theirs and its folder."""
    from tests.cluster.launching import environment
    from tests.support.slurm import slurm_cluster

    with tempfile.TemporaryDirectory() as folder, slurm_cluster(Path(folder), {}) as made:
        # n1 and n2 are names of Slurm's alone: no resolver knows where rank 0 is.
        yield environment() | made.environment | {"MASTER_ADDR": "127.0.0.1"}, Path(folder)


if __name__ == "__main__":
    main()
