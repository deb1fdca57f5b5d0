"""Cables: on the wrong leaf or switch, missing between switches, and cables that should not be there."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.fabric.run import READS, both, down, ends, evidence, port, tiers_in, whole
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.fabric.groups import missing_peers, unexpected_links
from topocheck.fabric.rails import above_the_leaves, odd_cables
from topocheck.fabric.uplinks import MIN_ALIKE, missing_links
from topocheck.model.base import Evidence, Finding, State


@check("fabric.odd-cable", severity=State.WARN, reads=READS)
def odd_cable(context: Context) -> Iterator[Finding]:
    """An adapter is plugged into another leaf than the same adapter of the nodes that are cabled like it.

    Looks at:
        The leaf of every adapter. Peers of a node are those that share the leaf of more than half of its other
        adapters; three quarters of at least three peers must have this adapter on one leaf. And adapters on a switch
        above the leaves, where three quarters of the nodes with such a name have theirs on leaves.

    Why it matters:
        On a rail-optimised fabric traffic of one rail then crosses the spines, and one leaf carries more than its
        share; NCCL joins the rails wrongly.

    Fix:
        Move the cable. Two adapters of one node that are named here are usually swapped.

    Does not apply:
        With fewer than four nodes that are cabled alike.
    """
    tiers = tiers_in(context)
    if len({a.node for a in tiers.attachments}) < MIN_ALIKE:
        raise not_applicable("fewer than four nodes in the dump")
    for odd in odd_cables(tiers):
        a = odd.found
        yield Finding(
            state=State.WARN,
            subject=port(tiers, a.end),
            devices=(a.end.device, a.leaf.device, odd.leaf),
            title=f"on {port(tiers, a.leaf)}; {odd.agree} of {odd.peers} nodes that are cabled like {a.node} have "
            f"{a.rail} on {tiers.label(odd.leaf)}",
            consequence="traffic of this rail crosses the spines",
            evidence=evidence(a.link, odd.peer.link),
            rule="an adapter is on the leaf of the same adapter of its peers",
            fix=f"move the cable to {tiers.label(odd.leaf)}",
        )
    for a, alike, peers in above_the_leaves(tiers):
        yield Finding(
            state=State.WARN,
            subject=port(tiers, a.end),
            devices=(a.end.device, a.leaf.device),
            title=f"on {port(tiers, a.leaf)}, a switch above the leaves; {alike} of {peers} nodes with such a name "
            f"have {a.rail} on a leaf",
            consequence="it takes a port that joins leaves, and is far from the other adapters of its kind",
            evidence=evidence(a.link),
            rule="adapters of nodes are on leaves",
            fix="move the cable to a leaf",
        )


@check("fabric.missing-uplink", severity=State.WARN, reads=READS)
def missing_uplink(context: Context) -> Iterator[Finding]:
    """A switch has fewer links to a switch above it than its siblings have.

    Looks at:
        The number of links from each leaf to each spine (and further up), against the number that three quarters of
        the switches of the same pod have; where they agree on none, against the number that the switch has to three
        quarters of the switches above it. And leaves without any link up, where adapters of the same kind are on
        leaves that have some.

    Why it matters:
        The leaf carries less to other leaves, and adaptive routing cannot make it up.

    Fix:
        Look at both ports (`ibportstate`, cable, transceiver); a link that is down is not in the dump.

    Does not apply:
        With fewer than four switches below one, and where the dump does not show the cables between switches (Slurm's
        topology, LLDP of nodes).
    """
    tiers = tiers_in(context)
    whole(tiers)
    if max(tiers.tier.values(), default=0) == 0:
        raise not_applicable("no switch is above the leaves")
    dump = ", ".join(tiers.fabric.sources)
    for m in missing_links(tiers):
        lower, upper = tiers.label(m.lower), tiers.label(m.upper) if m.upper else "any switch above it"
        own = [x for x in tiers.between.get(m.lower, ()) if x.other(m.lower).device == m.upper]
        if not m.upper:
            title = f"no link up; {m.alike} of {m.siblings} leaves with such nodes have links up, mostly {m.usual}"
        elif m.below:
            title = f"{m.found} of {m.usual} links; {m.alike} of {m.siblings} switches below {upper} have {m.usual}"
        else:
            title = f"{m.found} of {m.usual} links; {lower} has {m.usual} to {m.alike} of {m.siblings} such switches"
        if m.more:
            title += f"; it has more links than usual to {', '.join(map(tiers.label, m.more[:3]))}"
        yield Finding(
            state=State.WARN,
            subject=f"{lower} - {upper}",
            devices=tuple(d for d in (m.lower, m.upper, *m.more[:3]) if d),
            title=title,
            consequence=f"{lower} carries less to the rest of the fabric",
            evidence=(evidence(*own[:2]) or (Evidence(dump, f"no link {lower} - {upper}"),)) + down(tiers, m.lower),
            rule="a switch has as many links to a switch above it as its siblings",
            fix="move the cable that is on the wrong switch"
            if m.more
            else "check the ports of both switches that are down: cable, transceiver, port state",
        )


@check("fabric.missing-link", severity=State.WARN, reads=READS)
def missing_link(context: Context) -> Iterator[Finding]:
    """Two switches of a group of a dragonfly, or two of its groups, are joined by fewer links than the others.

    Looks at:
        Groups of switches that are joined to each other (dragonfly) or by a tree (dragonfly+): the number of links
        between every two switches of a group, and between every two groups, against the number that three quarters
        have.

    Why it matters:
        Traffic between them takes a longer path and shares the links of others.

    Fix:
        Look at both ports (cable, transceiver); a link that is down is not in the dump.

    Does not apply:
        Where switches of one tier are not joined to each other.
    """
    tiers = tiers_in(context)
    whole(tiers)
    for m in missing_peers(tiers):
        a, b = tiers.label(m.a), tiers.label(m.b)
        what, pairs = ("the groups of ", "pairs of groups") if m.groups else ("", "pairs of switches in the group")
        yield Finding(
            state=State.WARN,
            subject=f"{what}{a} and {b}" if m.groups else f"{a} - {b}",
            devices=(m.a, m.b),
            title=f"{m.found} of {m.usual} links; {m.alike} of {m.pairs} {pairs} have {m.usual}",
            consequence="traffic between them takes a longer path",
            evidence=(Evidence(", ".join(tiers.fabric.sources), f"{m.found} links between {what}{a} and {b}"),),
            rule="every two switches of a group, and every two groups, are joined by as many links",
            fix="check the ports that are down: cable, transceiver, port state",
        )


@check("fabric.unexpected-link", severity=State.WARN, reads=READS)
def unexpected_link(context: Context) -> Iterator[Finding]:
    """A cable joins two switches that no such cable should join: of one tier, past a tier, or a switch to itself.

    Looks at:
        Links between switches of the same tier, and between tiers that are not neighbours, where at most a quarter of
        at least eight switches have one. Links between two ports of one switch.

    Why it matters:
        The cable takes two ports that something else needs, and may break the order of tiers that routing relies on
        (up/down routing, fat-tree).

    Fix:
        Move the cable to where it belongs; often a switch beside it lacks one.

    Does not apply:
        Where many switches have such links (dragonfly, torus, pairs of leaves).
    """
    tiers = tiers_in(context)
    whole(tiers)
    for u in unexpected_links(tiers):
        if u.itself:
            title, rule = "joins two ports of the same switch", "a cable joins two devices"
        elif u.levels:
            title = f"joins tiers {u.levels} apart; {u.having} of {u.switches} switches of that tier have such a link"
            rule = "links join neighbouring tiers"
        else:
            title = f"joins two switches of one tier; {u.having} of {u.switches} have such a link"
            rule = "links join neighbouring tiers"
        yield Finding(
            state=State.WARN,
            subject=both(tiers, u.link),
            devices=ends(u.link),
            title=title,
            consequence="two ports are taken, and routing by tiers may send traffic over it",
            evidence=evidence(u.link),
            rule=rule,
            fix="move the cable to where it belongs",
        )
