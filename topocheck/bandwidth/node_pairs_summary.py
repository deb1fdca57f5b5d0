"""From a tournament's pairs to medians of nodes and rails, and what each transport between nodes gains. Pure."""

from __future__ import annotations

import msgspec

from topocheck.bandwidth.node_pairs import (
    NodePairsReport,
    NodeRate,
    PairRate,
    RailRate,
    Resolution,
    directed,
    leaf_of,
    measured,
)
from topocheck.bandwidth.slow_links import judge
from topocheck.bandwidth.stats import median

LADDER = ("nccl_tcp", "nccl_rdma", "nccl_gdr")
UNJUDGED = ("ib_write_lat",)
"""Transports that give no rate."""
NAMES = {
    "tcp": "TCP sockets",
    "gloo": "Gloo over TCP",
    "nccl_tcp": "NCCL over TCP",
    "nccl_rdma": "NCCL, RDMA from host memory",
    "nccl_gdr": "NCCL, GPUDirect RDMA",
    "ib_write_bw": "ib_write_bw",
    "ib_write_lat": "ib_write_lat",
}


def transports(report: NodePairsReport) -> tuple[tuple[str, str], ...]:
    """Return (transport, rail) in the order in which they were measured."""
    return tuple(dict.fromkeys((p.transport, p.rail) for p in report.pairs if p.phase == "pairs"))


def summarize(report: NodePairsReport) -> NodePairsReport:
    """Return the report with medians, rails and the comparison of transports filled in."""
    unresponsive = frozenset(report.unresponsive)
    return msgspec.structs.replace(
        report,
        medians=tuple(_node(report, n.node, unresponsive) for n in report.nodes),
        resolution=tuple(_resolutions(report, unresponsive)),
        rails=tuple(
            r
            for transport, rail in transports(report)
            if rail
            for r in _rail(report.pairs, transport, rail, unresponsive)
        ),
        transport_comparison=tuple(_comparison(report, unresponsive)),
        notes=report.notes + tuple(_notes(report, unresponsive)) + tuple(_by_leaf(report, unresponsive)),
    )


def _resolutions(report: NodePairsReport, unresponsive: frozenset[str]) -> list[Resolution]:
    out = []
    for transport, rail in transports(report):
        where = leaf_of(report.leaves, rail)
        said = (
            judge(measured(report.pairs, transport, rail, unresponsive), where) if transport not in UNJUDGED else None
        )
        if said is not None and said.usual_gb_s:
            out.append(
                Resolution(
                    transport=transport, rail=rail, usual_gb_s=said.usual_gb_s, scatter=said.scatter,
                    node_limit=said.node_limit, link_limit=said.link_limit,
                    clear=said.clear, no_majority=said.no_majority,
                )
            )  # fmt: skip
    return out


def _node(report: NodePairsReport, node: str, unresponsive: frozenset[str]) -> NodeRate:
    found = transports(report)
    if not found:
        return NodeRate(node=node)
    rates = directed(report.pairs, *found[0], unresponsive)
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


def _rail(pairs: tuple[PairRate, ...], transport: str, rail: str, unresponsive: frozenset[str]) -> list[RailRate]:
    rates = {p: r for p, r in directed(pairs, transport, rail, unresponsive).items() if r}
    if not rates:
        return []
    slowest = min(rates, key=lambda p: rates[p])
    return [
        RailRate(
            rail=rail,
            transport=transport,
            median_gb_s=median(list(rates.values())),
            slowest_gb_s=rates[slowest],
            slowest_pair=f"{slowest[0]} to {slowest[1]}",
        )
    ]


def _comparison(report: NodePairsReport, unresponsive: frozenset[str]) -> list[str]:
    """Say what each step from TCP to GPUDirect RDMA gains."""
    at: dict[str, float] = {}
    for transport in LADDER:
        good = [r for r in directed(report.pairs, transport, "", unresponsive).values() if r]
        if good:
            at[transport] = median(good)
    out = []
    for before, after in (LADDER[:2], LADDER[1:]):
        if before in at and after in at:
            out.append(
                f"{NAMES[after]}: {at[after]:.2f} GB/s, {at[after] / at[before]:.2f} times {NAMES[before]} "
                f"({at[before]:.2f} GB/s)"
            )
    return out


def _by_leaf(report: NodePairsReport, unresponsive: frozenset[str]) -> list[str]:
    """Say what pairs below one leaf get, and what pairs of different leaves get."""
    out = []
    for transport, rail in transports(report):
        where = leaf_of(report.leaves, rail)
        rates = directed(report.pairs, transport, rail, unresponsive) if transport not in UNJUDGED and where else {}
        both = {p: r for p, r in rates.items() if r and p[0] in where and p[1] in where}
        below = [r for (a, b), r in both.items() if where[a] == where[b]]
        across = [r for (a, b), r in both.items() if where[a] != where[b]]
        if below and across:
            out.append(
                f"{NAMES.get(transport, transport)}{', ' + rail if rail else ''}: below one leaf "
                f"{median(below):.3g} GB/s (median of {len(below)}), between leaves {median(across):.3g} GB/s "
                f"(of {len(across)})"
            )
    return out


def _notes(report: NodePairsReport, unresponsive: frozenset[str]) -> list[str]:
    sums = [s for n in report.nodes for s in [_node(report, n.node, unresponsive).together_sends_gb_s] if s]
    alone = [r for r in directed(report.pairs, "tcp", "", unresponsive).values() if r]
    if not sums or not alone:
        return []
    a, b = median(sums), median(alone)
    return [
        f"all pairs at once: each node sends {a:.3g} GB/s in all (median), {100 * a / b:.0f} % of what a pair gets "
        "when no other pair shares its nodes"
    ]
