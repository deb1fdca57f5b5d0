"""Which kinds of differences between nodes `topocheck fleet` finds, and what it says of nodes that are healthy.

    python benchmarks/fleet_kinds.py --output docs/measurements/fleet_kinds.md

Plants each kind of tests/compare/planting.py once, in the raw answers of a described 8-GPU node, among copies of
healthy nodes; writes each node's JSON report, runs the command on the folder and compares. Then half of the nodes
get another driver, as in the middle of a roll-out. Nothing here imports a check or the comparison.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tests.compare import fleets, planting  # noqa: E402

FIRST = 5000
"""Number of the first node with a fault."""


def main() -> None:
    """Plant, run the command, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--healthy", type=int, default=400)
    parser.add_argument("--rollout", type=float, default=0.6, help="part of the healthy nodes that have a new driver")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    base = [fleets.direct_report(i) for i in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        for i in range(args.healthy):
            (at / f"{i}.json").write_text(fleets.copy_of(base[i % 3], i % 3, i))
        for k, fault in enumerate(planting.FAULTS, FIRST):
            (at / f"{k}.json").write_text(fleets.direct_report(k, fault))
        lines = list(table(run(at), args.healthy))
    with tempfile.TemporaryDirectory() as folder:
        lines += ["", rolled_out(Path(folder), args.healthy, args.rollout)]
    text = "\n".join((*lines, "", f"{datetime.date.today().isoformat()}, `benchmarks/fleet_kinds.py`", ""))
    print(text)
    if args.output:
        args.output.write_text(text)


def run(folder: Path) -> dict[str, Any]:
    """Return the JSON of `topocheck fleet FOLDER`."""
    words = [sys.executable, "-m", "topocheck", "fleet", str(folder), "--format", "json"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)["fleet"]
    return found


def table(found: dict[str, Any], healthy: int) -> Iterator[str]:
    """Yield the lines of the table: each kind with what is said of its node; then what is said of healthy ones."""
    odd = {o["name"]: o["differences"] for o in found["outliers"]}
    rows, seen = [], 0
    for k, fault in enumerate(planting.FAULTS, FIRST):
        differences = odd.pop(f"node{k:05d}", [])
        signed = [d for d in differences if fault.sign in f"{d['device']} {d['field']}"]
        seen += bool(signed)
        first = signed[0] if signed else None
        said = f"{first['device']}: {first['field']} {first['value']}, expected {first['majority']}" if first else "-"
        rows.append(f"| {fault.name} | {'yes' if first else 'NO'} | {said} | {len(differences)} |")
    judged = [f for f in found["findings"] if f["state"] in ("fail", "warn", "unknown")]
    planted = {f"node{k:05d}" for k in range(FIRST, FIRST + len(planting.FAULTS))}
    invented = sorted({f["id"] for f in judged if set(f["nodes"]) - planted})
    mixed = sum(len(t["no_majority"]) for t in found["hardware_types"])
    yield f"# {len(planting.FAULTS)} kinds of differences, each on one of {healthy + len(planting.FAULTS)} nodes"
    yield ""
    yield (
        f"Found: {seen} of {len(planting.FAULTS)}. Of {healthy} healthy nodes {len(odd)} are outliers; findings on "
        f"healthy nodes: {', '.join(invented) or 'none'}; fields without a majority: {mixed}."
    )
    yield ""
    yield "| planted | found | the first difference that names it | differences of the node |"
    yield "| --- | --- | --- | --- |"
    yield from rows


def rolled_out(at: Path, nodes: int, share: float) -> str:
    """Return what is said in the middle of a roll-out."""
    driver = next(f for f in planting.FAULTS if f.name == "driver old")
    new, old = fleets.direct_report(0), fleets.direct_report(0, driver)
    for i in range(nodes):
        (at / f"{i}.json").write_text(fleets.copy_of(new if i < share * nodes else old, 0, i))
    found = run(at)
    mixed = [m for t in found["hardware_types"] for m in t["no_majority"]]
    said = "; ".join(f"{m['field']} " + ", ".join(f"{v} on {n}" for v, n in m["values"]) for m in mixed)
    return f"A driver's roll-out at {share:.0%} of {nodes} nodes: {len(found['outliers'])} outliers; {said}."


if __name__ == "__main__":
    main()
