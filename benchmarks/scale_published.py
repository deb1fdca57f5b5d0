"""Published times of nccl-tests beside what `scale --simulate` says of such a network; prints Markdown.

    python benchmarks/scale_published.py

Nothing is fitted: rates are line rates and those that NCCL itself counts for an NVLink (src/graph/topo.h), latencies
those of its own model (src/graph/tuning.cc). SHARP and NVLS, which some of these runs used, are not in the model.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from topocheck.bandwidth.simulate import Level, Network, Value, all_reduce
from topocheck.cli.simulate import BASE_US, NET_ALPHA_US, NODE_ALPHA_US


def network(gpus: int, node_gb_s: float, nic_gb_s: float) -> Network:
    """Return nodes of `gpus` GPUs that one tier of leaves joins, a NIC for each GPU."""
    return Network(
        levels=(
            Level(name="node", members=gpus, alpha_us=Value.of(NODE_ALPHA_US), beta_gb_s=Value.of(node_gb_s)),
            Level(name="leaf", members=0, alpha_us=Value.of(NET_ALPHA_US), beta_gb_s=Value.of(nic_gb_s)),
        ),
        base_us=BASE_US,
    )


H100 = network(8, 18 * 20.6, 50.0)
GB200 = network(72, 18 * 40.1, 50.0)
A100 = network(8, 12 * 20.0, 25.0)

RUNS: tuple[tuple[str, str, Network, int, tuple[tuple[int, float], ...]], ...] = (
    (
        "8 x A100 SXM, one node",
        "microsoft/superbenchmark tests/data/nccl_allreduce.log",
        A100,
        8,
        (
            (2097152, 93.48), (16777216, 226.0), (134217728, 1162.2), (1073741824, 8159.5), (8589934592, 63896),
        ),
    ),
    (
        "16 x H200 SXM, 2 nodes (NVLS)",
        "output in a public issue",
        H100,
        16,
        ((1073741824, 4389.5), (3221225472, 12485), (9663676416, 37069)),
    ),
    (
        "64 x H100 SXM, 8 nodes, NDR (SHARP)",
        "coreweave/nccl-tests README.md",
        H100,
        64,
        ((536870912, 2984.6), (1073741824, 5808.0), (2147483648, 11163), (4294967296, 22181), (8589934592, 43980)),
    ),
    (
        "1,440 x GB200, 20 racks of 72",
        "coreweave/nccl-tests README.md",
        GB200,
        1440,
        ((536870912, 7108.4), (1073741824, 9805.7), (2147483648, 14980), (4294967296, 24782), (17179869184, 84625)),
    ),
)  # fmt: skip
"""(what ran, where it is published, its network, GPUs, (bytes, microseconds out of place))."""


def main() -> None:
    print("| run of all_reduce | bytes | published ms | model: ring | tree | two-level | nearest, error |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for what, _, net, gpus, rows in RUNS:
        for size, us in rows:
            told = {a: all_reduce(net, gpus, size, a) * 1e3 for a in ("ring", "tree", "hierarchical")}
            name, best = min(told.items(), key=lambda t: abs(t[1] - us / 1e3))
            shown = " | ".join(f"{v:.3g}" for v in told.values())
            short = {"hierarchical": "two-level"}.get(name, name)
            print(f"| {what} | {size} | {us / 1e3:.4g} | {shown} | {short}, {100 * (best / (us / 1e3) - 1):+.0f} % |")
    print("\nSources: " + "; ".join(f"{what}: {source}" for what, source, *_ in RUNS) + ".")


if __name__ == "__main__":
    main()
