"""Tournaments of nodes below two leaves, in network namespaces; prints what was named, run by run.

    python benchmarks/netns_leaves.py [TRIALS [OTHERS]]

Needs root, ip and tc (tbf). Two bridges are the leaves, with two hosts each; every host's link carries 200 Mbit/s, and
the link between the bridges 100 (slow) or 400 (healthy). `network bw` gets the leaves from a topology.conf. OTHERS (as
many as TRIALS) runs have a healthy spine, and as many more one host with 100 Mbit/s, among three below each leaf: of
two, a slow one is half of its leaf.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.netns import hosts, tournament

RATE, SLOW, WIDE = 200, 100, 400
MEET_S = 300
"""How long ranks wait for each other: on a busy machine they take a minute to start."""
TOPOLOGY = """\
SwitchName=spine Switches=leaf-a,leaf-b
SwitchName=leaf-a Nodes={a}
SwitchName=leaf-b Nodes={b}
"""


def expected(kind: str, slow: int) -> list[str]:
    """Return what is to be named, and nothing else."""
    return {"slow spine": ["leaf-a to leaf-b", "leaf-b to leaf-a"], "slow host": [f"host{slow}"], "healthy": []}[kind]


def right(kind: str, slow: int, named: list[str]) -> bool:
    """Tell whether what was named is at fault: of a slow spine one direction at least, and nothing that is healthy."""
    wanted = expected(kind, slow)
    return set(named) <= set(wanted) and (bool(named) or not wanted)


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    others = int(sys.argv[2]) if len(sys.argv) > 2 else trials
    rng = random.Random(1)
    wrong = 0
    print(f"{time.strftime('%Y-%m-%d', time.gmtime())}, network namespaces on one {os.cpu_count()}-core machine")
    print(f"hosts of {RATE} Mbit/s (tbf) below two leaves, 0.5 s a direction\n")
    for kind in ("slow spine", "healthy", "slow host"):
        good, both, runs = 0, 0, trials if kind == "slow spine" else others
        for trial in range(1, runs + 1):
            each = 3 if kind == "slow host" else 2
            n = 2 * each
            slow = rng.randint(1, n)
            rates = [SLOW if kind == "slow host" and i == slow else RATE for i in range(1, n + 1)]
            on = [0] * each + [1] * each
            spine = SLOW if kind == "slow spine" else WIDE
            with hosts(rates, on, spine) as made, tempfile.TemporaryDirectory() as d:
                names = [made.name(i) for i in range(1, n + 1)]
                dump = Path(d, "topology.conf")
                dump.write_text(TOPOLOGY.format(a=",".join(names[:each]), b=",".join(names[each:])))
                begun, load = time.monotonic(), os.getloadavg()[0]
                _, out, err = tournament(made, Path(d), fabric=dump, deadline_s=MEET_S)
                took = time.monotonic() - begun
            try:
                report = json.loads(out)
            except ValueError:
                print(f"{kind} {trial}: no report: {err.strip().splitlines()[-1:]}")
                wrong += 1
                continue
            if not report["pairs"]:
                print(f"{kind} {trial}: nothing measured (the ranks did not meet in time); load {load:.1f}")
                wrong += 1
                continue
            named = sorted({f["subject"] for f in report["findings"] if f["state"] in ("fail", "warn")})
            good += (fine := right(kind, slow, named))
            both += named == expected(kind, slow)
            wrong += not fine
            unknown = [f["subject"] for f in report["findings"] if f["state"] == "unknown"]
            planted = f" (host{slow})" if kind == "slow host" else ""
            note = next((x for x in report["notes"] if "below one leaf" in x), "")
            said = ", ".join(named) or "nothing"
            if unknown:
                said += f" (unknown: {', '.join(unknown)})"
            print(f"{kind}{planted} {trial}, {n} hosts: named {said}; {note}; {took:.1f} s, load {load:.1f}")
            sys.stdout.flush()
        unsure = f", all of it in {both}" if kind == "slow spine" else ""
        print(f"{kind}: what is at fault named, and nothing else, in {good} of {runs} runs{unsure}\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
