"""Checks of a tournament of nodes (`topocheck bw --pairs nodes`): who is slow, and who no longer answers."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from topocheck.checks.registry import CHECKS, Context, check, finding_order, not_applicable, run
from topocheck.gpudirect.types import GpuDirect
from topocheck.model.base import Evidence, Finding, State
from topocheck.model.node import Node
from topocheck.nccl.types import NcclView
from topocheck.policy.types import Policy
from topocheck.tests_live.node_pairs import directed
from topocheck.tests_live.node_pairs_summary import NAMES, ways
from topocheck.tests_live.node_pairs_types import NodePairsReport
from topocheck.tests_live.node_ports import FAIL_BELOW, Slow, find_slow
from topocheck.topology.types import Topology

READS = ("topocheck bw --pairs nodes",)


class NodePairsContext(Context, frozen=True, kw_only=True):
    """A context with a tournament in it."""

    pairs: NodePairsReport


def tournament(context: Context) -> NodePairsReport:
    """Return the tournament; a check without one has nothing to judge."""
    if not isinstance(context, NodePairsContext):
        raise not_applicable("no pairs of nodes were measured; `topocheck bw --pairs nodes` measures them")
    return context.pairs


def _slow(report: NodePairsReport) -> Iterator[tuple[str, str, Slow]]:
    for way, rail in ways(report):
        if way != "ib_write_lat":
            for s in find_slow(directed(report.pairs, way, rail, frozenset(report.silent))):
                yield way, rail, s


def _evidence(way: str, rail: str, slows: list[Slow]) -> tuple[Evidence, ...]:
    where = f"topocheck bw --pairs nodes, {NAMES.get(way, way)}" + (f", {rail}" if rail else "")
    return tuple(
        Evidence(f"{where}, {a} to {b}", f"{rate:.4g} GB/s" if rate else "no connection")
        for s in slows
        for a, b, rate in s.rates
    )


@check("bw.slow-node", title="A node exchanges bytes more slowly than its siblings", severity=State.FAIL, reads=READS)
def slow_node(context: Context) -> Iterator[Finding]:
    """Most pairs of this node are slow, with partners that are fast among themselves.

    Looks at: the rates of all pairs of `topocheck bw --pairs nodes`, each direction by itself; slow pairs are measured
    twice before they count.

    Why it matters: a collective over all nodes goes at the pace of its slowest member.

    Fix: look at this node's port and cable first: its negotiated rate (`topocheck report --section nics`), error
    counters, the switch port at the other end; then compare its settings with its siblings' (`topocheck report
    --cluster`). Swap the cable with a good node's: if the fault moves with it, it is the cable.

    Does not apply: to fewer than three nodes, where a slow pair does not tell which of the two is slow.
    """
    report = tournament(context)
    if len(report.nodes) < 3:
        raise not_applicable("fewer than three nodes: a slow pair does not tell which of its nodes is slow")
    found: dict[tuple[str, str, str], list[Slow]] = {}
    for way, rail, s in _slow(report):
        if not s.other:
            found.setdefault((s.node, way, rail), []).append(s)
    for (node, way, rail), slows in found.items():
        share = min(s.share for s in slows)
        both = len(slows) > 1
        doing = "sends and receives" if both else slows[0].direction
        what = f"{NAMES.get(way, way)}, {rail} of {node}" if rail else f"{NAMES.get(way, way)}, node {node}"
        rate = share * slows[0].reference_gb_s
        text = f"{what} {doing} at {rate:.3g} GB/s" if share else f"{what}: no other node exchanges bytes with it"
        yield Finding(
            id="bw.slow-node",
            state=State.FAIL if share < FAIL_BELOW else State.WARN,
            subject=f"{node} {rail}" if rail else node,
            title=f"{text}, {100 * share:.0f} % of its siblings' {slows[0].reference_gb_s:.3g} GB/s",
            consequence="every collective that includes this node waits for it",
            evidence=_evidence(way, rail, slows),
            rule="more than half of its pairs are slower than the pairs of the other nodes among themselves",
            fix="look at this node's port, cable and switch port (rate, error counters), then compare its settings: "
            "topocheck report --cluster",
        )


@check("bw.slow-link", title="Two nodes reach each other more slowly than others", severity=State.FAIL, reads=READS)
def slow_link(context: Context) -> Iterator[Finding]:
    """One pair of nodes is slow while both are fast with everybody else.

    Looks at: the rates of all pairs of `topocheck bw --pairs nodes`, after those that a slow node explains.

    Why it matters: the fault lies between the nodes: a link between switches, a route, a rate limit of one flow.

    Fix: look at the way between the two (traceroute, ibtracert) and at the error counters of the switch ports on it.

    Does not apply: to fewer than three nodes.
    """
    report = tournament(context)
    if len(report.nodes) < 3:
        raise not_applicable("fewer than three nodes: there is no other pair to compare with")
    for way, rail, s in _slow(report):
        if s.other:
            rate = s.rates[0][2]
            text = (
                f"{rate:.3g} GB/s, {100 * s.share:.0f} % of the usual {s.reference_gb_s:.3g} GB/s" if rate else "no way"
            )
            yield Finding(
                id="bw.slow-link",
                state=State.FAIL if s.share < FAIL_BELOW else State.WARN,
                subject=f"{s.node} to {s.other}",
                title=f"{NAMES.get(way, way)}, {s.node} to {s.other}{', ' + rail if rail else ''}: {text}; "
                "both are fast with the others",
                consequence="collectives whose ring or tree goes over this pair wait for it",
                evidence=_evidence(way, rail, [s]),
                rule="a pair slower than the others, which neither of its nodes explains",
                fix="look at the way between the two nodes: traceroute or ibtracert, and the switch ports on it",
            )


@check("bw.silent-node", title="A node stopped answering", severity=State.FAIL, reads=READS)
def silent_node(context: Context) -> Iterator[Finding]:
    """A node or rank that was started did not come, or stopped answering while pairs were measured.

    Looks at: the answers of all ranks to rank 0, each within its deadline.

    Why it matters: a job on these nodes would hang at this point.

    Fix: see whether the node is up and reachable from rank 0's node (ping, its console, dmesg), and whether a firewall
    closes the ports between them.
    """
    for who, what in tournament(context).silent.items():
        yield Finding(
            id="bw.silent-node",
            state=State.FAIL,
            subject=who,
            title=f"{who} {what}",
            consequence="a job that includes it hangs or fails",
            evidence=(Evidence("topocheck bw --pairs nodes, answers to rank 0", what),),
            rule="every rank answers rank 0 within the deadline of each round",
            fix=f"look whether {who} is up and reachable from rank 0's node: ping, its console, the kernel's log",
        )


@check("bw.unmeasured-pairs", title="No pair of nodes could be measured", severity=State.UNKNOWN, reads=READS)
def unmeasured(context: Context) -> Iterator[Finding]:
    """One way of reaching another node gave no rate for any pair, or was asked for and cannot be tried here.

    Looks at: the errors of all pairs of that way; whether there is more than one node; for NCCL, whether every node has
    a GPU that torch sees, and for RDMA a device with an active port.

    Why it matters: nothing can be said of the network by this way.

    Fix: follow the error; a firewall that closes the ports between the nodes is the usual cause over TCP.
    """
    report = tournament(context)
    for way, why in report.not_tried.items():
        one_node = len(report.nodes) < 2
        yield Finding(
            id="bw.unmeasured-pairs",
            state=State.UNKNOWN,
            subject=way,
            title=f"{NAMES.get(way, way)}: not tried: {why}",
            evidence=(Evidence("topocheck bw --pairs nodes, answers of the nodes", why),),
            fix="start it on two nodes or more; where containers share a host name, set TOPOCHECK_NODE for each"
            if one_node
            else "leave this --way out, or start it on nodes that have what it needs",
        )
    for way, rail in ways(report):
        mine = [p for p in report.pairs if (p.way, p.rail) == (way, rail)]
        errors = [p.error for p in mine if p.error]
        nothing = all(p.a_to_b_gb_s is None and p.b_to_a_gb_s is None and p.latency_us is None for p in mine)
        if nothing and errors and not report.silent:
            yield Finding(
                id="bw.unmeasured-pairs",
                state=State.UNKNOWN,
                subject=f"{way} {rail}".strip(),
                title=f"{NAMES.get(way, way)}: none of {len(mine)} pairs could be measured: {errors[0]}",
                evidence=tuple(Evidence(f"topocheck bw --pairs nodes, {p.a} - {p.b}", p.error) for p in mine[:8]),
                fix="follow the error; over TCP see whether a firewall closes the ports between the nodes",
            )


@check("bw.uneven-directions", title="Two nodes: one direction is slower", severity=State.WARN, reads=READS)
def uneven(context: Context) -> Iterator[Finding]:
    """With only two nodes there are no siblings; the two directions can still be compared.

    Looks at: the rates of both directions of the one pair; uneven ones are measured twice before they count. Where the
    samples of one direction vary by as much as the directions differ, it is a note.

    Why it matters: a link carries the same both ways; a slow direction points at errors or a limit on one side.

    Fix: look at the error counters of the ports on both ends.
    """
    report = tournament(context)
    if len(report.nodes) != 2:
        raise not_applicable("with three nodes or more, each is compared with its siblings")
    for way, rail in ways(report):
        rates = directed(report.pairs, way, rail, frozenset(report.silent))
        if len(rates) == 2 and max(rates.values()) > 0 and min(rates.values()) < FAIL_BELOW * max(rates.values()):
            (a, b), rate = min(rates.items(), key=lambda item: item[1])
            best = max(rates.values())
            spread = max(p.spread for p in report.pairs if (p.way, p.rail) == (way, rail))
            noisy = spread > 1 - rate / best
            yield Finding(
                id="bw.uneven-directions",
                state=State.NOTE if noisy else State.WARN,
                subject=f"{a} to {b}",
                title=f"{NAMES.get(way, way)}: {a} to {b} {rate:.3g} GB/s, the other way {best:.3g} GB/s"
                + (
                    f"; the samples of one direction vary by {100 * spread:.0f} %, so this may be chance"
                    if noisy
                    else ""
                ),
                evidence=(Evidence("topocheck bw --pairs nodes", f"{rates}"),),
                rule="both directions of a pair within a quarter of each other",
                fix="look at the error counters of the ports on both ends",
            )


def judge_pairs(report: NodePairsReport, policy: Policy | None = None) -> NodePairsReport:
    """Return the report with its findings, worst first."""
    policy = policy or Policy()
    context = NodePairsContext(
        node=Node(source="live"),
        topology=Topology(),
        gpudirect=GpuDirect(),
        nccl=NcclView(),
        policy=policy,
        pairs=report,
    )
    mine = [c for c in CHECKS.values() if c.reads == READS]
    found = [policy.adjust(f) for _, fs in run(policy.select(mine), context) for f in fs]
    return msgspec.structs.replace(report, findings=tuple(sorted(found, key=finding_order)))
