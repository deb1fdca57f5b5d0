"""How often the right node, direction or link is named, and how often a healthy one: tables by simulation.

    python benchmarks/slow_nodes.py [RUNS] > tables.md

Rates are drawn, not measured: log-normal around one usual rate, each measurement by itself. A fault multiplies the rate
of its pairs. The run goes as `topocheck network bw` does: a tournament, up to two more while the scatter is too
large, then the suspected pairs anew. Windows within a measurement show nothing here, which is the worst case: all that
is known of the scatter comes from the pairs. `disturbed` rates are heavy-tailed: 5 % scatter, and of one measurement in
ten up to half is lost.
"""

from __future__ import annotations

import functools
import math
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from topocheck.bandwidth.scatter import Pair, PairMeasured
from topocheck.bandwidth.slow_links import FAIL_BELOW, Judged, judge, more_tournaments, suspects, times_again
from topocheck.bandwidth.stats import median

NODES = (3, 4, 8, 16, 64)
SCATTERS = (0.02, 0.05, 0.10, 0.20, 0.40)
FAULTS = (0.05, 0.15, 0.25, 0.40, 0.99)
DISTURBED = -1.0
USUAL = 25.0

Planted = dict[str, frozenset[Pair]]
"""What is to be named -> the pairs that it slows."""


class Case(NamedTuple):
    """One cell: `kind` is healthy, node, direction, link, two nodes, two directions or two links."""

    nodes: int
    scatter: float
    kind: str
    fault: float
    seed: int


class Result(NamedTuple):
    """`right`: all that was planted and nothing else; `named`: all that was planted; `wrong`: something else."""

    right: bool
    named: bool
    wrong: bool
    wrong_fail: bool
    unknown: bool


def draw(rng: random.Random, scatter: float) -> float:
    """Return one measurement of a healthy pair."""
    if scatter == DISTURBED:
        lost = rng.uniform(0, 0.5) if rng.random() < 0.1 else 0.0
        return USUAL * math.exp(rng.gauss(0, 0.05)) * (1 - lost)
    return USUAL * math.exp(rng.gauss(0, scatter))


def planted(kind: str, names: list[str], rng: random.Random) -> Planted:
    """Return what is slow."""
    every = [(a, b) for a in names for b in names if a != b]

    def one(what: str, name: str, other: str) -> Planted:
        if what == "node":
            return {name: frozenset(p for p in every if name in p)}
        if what == "direction":
            side = rng.randrange(2)
            return {name: frozenset(p for p in every if p[side] == name)}
        return {f"{name} {other}": frozenset({(name, other)})}

    if kind == "healthy":
        return {}
    count = 2 if kind.startswith("two ") else 1
    what = kind.removeprefix("two ").removesuffix("s")
    chosen = rng.sample(names, len(names))
    if what == "link":
        return {k: v for i in range(count) for k, v in one("link", chosen[i], chosen[i + 1]).items()}
    return {k: v for i in range(count) for k, v in one(what, chosen[i], "").items()}


def run(case: Case) -> Result:
    """Plant, measure and judge once."""
    rng = random.Random(f"{case}")
    names = [f"n{i}" for i in range(case.nodes)]
    plants = planted(case.kind, names, rng)
    share = dict.fromkeys((p for pairs in plants.values() for p in pairs), 1 - case.fault)

    def measure(pair: Pair) -> float:
        return draw(rng, case.scatter) * share.get(pair, 1.0)

    first: dict[Pair, list[float]] = {(a, b): [] for a in names for b in names if a != b}
    now: dict[Pair, PairMeasured] = {}
    tournaments = 0
    while not tournaments or more_tournaments(now, tournaments):
        for pair, values in first.items():
            values.append(measure(pair))
        now = {p: PairMeasured(gb_s=median(v), repeats=tuple(v)) for p, v in first.items()}
        tournaments += 1
    while todo := suspects(now):
        times = times_again(now)
        for a, b in todo:
            for pair in ((a, b), (b, a)):
                anew = tuple(measure(pair) for _ in range(times))
                now[pair] = PairMeasured(gb_s=median(anew), again=anew)
    return result(judge(now), set(plants))


def result(said: Judged, wanted: set[str]) -> Result:
    """Compare what was said with what was planted."""
    named = {f"{s.node} {s.other}".strip() for s in said.slow}
    fail = {f"{s.node} {s.other}".strip() for s in said.slow if s.share < FAIL_BELOW}
    return Result(named == wanted, wanted <= named, bool(named - wanted), bool(fail - wanted), not said.clear)


def table(title: str, head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"\n### {title}\n", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(r) + " |" for r in rows)])


def _percent(part: int, of: int) -> str:
    return f"{100 * part / of:.0f}" if part in (0, of) or of < 300 else f"{100 * part / of:.1f}"


def _scatter_text(scatter: float) -> str:
    return "disturbed" if scatter == DISTURBED else f"{100 * scatter:.0f} %"


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    begun = time.monotonic()
    with ProcessPoolExecutor(2) as pool:
        many: Callable[[int, float, str, float, int], list[Result]] = functools.partial(_many, pool)
        print("## Healthy nodes: runs of 100 that name anything (of these, as a failure); and that answer UNKNOWN")
        rows = []
        for scatter in (*SCATTERS, DISTURBED):
            row = [_scatter_text(scatter)]
            for n in NODES:
                n_runs = _runs(n, 20 * runs)
                got = many(n, scatter, "healthy", 0.0, n_runs)
                cells = [sum(r.wrong for r in got), sum(r.wrong_fail for r in got), sum(r.unknown for r in got)]
                w, f, u = (_percent(c, n_runs) for c in cells)
                row.append(f"{w} ({f}); {u}")
            rows.append(row)
        print(table("Healthy", ["scatter", *(f"{n} nodes" for n in NODES)], rows), flush=True)
        print("\n## A fault: runs of 100 that name it and nothing else / that name it, or answer UNKNOWN")
        for kind in ("node", "direction", "link", "two nodes", "two directions", "two links"):
            rows = []
            for n in NODES:
                # Two of three or four nodes are half of them or more: what is usual is not known. 64 take long.
                if (kind == "two nodes" and n < 5) or (n > 20 and kind not in ("node", "direction", "link")):
                    continue
                for scatter in (*SCATTERS, DISTURBED) if n < 20 else (0.02, 0.10, 0.40):
                    row = [str(n), _scatter_text(scatter)]
                    n_runs = _runs(n, runs)
                    for fault in FAULTS:
                        got = many(n, scatter, kind, fault, n_runs)
                        right, told = sum(r.right for r in got), sum(r.named or r.unknown for r in got)
                        row.append(f"{_percent(right, n_runs)} / {_percent(told, n_runs)}")
                    rows.append(row)
            title = f"{kind.capitalize()} slower by"
            print(table(title, ["nodes", "scatter", *(f"{100 * f:.0f} %" for f in FAULTS)], rows), flush=True)
    counts = ", ".join(f"{_runs(n, runs)} of {n}" for n in NODES)
    print(f"\nRuns in each cell of a fault, by nodes: {counts}; of healthy nodes 20 times as many.")
    print(f"{time.strftime('%Y-%m-%d', time.gmtime())}, {time.monotonic() - begun:.0f} s", flush=True)


def _runs(nodes: int, runs: int) -> int:
    """Return how many runs a cell gets: a run of 64 nodes takes seconds."""
    return runs if nodes < 10 else max(2, runs // 4) if nodes < 20 else max(2, runs // 20)


def _many(pool: ProcessPoolExecutor, n: int, scatter: float, kind: str, fault: float, runs: int) -> list[Result]:
    return list(pool.map(run, [Case(n, scatter, kind, fault, i) for i in range(runs)], chunksize=max(1, runs // 8)))


if __name__ == "__main__":
    main()
