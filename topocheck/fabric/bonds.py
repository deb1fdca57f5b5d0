"""Bonds of nodes by the switches that their members are plugged into.

LACP (IEEE 802.1AX) aggregates the ports that lead to one system: members on two switches carry traffic together only
where the two present themselves as one (MLAG, EVPN multihoming). Otherwise the bond uses the ports of one of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from topocheck.fabric.join import NodeBond
from topocheck.fabric.merge import short
from topocheck.fabric.tiers import Attachment, Tiers
from topocheck.fabric.uplinks import AGREE, MIN_ALIKE

ONE_AT_A_TIME = "active-backup"
"""The mode in which members on two switches are what it is for (Documentation/networking/bonding.rst)."""


class PlacedBond(msgspec.Struct, frozen=True, kw_only=True):
    """A bond and where its members are plugged in: (interface, attachment), two or more."""

    bond: NodeBond
    members: tuple[tuple[str, Attachment], ...]

    @property
    def switches(self) -> frozenset[str]:
        """Ids of the switches of its members."""
        return frozenset(a.leaf.device for _, a in self.members)


class OddBond(msgspec.Struct, frozen=True, kw_only=True):
    """A bond on other switches than bonds of its name on the same switch; `usual` are ids, of `alike` of `peers`."""

    placed: PlacedBond
    usual: frozenset[str]
    alike: int
    peers: int


class HalfGrouped(msgspec.Struct, frozen=True, kw_only=True):
    """A bond with members whose switch ports are in a link aggregation, and others whose are not."""

    placed: PlacedBond
    grouped: tuple[tuple[str, Attachment], ...]
    alone: tuple[tuple[str, Attachment], ...]


def placed_bonds(tiers: Tiers, bonds: Iterable[NodeBond]) -> tuple[PlacedBond, ...]:
    """Return the bonds of which two members or more are found in the fabric."""
    at = {}
    for a in tiers.attachments:
        node, _, interface = a.end.device.rpartition("/")
        at[short(node), interface] = a
    out = []
    for b in bonds:
        found = tuple((m, at[short(b.node), m]) for m in b.members if (short(b.node), m) in at)
        if len(found) > 1:
            out.append(PlacedBond(bond=b, members=found))
    return tuple(out)


def odd_bonds(placed: Iterable[PlacedBond]) -> tuple[OddBond, ...]:
    """Return the bonds on other switches than three quarters of at least four of that name which share one with it."""
    on: dict[tuple[str, str], list[PlacedBond]] = defaultdict(list)
    listed = list(placed)
    for p in listed:
        for s in p.switches:
            on[p.bond.name, s].append(p)
    out = []
    for p in listed:
        for s in sorted(p.switches):
            peers = on[p.bond.name, s]
            usual, alike = Counter(q.switches for q in peers).most_common(1)[0]
            if len(peers) >= MIN_ALIKE and alike >= AGREE * len(peers) and usual != p.switches:
                out.append(OddBond(placed=p, usual=usual, alike=alike, peers=len(peers)))
                break
    return tuple(out)


def half_grouped(tiers: Tiers, placed: Iterable[PlacedBond]) -> tuple[HalfGrouped, ...]:
    """Return the bonds of which the switches have some members in an aggregation, and some not.

    Only switches that announce aggregations (IEEE 802.1AX's TLV) for some port count.
    """
    announce = {a.leaf.device for a in tiers.attachments if a.link.grouped}
    out = []
    for p in placed:
        grouped = tuple((m, a) for m, a in p.members if a.link.grouped)
        alone = tuple((m, a) for m, a in p.members if not a.link.grouped and a.leaf.device in announce)
        if grouped and alone:
            out.append(HalfGrouped(placed=p, grouped=grouped, alone=alone))
    return tuple(out)
