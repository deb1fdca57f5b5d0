"""Faults planted in generated fabrics, and what `network fabric` finds of them; prints a table in Markdown.

    python benchmarks/fabric_faults.py [NODES] [TRIALS]

NODES is the largest fabric (4096), TRIALS the number of places each kind of fault is planted in (3). A fault is found
where a warning or failure names every planted part; a finding that names no planted device is invented.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.fabric_faults import PLANTERS, Planted
from tests.support.fabrics import Made, dragonfly, fat_tree, rail_pods, three_tiers
from topocheck.checks.fabric.run import judge_fabric
from topocheck.fabric.read import parse
from topocheck.fabric.tiers import tiers_of
from topocheck.model.base import Finding, State

BAD = (State.WARN, State.FAIL, State.UNKNOWN)


def fabrics(most: int) -> dict[str, Made]:
    """Return the fabrics up to that many nodes, by name; a name says shape and number of nodes."""
    made = {
        ("fat tree", 128): lambda: fat_tree(8, 16, 4, each=2),
        ("fat tree", 1024): lambda: fat_tree(32, 32, 16),
        ("fat tree", 4096): lambda: fat_tree(128, 32, 32),
        ("three tiers", 128): lambda: three_tiers(4, 4, 8, 4, 4),
        ("three tiers", 1024): lambda: three_tiers(8, 8, 16, 8, 8),
        ("three tiers", 4096): lambda: three_tiers(16, 16, 16, 16, 16),
        ("rails", 32): lambda: rail_pods(4, 8, 4, 4),
        ("rails", 128): lambda: rail_pods(4, 32, 8, 8),
        ("rails", 1024): lambda: rail_pods(32, 32, 8, 16, each=2),
        ("rails", 4096): lambda: rail_pods(128, 32, 8, 16, each=2),
        ("dragonfly", 96): lambda: dragonfly(6, 4, 4),
        ("dragonfly", 1056): lambda: dragonfly(33, 8, 4),
        ("dragonfly", 4224): lambda: dragonfly(33, 16, 8),
    }
    return {f"{shape}, {nodes} nodes": build() for (shape, nodes), build in made.items() if nodes <= most * 1.05}


def judged(made: Made) -> tuple[list[Finding], float]:
    """Return what is wrong with a fabric, and the seconds from its text to the findings."""
    data = (made.db_csv() if made.mtu else made.text()).encode()
    begun = time.process_time()
    findings = judge_fabric(tiers_of(parse(data, "dump"))).findings
    return [f for f in findings if f.state in BAD], time.process_time() - begun


def named(f: Finding, names: tuple[str, ...]) -> bool:
    """Tell whether a finding holds all of these names."""
    return all(n in f"{f.subject} {f.title}" for n in names)


def right(planted: Planted, findings: list[Finding]) -> tuple[bool, list[Finding]]:
    """Return whether everything planted was named, and the findings that name no planted device."""
    found = all(any(named(f, group) for f in findings) for group in planted.expected)
    return found, [f for f in findings if not any(t in f"{f.subject} {f.title}" for t in planted.touched)]


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 4096
    trials = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    print(f"{time.strftime('%Y-%m-%d', time.gmtime())}, one process on a {os.cpu_count()}-core machine; CPU seconds\n")
    found, invented, total = Counter[str](), Counter[str](), Counter[str]()
    tried: dict[str, set[str]] = defaultdict(set)
    print("| fabric | devices | links | healthy: findings | seconds | MiB |\n| --- | --- | --- | --- | --- | --- |")
    made = fabrics(most)
    for name, healthy in made.items():
        findings, seconds = judged(healthy)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        size = f"{len(healthy.devices)} | {len(healthy.links)}"
        print(f"| {name} | {size} | {len(findings)} | {seconds:.2f} | {memory:.0f} |")
        for f in findings:
            print(f"  INVENTED {f.id} {f.subject}: {f.title}", file=sys.stderr)
        invented["healthy"] += len(findings)
    for name, healthy in made.items():
        for plant in PLANTERS:
            for seed in range(trials):
                bad = healthy.copy()
                planted = plant(bad, Random(seed))
                if planted is None:
                    continue
                findings, _ = judged(bad)
                ok, more = right(planted, findings)
                kind = plant.__name__
                total[kind] += 1
                found[kind] += ok
                invented[kind] += len(more)
                tried[kind].add(name.partition(",")[0])
                if not ok or more:
                    said = [f"{f.id} {f.subject}: {f.title}" for f in (more or findings)[:4]]
                    print(f"{name}, {kind} {seed}: found {ok}, {planted.expected[:3]}; {said}", file=sys.stderr)
    print("\n| planted | in | trials | found | invented |\n| --- | --- | --- | --- | --- |")
    for plant in PLANTERS:
        kind, what = plant.__name__, (plant.__doc__ or "").strip().rstrip(".")
        if total[kind]:
            shapes = ", ".join(sorted(tried[kind]))
            print(f"| {what} | {shapes} | {total[kind]} | {found[kind]} | {invented[kind]} |")
    print(f"\n{sum(found.values())} of {sum(total.values())} found, {sum(invented.values())} invented")
    sys.exit(0 if found == total and not sum(invented.values()) else 1)


if __name__ == "__main__":
    main()
