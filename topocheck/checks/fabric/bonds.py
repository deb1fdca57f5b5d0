"""Bonds of nodes (link aggregation) by the switches of their members."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from topocheck.checks.fabric.run import READS, evidence, joined_in, port, tiers_in
from topocheck.checks.registry import Context, check, not_applicable
from topocheck.fabric.bonds import ONE_AT_A_TIME, half_grouped, odd_bonds, placed_bonds
from topocheck.fabric.tiers import Tiers
from topocheck.model.base import Evidence, Finding, State


@check("fabric.bond", severity=State.WARN, reads=(*READS, "snapshots of the nodes (bonds)"))
def bond(context: Context) -> Iterator[Finding]:
    """The members of a bond are on other switches than those of its siblings, or in no aggregation there.

    Looks at:
        The bonds in recordings of nodes, except those in mode active-backup, and the switch of each member by LLDP.
        Three quarters of at least four bonds of that name which share a switch with it must be on other switches. And
        members whose switch ports are in a link aggregation while others' are not, by what the switches announce.
        Bonds over two switches are noted.

    Why it matters:
        LACP uses the members that lead to one system. Members on two switches carry traffic together only where the
        two act as one (MLAG, EVPN multihoming); otherwise half of the bond is idle.

    Fix:
        Move the cable; or configure MLAG between the switches. `/proc/net/bonding/BOND` shows the partner of each
        member: its MAC is the same for all.

    Does not apply:
        Without recordings of nodes that have bonds, or without LLDP of their members.
    """
    tiers = tiers_in(context)
    placed = [p for p in placed_bonds(tiers, joined_in(context).bonds) if p.bond.mode != ONE_AT_A_TIME]
    if not placed:
        raise not_applicable("no bond of a snapshot has two members in the dumps")
    odd = odd_bonds(placed)
    for o in odd:
        p = o.placed
        on = ", ".join(f"{m} on {port(tiers, a.leaf)}" for m, a in p.members)
        yield Finding(
            state=State.WARN,
            subject=f"{p.bond.node} {p.bond.name}",
            devices=tuple(sorted(p.switches)),
            title=f"{on}; {o.alike} of {o.peers} bonds of this name there are on {_names(tiers, o.usual)}",
            consequence="LACP uses the members of one of these switches: part of the bond is idle",
            evidence=evidence(*(a.link for _, a in p.members))[:4],
            rule="the members of a bond are on the switches of its siblings",
            fix=f"move the cable to {_names(tiers, o.usual - p.switches or o.usual)}",
        )
    for h in half_grouped(tiers, placed):
        p = h.placed
        yield Finding(
            state=State.WARN,
            subject=f"{p.bond.node} {p.bond.name}",
            devices=tuple(sorted(p.switches)),
            title=", ".join(f"{port(tiers, a.leaf)} ({m})" for m, a in h.alone)
            + " is in no link aggregation of its switch; "
            + ", ".join(f"{port(tiers, a.leaf)} ({m})" for m, a in h.grouped)
            + " is",
            consequence="the bond uses only the members that the switch aggregates",
            evidence=evidence(*(a.link for _, a in p.members))[:4],
            rule="all members of a bond are in one aggregation",
            fix="add these ports to the aggregation (port channel) on the switch",
        )
    across = [p for p in placed if len(p.switches) > 1 and p not in [o.placed for o in odd]]
    if across:
        first = across[0]
        yield Finding(
            state=State.NOTE,
            subject="bonds",
            title=f"{len(across)} of {len(placed)} bonds have members on several switches, such as {first.bond.node} "
            f"{first.bond.name} on {_names(tiers, first.switches)}",
            consequence="these switches must act as one (MLAG, EVPN multihoming), or half of each bond is idle",
            evidence=(
                *evidence(*(a.link for _, a in first.members))[:2],
                Evidence(
                    f"{first.bond.node}: /sys/class/net/{first.bond.name}/bonding", first.bond.mode or "mode not known"
                ),
            ),
            rule="the members of a bond lead to one system",
        )


def _names(tiers: Tiers, switches: Iterable[str]) -> str:
    return " and ".join(sorted(map(tiers.label, switches)))
