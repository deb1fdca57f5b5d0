"""What starting costs: `topocheck --help` and `report --from` on an 8-GPU, 8-NIC machine, against a bare Python.

    python benchmarks/startup.py [--runs 25] [--against OTHER/bin/python]

Runs what is installed in this Python: `pip install .` in a fresh environment, since an editable one without
bytecode compiles everything at each start. `--against` is the Python of an environment with another version, timed in
the same run.

CPU seconds of the command and its children are compared, interleaved, by their minima, since on a shared machine a
median can be ten times the minimum. With valgrind installed, instructions are counted too (--instructions): those
repeat whatever else runs.

    python benchmarks/startup.py --live

times the live report and check on a machine with NVIDIA GPUs beside `nvidia-smi topo -m` and `nvidia-smi -q -x` one
after the other, plus one Python start: the report must take no longer.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

BUDGETS = {"topocheck --help": 12.0, "report --from (8 GPUs)": 18.0}
CHECK_OVER_REPORT = 1.2


def commands(snapshot: Path, against: str) -> dict[str, list[str]]:
    """Return name -> argv of everything that is timed."""
    what = {
        "topocheck --help": ["--help"],
        "report --from (8 GPUs)": ["report", "--from", str(snapshot)],
        "report --format json": ["report", "--from", str(snapshot), "--format", "json"],
        "check --from": ["check", "--from", str(snapshot)],
        "report, live": ["report"],
        "check, live": ["check"],
    }
    main = "import sys; sys.argv[0] = 'topocheck'; import topocheck.cli.main as m; getattr(m, 'run', m.main)()"
    others = {f"other: {name}": [against, "-P", "-c", main, *args] for name, args in what.items()} if against else {}
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        **{name: [sys.executable, "-P", "-c", main, *args] for name, args in what.items()},
        **others,
        "import typer": [sys.executable, "-c", "import typer"],
        "import msgspec": [sys.executable, "-c", "import msgspec"],
        "import rich.console": [sys.executable, "-c", "import rich.console"],
        "import psutil": [sys.executable, "-c", "import psutil"],
        "import pynvml": [sys.executable, "-c", "import pynvml"],
    }


def cpu_seconds(argv: list[str]) -> float:
    """Return the user and system time of a program and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, cwd="/")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def seconds(*argvs: list[str]) -> float:
    """Return the wall time of programs one after the other."""
    began = time.perf_counter()
    for argv in argvs:
        subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - began


def live(runs: int) -> int:
    """Time the live report beside nvidia-smi; return 1 where it takes longer than that and a Python start."""
    topocheck = [sys.executable, "-P", "-m", "topocheck"]
    smi = "nvidia-smi topo -m; nvidia-smi -q -x"
    todo = {
        "python -c pass": [[sys.executable, "-c", "pass"]],
        smi: [["nvidia-smi", "topo", "-m"], ["nvidia-smi", "-q", "-x"]],
        "topocheck report": [[*topocheck, "report"]],
        "topocheck check": [[*topocheck, "check"]],
    }
    times: dict[str, list[float]] = {name: [] for name in todo}
    for argvs in todo.values():
        seconds(*argvs)
    for _ in range(runs):
        for name, argvs in todo.items():
            times[name].append(seconds(*argvs))
    for name, ts in times.items():
        print(f"{name:<40} min {min(ts):.3f} s  median {sorted(ts)[len(ts) // 2]:.3f} s")
    allowed = min(times[smi]) + min(times["python -c pass"])
    print(f"the report may take {allowed:.3f} s")
    return 0 if min(times["topocheck report"]) <= allowed else 1


def instructions(argv: list[str]) -> int:
    """Return the instructions of one run, counted by valgrind."""
    with tempfile.NamedTemporaryFile("r") as log:
        tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-file=" + log.name]
        subprocess.run([*tool, *argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        for line in log.read().splitlines():
            if "Collected" in line:
                return int(line.split(":")[1].split()[0])
    return 0


def main() -> int:
    """Time everything and print it; exit 1 where a budget is not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--against", default="", metavar="PYTHON", help="of an environment with another version")
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--live", action="store_true")
    options = parser.parse_args()
    if options.live:
        if shutil.which("nvidia-smi") is None:
            parser.error("--live needs nvidia-smi")
        return live(options.runs)
    from tests.support.snapshots import write_snapshot

    with tempfile.TemporaryDirectory() as folder:
        todo = commands(write_snapshot(Path(folder) / "hgx.snap", "hgx_h100_cx7"), options.against)
        times: dict[str, list[float]] = {name: [] for name in todo}
        for argv in todo.values():
            cpu_seconds(argv)
        for _ in range(options.runs):
            for name, argv in todo.items():
                times[name].append(cpu_seconds(argv))
        bare = min(times["python -c pass"])
        kept = True
        print(f"{'CPU time of':<30}{'min ms':>9}{'median ms':>11}{'x bare':>8}{'budget':>8}")
        for name, ts in times.items():
            ratio, budget = min(ts) / bare, BUDGETS.get(name)
            kept &= budget is None or ratio <= budget
            limit = f"{budget:8.0f}" if budget else ""
            print(f"{name:<30}{min(ts) * 1e3:9.1f}{sorted(ts)[len(ts) // 2] * 1e3:11.1f}{ratio:8.1f}{limit}")
        over = min(times["check --from"]) / min(times["report --from (8 GPUs)"])
        kept &= over <= CHECK_OVER_REPORT
        print(f"check / report: {over:.2f} (budget {CHECK_OVER_REPORT})")
        if options.instructions and shutil.which("valgrind"):
            base = instructions(todo["python -c pass"])
            for name in ("python -c pass", "topocheck --help", "report --from (8 GPUs)"):
                n = instructions(todo[name])
                print(f"{name:<26}{n / 1e6:9.0f} M instructions{n / base:8.1f} x bare")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
