"""Twenty tournaments with one slow host and twenty healthy ones, in four network namespaces; prints the counts.

    python benchmarks/netns_trials.py [TRIALS]

Needs root, ip, tc (tbf) and torch. Every link carries 200 Mbit/s, the slow host's 100.
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

RATE, SLOW = 200, 100


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    rng = random.Random(1)
    named, wrong, quiet = 0, 0, 0
    print(f"{time.strftime('%Y-%m-%d', time.gmtime())}, four network namespaces on one {os.cpu_count()}-core machine")
    print(f"links of {RATE} Mbit/s (tbf), the slow host's {SLOW} Mbit/s; 0.5 s a direction\n")
    for kind in ("slow", "healthy"):
        for trial in range(1, trials + 1):
            slow = rng.randint(1, 4) if kind == "slow" else 0
            with hosts([SLOW if i == slow else RATE for i in range(1, 5)]) as made, tempfile.TemporaryDirectory() as d:
                begun = time.monotonic()
                _, out, err = tournament(made, Path(d))
                took = time.monotonic() - begun
            try:
                report = json.loads(out)
            except ValueError:
                print(f"{kind} {trial}: no report: {err.strip().splitlines()[-1:]}")
                wrong += 1
                continue
            accused = sorted({f["subject"] for f in report["findings"] if f["state"] in ("fail", "warn")})
            sends = {m["node"]: m["sends_gb_s"] * 8000 for m in report["medians"] if m["sends_gb_s"]}
            rates = ", ".join(f"{n} {r:.0f}" for n, r in sends.items())
            right = accused == ([f"host{slow}"] if slow else [])
            named += right and kind == "slow"
            quiet += right and kind == "healthy"
            wrong += not right
            planted = f"host{slow} slow" if slow else "all healthy"
            print(
                f"{kind} {trial}: {planted}; named {', '.join(accused) or 'nobody'}; Mbit/s sent: {rates}; {took:.1f} s"
            )
            sys.stdout.flush()
    print(f"\nslow host named, and nobody else: {named} of {trials}")
    print(f"healthy, nobody accused: {quiet} of {trials}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
