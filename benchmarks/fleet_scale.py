"""How `topocheck fleet` grows with the number of nodes, and whether it finds what was planted.

    python benchmarks/fleet_scale.py --nodes 10000 --folder /tmp/fleet --output benchmarks/results/fleet_scale.json

Writes the JSON reports of described 8-GPU nodes: each faulty node is recorded, judged and reported on its own; the
healthy ones are copies of a few judged nodes with identifiers, addresses and counters of their own (tests/compare).
Then it runs the command on a tenth, a quarter, a half and all of them and measures time, memory and result. The
folder takes about half a megabyte a node and is kept for the next run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tests.compare import fleets, planting  # noqa: E402

SEED = 1
COMMAND = (
    "import sys; from topocheck.cli.fleet import fleet; import typer; app = typer.Typer(); app.command()(fleet); app()"
)


def main() -> None:
    """Generate, measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--healthy", type=int, default=24, help="distinct healthy nodes that are judged")
    parser.add_argument("--snapshots", type=int, default=100, help="snapshots judged to measure their rate")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    faults = planting.plan(args.nodes, args.nodes // 100, SEED)
    generate(args.folder, args.nodes, args.healthy, faults)
    results: dict[str, Any] = {
        "nodes": args.nodes,
        "faults": len(faults),
        "kinds_of_faults": len({f.name for f in faults.values()}),
        "processes": args.processes,
        "cpu": platform.processor() or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "report_bytes": sum(p.stat().st_size for p in args.folder.glob("part*/*.json")) // args.nodes,
        "runs": [],
    }
    parts = sorted(args.folder.glob("part*"))
    for share in (0.1, 0.25, 0.5, 1.0):
        used = parts[: max(1, round(share * len(parts)))]
        run, found = measure(used, args.processes)
        results["runs"].append(run)
        print(run, flush=True)
    results["found"] = judge(found, faults)
    if args.snapshots:
        results["snapshots"] = snapshots(args.folder, args.snapshots, args.processes)
    print(json.dumps(results, indent=2))
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(results, indent=2) + "\n")


def _healthy(number: int) -> str:
    return fleets.report(fleets.record(number, None, SEED), "recording")


def _faulty(task: tuple[str, int, str]) -> None:
    path, number, name = task
    fault = next(f for f in planting.FAULTS if f.name == name)
    Path(path).write_text(fleets.report(fleets.record(number, fault, SEED), "recording"))


def _copies(task: tuple[list[tuple[str, int]], str, int]) -> None:
    for path, to in task[0]:
        Path(path).write_text(fleets.copy_of(task[1], task[2], to))


def generate(folder: Path, nodes: int, healthy: int, faults: dict[int, planting.Fault]) -> None:
    """Write the reports into twenty parts, unless they are there."""
    done = folder / f"complete-{nodes}"
    if done.exists():
        return
    for k in range(20):
        (folder / f"part{k:02d}").mkdir(parents=True, exist_ok=True)

    def path(number: int) -> str:
        return str(folder / f"part{number * 20 // nodes:02d}" / f"node{number:05d}.json")

    with ProcessPoolExecutor() as pool:
        base = list(pool.map(_healthy, range(healthy)))
        list(pool.map(_faulty, [(path(n), n, f.name) for n, f in faults.items()]))
        tasks = []
        for i in range(healthy):
            mine = [(path(n), n) for n in range(i, nodes, healthy) if n not in faults]
            tasks += [(mine[k : k + 50], base[i], i) for k in range(0, len(mine), 50)]
        list(pool.map(_copies, tasks))
    done.touch()


def measure(folders: list[Path], processes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the command on folders; returns figures and its JSON. Memory is the sum over its processes, at its most."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [*map(str, folders), "--format", "json", "--processes", str(processes)]
    child = subprocess.Popen([sys.executable, "-c", COMMAND, *words], stdout=subprocess.PIPE, text=True)
    out, peak = _watch(child)
    wall = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = json.loads(out)["fleet"]
    run = {
        "nodes": found["nodes"],
        "wall_s": round(wall, 1),
        "cpu_s": round(cpu, 1),
        "nodes_per_s": round(found["nodes"] / wall),
        "peak_rss_mib": round(peak / 2**20),
    }
    return run, found


def _watch(child: subprocess.Popen[str]) -> tuple[str, int]:
    import threading

    peak = 0
    over = threading.Event()

    def look() -> None:
        nonlocal peak
        process = psutil.Process(child.pid)
        while not over.wait(0.1):
            try:
                family = [process, *process.children(recursive=True)]
                peak = max(peak, sum(p.memory_info().rss for p in family))
            except psutil.Error:
                continue

    watcher = threading.Thread(target=look)
    watcher.start()
    out, _ = child.communicate()
    over.set()
    watcher.join()
    return out, peak


def judge(found: dict[str, Any], faults: dict[int, planting.Fault]) -> dict[str, Any]:
    """Compare what was found with what was planted."""
    planted = {f"node{n:05d}": f for n, f in faults.items()}
    odd = {o["name"]: o["differences"] for o in found["outliers"]}
    signed = [n for n, f in planted.items() if any(f.sign in f"{d['device']} {d['field']}" for d in odd.get(n, []))]
    judged = [f for f in found["findings"] if f["state"] in ("fail", "warn", "unknown")]
    return {
        "planted": len(planted),
        "odd_nodes": len(odd),
        "found_with_their_sign": len(signed),
        "missed": sorted(f"{n}: {planted[n].name}" for n in set(planted) - set(signed)),
        "invented": sorted(set(odd) - set(planted)),
        "findings_on_healthy_nodes": sorted({f["id"] for f in judged if set(f["nodes"]) - set(planted)}),
        "planted_with_a_finding": len({n for f in judged for n in f["nodes"]} & set(planted)),
        "unreadable": len(found["unreadable_files"]),
    }


def _snapshot(task: tuple[str, int]) -> None:
    fleets.write_snapshot(Path(task[0]), fleets.record(task[1], None, SEED))


def snapshots(folder: Path, n: int, processes: int) -> dict[str, Any]:
    """Measure how many snapshots are judged a second."""
    at = folder / f"snapshots-{n}"
    if not at.exists():
        at.mkdir()
        with ProcessPoolExecutor() as pool:
            list(pool.map(_snapshot, [(str(at / f"{i}.snapshot"), i) for i in range(n)]))
    run, _ = measure([at], processes)
    return {**run, "bytes": sum(p.stat().st_size for p in at.iterdir()) // n}


if __name__ == "__main__":
    main()
