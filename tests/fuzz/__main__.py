"""The command line of the fuzzer."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.fuzz import runner, targets


def main() -> int:
    """Run it; exit code 1 where something was found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Give topocheck hostile input of every kind."
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--cases", type=int, default=0, help="so many cases of each target, instead of a time")
    parser.add_argument("--jobs", type=int, default=1, help="streams beside each other (1)")
    parser.add_argument("--seed", default="0", help="where the cases follow from: the same seed, the same cases")
    parser.add_argument("--target", nargs="+", choices=sorted(targets.every()), help="only these")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write each finding with its case here")
    parser.add_argument("--as-found", action="store_true", help="do not make the cases of findings small")
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FILE", help="run kept cases again, and nothing else")
    options = parser.parse_args()
    if options.replay:
        return _replay(options.replay)
    names = options.target or sorted(targets.every())
    length = runner.Length(seconds=options.seconds, cases=options.cases)
    work = [(names, f"{options.seed}.{job}", length, not options.as_found) for job in range(options.jobs)]
    if options.jobs == 1:
        results = [runner.stream(*work[0])]
    else:
        with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
            results = list(pool.map(runner.stream, *zip(*work, strict=True)))
    tallies = results[0]
    for other in results[1:]:
        for name, tally in other.items():
            tallies.setdefault(name, runner.Tally()).add(tally)
    if options.keep:
        runner.keep(options.keep, tallies)
    print(runner.table(tallies))
    found = sorted({name for t in tallies.values() for name in t.found})
    for name in found:
        print(name)
    return 1 if found else 0


def _replay(files: list[Path]) -> int:
    bad = 0
    for path in files:
        found = runner.replay(path)
        bad += bool(found)
        print(path, "" if found else "nothing found", *(f"\n  {f.kind}: {f.key}\n{f.detail}" for f in found))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
