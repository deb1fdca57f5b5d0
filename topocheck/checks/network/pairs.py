"""Checks of a tournament of nodes (`topocheck network bw`): who is slow, and who no longer answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from topocheck.bandwidth.node_pairs import NodePairsReport, directed, leaf_of, measured
from topocheck.bandwidth.node_pairs_summary import NAMES, UNJUDGED, transports
from topocheck.bandwidth.slow_leaves import SlowLeaf
from topocheck.bandwidth.slow_links import FAIL_BELOW, HALF, Judged, Slow, judge
from topocheck.bandwidth.stats import median
from topocheck.checks import node_checks
from topocheck.checks.registry import Context, check, finding_order, not_applicable, run
from topocheck.gpudirect.types import GpuDirect
from topocheck.model.base import Evidence, Finding, State
from topocheck.model.node import Node
from topocheck.nccl.predict.types import NcclView
from topocheck.policy.types import Policy
from topocheck.topology.types import Topology

READS = ("topocheck network bw",)
BUSY = 0.8
"""Share of a node's CPU time that other processes take, from which on a slow node is put down to them."""


class NodePairsContext(Context, frozen=True, kw_only=True):
    """A context with a tournament in it."""

    pairs: NodePairsReport


def tournament(context: Context) -> NodePairsReport:
    """Return the tournament; a check without one has nothing to judge."""
    if not isinstance(context, NodePairsContext):
        raise not_applicable("no pairs of nodes were measured; `topocheck network bw` measures them")
    return context.pairs


def _slow(report: NodePairsReport) -> Iterator[tuple[str, str, Slow]]:
    for transport, rail in transports(report):
        if transport not in UNJUDGED:
            said = _judged(report, transport, rail)
            for s in () if said.no_majority else said.slow:
                yield transport, rail, s


def _judged(report: NodePairsReport, transport: str, rail: str) -> Judged:
    rates = measured(report.pairs, transport, rail, frozenset(report.unresponsive))
    return judge(rates, leaf_of(report.leaves, rail))


def _busy(report: NodePairsReport, node: str, transport: str, rail: str) -> float:
    """Return the share of the node's CPU time that other processes took, where it was busy and the others less."""
    mine: list[float] = []
    others: list[float] = []
    for p in report.pairs:
        if (p.transport, p.rail) == (transport, rail) and p.phase != "together":
            for name, busy in ((p.a, p.a_busy), (p.b, p.b_busy)):
                if busy is not None:
                    (mine if name == node else others).append(busy)
    if not mine or not others:
        return 0.0
    return median(mine) if median(mine) >= BUSY and median(mine) > median(others) + 0.2 else 0.0


def _evidence(transport: str, rail: str, slows: Sequence[Slow | SlowLeaf]) -> tuple[Evidence, ...]:
    where = f"topocheck network bw, {NAMES.get(transport, transport)}" + (f", {rail}" if rail else "")
    return tuple(
        Evidence(f"{where}, {a} to {b}", f"{rate:.4g} GB/s" if rate else "no connection")
        for s in slows
        for a, b, rate in s.rates
    )


@check(
    "network.slow-node", title="A node exchanges bytes more slowly than its siblings", severity=State.FAIL, reads=READS
)
def slow_node(context: Context) -> Iterator[Finding]:
    """Most pairs of this node are slow, with partners that are fast among themselves.

    Looks at: the rates of all pairs of `topocheck network bw`, each direction by itself; slow pairs are measured
    anew before they count. Below half of the usual rate a node is named however far the rates scatter; from half to
    90 % where the scatter of the pairs does not explain it (docs/slow_nodes.md). A node whose CPUs were busy with other
    processes meanwhile is a warning.

    Why it matters: a collective over all nodes goes at the pace of its slowest member.

    Fix: look at this node's port and cable first: its negotiated rate (`topocheck report --section nics`), error
    counters, the switch port at the other end; then compare its settings with its siblings' (`topocheck report
    --cluster`). Swap the cable with a good node's: if the fault moves with it, it is the cable.

    Does not apply: to fewer than three nodes, where a slow pair does not tell which of the two is slow.
    """
    report = tournament(context)
    if len(report.nodes) < 3:
        raise not_applicable("fewer than three nodes: a slow pair does not show which of its nodes is slow")
    found: dict[tuple[str, str, str], list[Slow]] = {}
    for transport, rail, s in _slow(report):
        if not s.other:
            found.setdefault((s.node, transport, rail), []).append(s)
    for (node, transport, rail), slows in found.items():
        share = min(s.share for s in slows)
        both = len(slows) > 1
        doing = "sends and receives" if both else slows[0].direction
        what = (
            f"{NAMES.get(transport, transport)}, {rail} of {node}"
            if rail
            else f"{NAMES.get(transport, transport)}, node {node}"
        )
        rate = share * slows[0].reference_gb_s
        busy = _busy(report, node, transport, rail)
        text = f"{what} {doing} at {rate:.3g} GB/s" if share else f"{what}: no other node exchanges bytes with it"
        yield Finding(
            state=State.FAIL if share < FAIL_BELOW and not busy else State.WARN,
            subject=f"{node} {rail}" if rail else node,
            title=f"{text}, {100 * share:.0f} % of its siblings' {slows[0].reference_gb_s:.3g} GB/s"
            + (f"; other processes took {100 * busy:.0f} % of its CPU time meanwhile" if busy else ""),
            consequence="every collective that includes this node waits for it",
            evidence=_evidence(transport, rail, slows),
            rule="its pairs are slower than those of the other nodes, by more than their scatter",
            fix="stop what else runs on this node and re-run"
            if busy
            else "check this node's port, cable and switch port (rate, error counters), then compare its settings: "
            "topocheck report --cluster",
        )


@check(
    "network.slow-link", title="Two nodes reach each other more slowly than others", severity=State.FAIL, reads=READS
)
def slow_link(context: Context) -> Iterator[Finding]:
    """One pair of nodes is slow while both are fast with everybody else.

    Looks at: the rates of all pairs of `topocheck network bw`, after those that a slow node explains.

    Why it matters: the fault lies between the nodes: a link between switches, a route, a rate limit of one flow.

    Fix: look at the way between the two (traceroute, ibtracert) and at the error counters of the switch ports on it.

    Does not apply: to fewer than three nodes.
    """
    report = tournament(context)
    if len(report.nodes) < 3:
        raise not_applicable("fewer than three nodes: there is no other pair to compare with")
    for transport, rail, s in _slow(report):
        if s.other:
            rate = s.rates[0][2]
            text = (
                f"{rate:.3g} GB/s, {100 * s.share:.0f} % of the usual {s.reference_gb_s:.3g} GB/s" if rate else "no way"
            )
            yield Finding(
                state=State.FAIL if s.share < FAIL_BELOW else State.WARN,
                subject=f"{s.node} to {s.other}",
                title=f"{NAMES.get(transport, transport)}, {s.node} to {s.other}{', ' + rail if rail else ''}: {text}; "
                "both are fast with the others",
                consequence="collectives whose ring or tree goes over this pair wait for it",
                evidence=_evidence(transport, rail, [s]),
                rule="a pair slower than the others by more than their scatter, which neither of its nodes explains",
                fix="check the path between the two nodes: traceroute or ibtracert, and the switch ports on it",
            )


@check(
    "network.slow-uplink",
    title="Nodes of different leaves reach each other more slowly",
    severity=State.FAIL,
    reads=READS,
)
def slow_uplink(context: Context) -> Iterator[Finding]:
    """All pairs of one leaf with other leaves are slow, while the pairs below it are not.

    Looks at: the rates of all pairs of `topocheck network bw --fabric FILE`, sorted by the leaves of their nodes. With
    three leaves or more the pairs of a leaf are compared with those of the other leaves, with two the pairs between
    them with the pairs below each. Pairs of one leaf with others are measured one after the other, so that they do
    not share its uplinks with each other.

    Why it matters: collectives over several leaves wait for it, and no node is at fault.

    Fix: look at the uplinks of the leaf: links that are down or slow (`topocheck network fabric FILE`), error counters,
    routes that send all flows over one of them.

    Does not apply: without a dump of the fabric, or with a single node below a leaf.
    """
    report = tournament(context)
    if not report.leaves:
        raise not_applicable("no dump of the fabric was given (network bw --fabric FILE)")
    for transport, rail in transports(report):
        for s in _judged(report, transport, rail).leaves if transport not in UNJUDGED else ():
            name = NAMES.get(transport, transport) + (f", {rail}" if rail else "")
            if not s.leaf:
                subject, what = "spine", "pairs of different leaves"
            elif s.other:
                subject, what = f"{s.leaf} to {s.other}", f"nodes of {s.leaf} send to {s.other}"
            else:
                what = f"nodes of {s.leaf} {'send to' if s.direction == 'up' else 'receive from'} other leaves"
                subject = f"{s.leaf}, {'sending' if s.direction == 'up' else 'receiving'}"
            rate = s.share * s.reference_gb_s
            beside = "the pairs of other leaves" if s.direction else "pairs below one leaf"
            uplinks = next((x.uplinks for x in report.leaves if (x.rail, x.leaf) == (rail, s.leaf)), ())
            yield Finding(
                state=State.FAIL if s.share < FAIL_BELOW else State.WARN,
                subject=subject,
                title=f"{name}: {what} at {rate:.3g} GB/s, {100 * s.share:.0f} % of the {s.reference_gb_s:.3g} GB/s of "
                f"{beside}",
                consequence="collectives over several leaves wait for these pairs",
                evidence=_evidence(transport, rail, (s,))[:8]
                + tuple(Evidence("dump of the fabric", u) for u in uplinks[:4]),
                rule="pairs of different leaves are as fast as those they are compared with, within their scatter",
                fix="check the uplinks of this leaf: down or slow links, error counters, routes over few of them",
            )


@check(
    "network.scattered-rates",
    title="Rates scatter too far to identify a slow node",
    severity=State.UNKNOWN,
    reads=READS,
)
def scattered(context: Context) -> Iterator[Finding]:
    """The rates of all pairs differ so much that a node at three quarters of the usual rate might not be noticed.

    Looks at: the standard deviation of the rates of `topocheck network bw` that nothing slows, after up to three
    measurements of all pairs, and what it lets be noticed (docs/slow_nodes.md). Also where half of the nodes are slow
    or more, so that the usual rate is not known.

    Why it matters: that no node is named is then no proof that none is slow. What is below half is named all the same.

    Fix: measure while nothing else uses the nodes and the network, or longer (`--seconds`).

    Does not apply: to fewer than three nodes.
    """
    report = tournament(context)
    if len(report.nodes) < 3:
        raise not_applicable("fewer than three nodes: there is no other pair to compare with")
    for r in report.resolution:
        if r.clear:
            continue
        name = NAMES.get(r.transport, r.transport) + (f", {r.rail}" if r.rail else "")
        percent = f"{100 * r.scatter:.0f} %"
        text = (
            "half of the nodes or more are slow, so the usual rate is not known"
            if r.no_majority
            else f"rates scatter by {percent}: only a node below {100 * r.node_limit:.0f} % of the usual "
            f"{r.usual_gb_s:.3g} GB/s, or a link below {100 * r.link_limit:.0f} %, is sure to be noticed"
        )
        yield Finding(
            state=State.UNKNOWN,
            subject=f"{r.transport} {r.rail}".strip(),
            title=f"{name}: {text}",
            evidence=(Evidence(f"topocheck network bw, {name}", f"standard deviation {percent} of the rate"),),
            rule=f"a node at {100 * FAIL_BELOW:.0f} % and a link at {100 * HALF:.0f} % are noticed in 9 of 10 runs",
            fix="re-run while nothing else uses these nodes and their network, or with more --seconds",
        )


@check("network.unresponsive-node", title="A node stopped answering", severity=State.FAIL, reads=READS)
def unresponsive_node(context: Context) -> Iterator[Finding]:
    """A node or rank that was started did not come, or stopped answering while pairs were measured.

    Looks at: the answers of all ranks to rank 0, each within its deadline.

    Why it matters: a job on these nodes would hang at this point.

    Fix: see whether the node is up and reachable from rank 0's node (ping, its console, dmesg), and whether a firewall
    closes the ports between them.
    """
    for who, what in tournament(context).unresponsive.items():
        yield Finding(
            state=State.FAIL,
            subject=who,
            title=f"{who}: {what}",
            consequence="a job that includes it hangs or fails",
            evidence=(Evidence("topocheck network bw, answers to rank 0", what),),
            rule="every rank answers rank 0 within the deadline of each round",
            fix=f"check that {who} started and can be reached from rank 0's node: ping, its console, the kernel's log",
        )


@check("network.unmeasured-pairs", title="No pair of nodes could be measured", severity=State.UNKNOWN, reads=READS)
def unmeasured(context: Context) -> Iterator[Finding]:
    """One transport between nodes gave no rate for any pair, or was asked for and cannot be tried here.

    Looks at: the errors of all pairs over it; whether there is more than one node; for NCCL, whether every node has
    a GPU that torch sees, and for RDMA a device with an active port.

    Why it matters: nothing can be said of the network over this transport.

    Fix: follow the error; a firewall that closes the ports between the nodes is the usual cause over TCP.
    """
    report = tournament(context)
    for transport, why in report.skipped.items():
        one_node = len(report.nodes) < 2
        yield Finding(
            state=State.UNKNOWN,
            subject=transport,
            title=f"{NAMES.get(transport, transport)}: not tried: {why}",
            evidence=(Evidence("topocheck network bw, answers of the nodes", why),),
            fix="start it on two nodes or more; where containers share a host name, set TOPOCHECK_NODE for each"
            if one_node
            else "leave this --transport out, or start it on nodes that have what it needs",
        )
    for transport, rail in transports(report):
        mine = [p for p in report.pairs if (p.transport, p.rail) == (transport, rail)]
        errors = [p.error for p in mine if p.error]
        nothing = all(p.a_to_b_gb_s is None and p.b_to_a_gb_s is None and p.latency_us is None for p in mine)
        if nothing and errors and not report.unresponsive:
            yield Finding(
                state=State.UNKNOWN,
                subject=f"{transport} {rail}".strip(),
                title=f"{NAMES.get(transport, transport)}: none of {len(mine)} pairs could be measured: {errors[0]}",
                evidence=tuple(Evidence(f"topocheck network bw, {p.a} - {p.b}", p.error) for p in mine[:8]),
                fix="follow the error; over TCP see whether a firewall closes the ports between the nodes",
            )


@check("network.uneven-directions", title="Two nodes: one direction is slower", severity=State.WARN, reads=READS)
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
    for transport, rail in transports(report):
        rates = directed(report.pairs, transport, rail, frozenset(report.unresponsive))
        if len(rates) == 2 and max(rates.values()) > 0 and min(rates.values()) < FAIL_BELOW * max(rates.values()):
            (a, b), rate = min(rates.items(), key=lambda item: item[1])
            best = max(rates.values())
            spread = max(p.spread for p in report.pairs if (p.transport, p.rail) == (transport, rail))
            noisy = spread > 1 - rate / best
            yield Finding(
                state=State.NOTE if noisy else State.WARN,
                subject=f"{a} to {b}",
                title=f"{NAMES.get(transport, transport)}: {a} to {b} {rate:.3g} GB/s, the other way {best:.3g} GB/s"
                + (
                    f"; the samples of one direction vary by {100 * spread:.0f} %, so this may be chance"
                    if noisy
                    else ""
                ),
                evidence=(Evidence("topocheck network bw", f"{rates}"),),
                rule="both directions of a pair within a quarter of each other",
                fix="check the error counters of the ports on both ends",
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
    found = [f for _, fs in run(node_checks(), context) for f in fs]
    return msgspec.structs.replace(report, findings=tuple(sorted(found, key=finding_order)))
