"""From a tournament's pairs to medians of nodes and rails, and what each way between nodes gains. Pure."""

from __future__ import annotations

import msgspec

from topocheck.tests_live.node_pairs import directed
from topocheck.tests_live.node_pairs_types import NodePairsReport, NodeRate, PairRate, RailRate
from topocheck.tests_live.stats import median

LADDER = ("nccl_tcp", "nccl_rdma", "nccl_gdr")
NAMES = {
    "tcp": "TCP sockets",
    "gloo": "Gloo over TCP",
    "nccl_tcp": "NCCL over TCP",
    "nccl_rdma": "NCCL, RDMA from host memory",
    "nccl_gdr": "NCCL, GPUDirect RDMA",
    "ib_write_bw": "ib_write_bw",
    "ib_write_lat": "ib_write_lat",
}


def ways(report: NodePairsReport) -> tuple[tuple[str, str], ...]:
    """Return (way, rail) in the order in which they were measured."""
    return tuple(dict.fromkeys((p.way, p.rail) for p in report.pairs if p.phase == "pairs"))


def summarize(report: NodePairsReport) -> NodePairsReport:
    """Return the report with medians, rails and gains filled in."""
    silent = frozenset(report.silent)
    return msgspec.structs.replace(
        report,
        medians=tuple(_node(report, n.node, silent) for n in report.nodes),
        rails=tuple(r for way, rail in ways(report) if rail for r in _rail(report.pairs, way, rail, silent)),
        gains=tuple(_gains(report, silent)),
        notes=report.notes + tuple(_notes(report, silent)),
    )


def _node(report: NodePairsReport, node: str, silent: frozenset[str]) -> NodeRate:
    found = ways(report)
    if not found:
        return NodeRate(node=node)
    rates = directed(report.pairs, *found[0], silent)
    sends = [r for (a, _), r in rates.items() if a == node and r]
    receives = [r for (_, b), r in rates.items() if b == node and r]
    sent, got = 0.0, 0.0
    for p in report.pairs:
        if p.phase == "together" and node in (p.a, p.b):
            to_b, to_a = p.a_to_b_gb_s or 0.0, p.b_to_a_gb_s or 0.0
            sent += to_b if node == p.a else to_a
            got += to_a if node == p.a else to_b
    return NodeRate(
        node=node,
        sends_gb_s=median(sends) if sends else None,
        receives_gb_s=median(receives) if receives else None,
        together_sends_gb_s=sent or None,
        together_receives_gb_s=got or None,
    )


def _rail(pairs: tuple[PairRate, ...], way: str, rail: str, silent: frozenset[str]) -> list[RailRate]:
    rates = {p: r for p, r in directed(pairs, way, rail, silent).items() if r}
    if not rates:
        return []
    slowest = min(rates, key=lambda p: rates[p])
    return [
        RailRate(
            rail=rail,
            way=way,
            median_gb_s=median(list(rates.values())),
            slowest_gb_s=rates[slowest],
            slowest_pair=f"{slowest[0]} to {slowest[1]}",
        )
    ]


def _gains(report: NodePairsReport, silent: frozenset[str]) -> list[str]:
    """Say what each step from TCP to GPUDirect RDMA gains."""
    at: dict[str, float] = {}
    for way in LADDER:
        good = [r for r in directed(report.pairs, way, "", silent).values() if r]
        if good:
            at[way] = median(good)
    out = []
    for before, after in (LADDER[:2], LADDER[1:]):
        if before in at and after in at:
            out.append(
                f"{NAMES[after]}: {at[after]:.2f} GB/s, {at[after] / at[before]:.2f} times {NAMES[before]} "
                f"({at[before]:.2f} GB/s)"
            )
    return out


def _notes(report: NodePairsReport, silent: frozenset[str]) -> list[str]:
    sums = [s for n in report.nodes for s in [_node(report, n.node, silent).together_sends_gb_s] if s]
    alone = [r for r in directed(report.pairs, "tcp", "", silent).values() if r]
    if not sums or not alone:
        return []
    a, b = median(sums), median(alone)
    return [
        f"all pairs at once: each node sends {a:.3g} GB/s in all (median), {100 * a / b:.0f} % of what a pair gets "
        "when no other pair shares its nodes"
    ]
