"""`scale --simulate` next to rings measured between network namespaces; prints Markdown.

    python benchmarks/simulate_netns.py [--rate 40] [--most 16]

Needs root, ip, tc (tbf) and torch. Every host is a namespace with a link of `--rate` Mbit/s and holds one rank. Two
networks: all hosts below one leaf, and below two leaves whose link carries half of what the hosts of a leaf send; there
the ring is run in the order of places and in an order in which every step crosses the spine. Alpha and beta of each
level come from ping-pongs of the same run, between two hosts of one leaf and of two; nothing else is fitted. The rank
does its own ring of sends and receives (as `scale` measures it) and Gloo's all_reduce.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

KIB, MIB = 1 << 10, 1 << 20
SIZES = (256 * KIB, 1 * MIB, 4 * MIB)
MESSAGES = (4, 512 * KIB, 1 * MIB, 2 * MIB)
SAMPLES = 3


def rank() -> None:
    """Be one rank: measure, and let rank 0 print microseconds as JSON."""
    from datetime import timedelta
    from functools import partial

    import torch
    import torch.distributed as dist

    from topocheck.tests_live.collectives.by_hand import ring
    from topocheck.tests_live.collectives.wire import TorchWire

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    plan: dict[str, Any] = json.loads(sys.argv[2])
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    me = dist.get_rank()

    def timed(group: Any, call: Any) -> float:
        """Return the seconds of the fastest sample, each of the slowest rank."""
        best = float("inf")
        for _ in range(SAMPLES):
            dist.barrier(group=group)
            begun = time.perf_counter()
            call()
            mine = torch.tensor([time.perf_counter() - begun], dtype=torch.float64)
            dist.all_reduce(mine, op=dist.ReduceOp.MAX, group=group)
            best = min(best, float(mine[0]))
        return best

    out: dict[str, Any] = {"ping": {}, "ring": {}, "gloo": {}}
    for name, (a, b) in plan["pairs"].items():
        group = dist.new_group([a, b])
        if me not in (a, b):
            continue
        for size in MESSAGES:
            buffer = torch.zeros(size // 4)
            other = b if me == a else a

            def ping(buffer: Any = buffer, other: int = other, first: bool = me == a) -> None:
                for call in (dist.send, dist.recv) if first else (dist.recv, dist.send):
                    call(buffer, other)

            ping()
            out["ping"].setdefault(name, []).append((size, timed(group, ping) / 2))
    dist.barrier()
    for name, members in plan["rings"].items():
        group = dist.new_group(members)
        if me not in members:
            continue
        wire = TorchWire(torch, group, group, torch.device("cpu"), "gloo")
        # The ring goes by the order of the plan; a group's own is that of its ranks.
        wire._world, wire.rank = list(members), members.index(me)
        for size in SIZES:
            buffer = torch.full((size // 4,), 1.0)
            ring(torch, wire, buffer)
            assert float(buffer[0]) == len(members)
            assert float(buffer[-1]) == len(members)
            out["ring"].setdefault(name, []).append((size, timed(group, partial(ring, torch, wire, buffer))))
            out["gloo"].setdefault(name, []).append((size, timed(group, partial(dist.all_reduce, buffer, group=group))))

    dist.barrier()
    if me == 0:
        print(json.dumps(out))
    sys.stdout.flush()
    os._exit(0)


def run(rates: list[int], leaves: list[int], spine: int, plan: dict[str, Any]) -> dict[str, Any]:
    """Run all ranks in namespaces; returns rank 0's numbers."""
    from tests.support.netns import hosts

    with hosts(rates, leaves, spine) as made, tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, str(Path(__file__).resolve()), "--rank", json.dumps(plan)]
        running = [made.start(i, argv, 23457, Path(folder)) for i in range(1, made.n + 1)]
        try:
            status = running[0].wait(900)
        finally:
            for p in running:
                p.kill()
                p.wait()
        if status:
            raise SystemExit(Path(folder, "err1").read_text()[-2000:])
        return dict(json.loads(Path(folder, "out1").read_text()))


def fitted(points: list[list[float]]) -> tuple[float, float]:
    """Return (alpha in seconds, beta in bytes a second) of messages by their fastest samples."""
    from topocheck.bandwidth.cost_model import Point, fit_sweep

    fit = fit_sweep("messages", [Point(int(s), t) for s, t in points], rate="algbw")
    if fit.alpha_us is None or fit.beta_gb_s is None:
        raise SystemExit(f"no fit: {fit.not_fitted}")
    return fit.alpha_us / 1e6, fit.beta_gb_s * 1e9


def network(costs: list[tuple[float, float]], members: int, *, aligned: bool) -> Any:
    """Return levels of one rank a node: a leaf, and a spine where there are two costs."""
    from topocheck.bandwidth.simulate import Level, Network, Value

    # The level inside a node is not used: a node has one rank.
    levels = [Level(name="node", members=1, alpha_us=Value.of(1e-3), beta_gb_s=Value.of(1e3))]
    for name, (alpha, beta), last in zip(("leaf", "spine"), costs, (len(costs) == 1, True), strict=False):
        levels.append(
            Level(
                name=name,
                members=0 if last else members,
                alpha_us=Value.of(alpha * 1e6),
                beta_gb_s=Value.of(beta / 1e9),
            )
        )
    return Network(levels=tuple(levels), aligned=aligned)


def rows(name: str, n: int, measured: dict[str, Any], net: Any, ring: str) -> list[float]:
    """Print the rows of one ring; returns the errors in percent."""
    from topocheck.bandwidth.simulate import all_reduce

    errors = []
    for (size, took), (_, gloo) in zip(measured["ring"][ring], measured["gloo"][ring], strict=True):
        told = all_reduce(net, n, int(size), "ring")
        errors.append(100 * (told / took - 1))
        cells = f"{took * 1e3:.1f} | {told * 1e3:.1f} | {errors[-1]:+.1f} % | {gloo * 1e3:.1f}"
        print(f"| {name} | {n} | {int(size) // KIB} KiB | {cells} | {os.getloadavg()[0]:.1f} |", flush=True)
    return errors


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=40, help="Mbit/s of each host")
    parser.add_argument("--most", type=int, default=16, help="ranks")
    args = parser.parse_args()
    print(
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, network namespaces on one {os.cpu_count()}-core machine; links of"
    )
    print(f"{args.rate} Mbit/s (tbf), ring of sends and receives over Gloo, fastest of {SAMPLES} samples\n")
    print("| network | ranks | all_reduce of | measured ms | --simulate ms | error | Gloo's own ms | load |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    errors: list[float] = []
    n = 2
    while n <= args.most:
        plan = {"pairs": {"leaf": [0, 1]}, "rings": {"order": list(range(n))}}
        got = run([args.rate] * n, [0] * n, 0, plan)
        net = network([fitted(got["ping"]["leaf"])], 0, aligned=True)
        errors += rows("one leaf", n, got, net, "order")
        n *= 2
    n = 4
    while n <= args.most:
        half = n // 2
        spine = max(1, args.rate * half // 2)
        mixed = [r for pair in zip(range(half), range(half, n), strict=True) for r in pair]
        plan = {
            "pairs": {"leaf": [0, 1], "spine": [0, half]},
            "rings": {"order": list(range(n)), "mixed": mixed},
        }
        got = run([args.rate] * n, [0] * half + [1] * half, spine, plan)
        leaf, across = fitted(got["ping"]["leaf"]), fitted(got["ping"]["spine"])
        # A ping-pong has the spine to itself; a GPU's share of it is what the dump of a fabric says: half.
        share = (across[0], min(across[1], leaf[1] * spine / (args.rate * half)))
        errors += rows("two leaves, in order", n, got, network([leaf, share], half, aligned=True), "order")
        errors += rows("two leaves, mixed", n, got, network([leaf, share], half, aligned=False), "mixed")
        n *= 2
    worst = max(errors, key=abs)
    print(f"\n{len(errors)} rings: error from {min(errors):+.1f} to {max(errors):+.1f} %, worst {worst:+.1f} %")


if __name__ == "__main__":
    rank() if sys.argv[1:2] == ["--rank"] else main()
