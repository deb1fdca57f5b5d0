"""Which nodes are in one place of a fabric: below the same leaf, or the same leaves of their rails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from topocheck.fabric.tiers import Tiers
from topocheck.model.names import natural_key

SHARED = 0.5
"""Part of the switches of the one with fewer that two sets must share to be of one place."""


class Together(msgspec.Struct, kw_only=True):
    """Something of one place: names of what is there, and ids of the switches that it is on or below."""

    members: list[str]
    switches: set[str]


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes on the same leaves, in order, and the ids of these leaves: a rack or pod, as far as cables show it."""

    nodes: tuple[str, ...]
    leaves: tuple[str, ...]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes below one leaf, or the same leaves; `leaf` names it, `uplinks` are its links to other switches."""

    leaf: str
    nodes: tuple[str, ...]
    uplinks: tuple[str, ...]


def places(tiers: Tiers, rail: str = "") -> tuple[Place, ...]:
    """Return the places of nodes, in order.

    Args:
        tiers: the fabric.
        rail: only by the leaf of this adapter of each node; by all of them where empty.
    """
    on: dict[str, frozenset[str]] = {}
    for node, rails in tiers.nodes.items():
        found = frozenset(a.leaf.device for r, a in rails.items() if not rail or r == rail)
        if found:
            on[node] = found
    out = []
    for t in together(on):
        labels = sorted((plain_name(tiers.label(s)) for s in t.switches), key=natural_key)
        links = [(tiers.label(s), x) for s in sorted(t.switches) for x in tiers.between.get(s, ())]
        out.append(
            Place(
                leaf=labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more leaves",
                nodes=tuple(sorted(t.members, key=natural_key)),
                uplinks=tuple(
                    f"{tiers.label(x.a.device)} port {x.a.port} - {tiers.label(x.b.device)} port {x.b.port}"
                    for _, x in links
                ),
            )
        )
    return tuple(sorted(out, key=lambda p: natural_key(p.leaf)))


def node_groups(tiers: Tiers) -> tuple[NodeGroup, ...]:
    """Return the groups of nodes on the same leaves, in order of their first nodes; odd cables make none."""
    on = {node: frozenset(a.leaf.device for a in rails.values()) for node, rails in tiers.nodes.items()}
    groups = [
        NodeGroup(nodes=tuple(sorted(t.members, key=natural_key)), leaves=tuple(sorted(t.switches)))
        for t in together(on)
    ]
    return tuple(sorted(groups, key=lambda g: natural_key(g.nodes[0])))


def together(of: Mapping[str, frozenset[str]]) -> list[Together]:
    """Return what shares most of its switches, beginning with what most have: one odd cable joins no two places.

    Args:
        of: name -> ids of switches.
    """
    alike: dict[frozenset[str], list[str]] = defaultdict(list)
    for name, switches in of.items():
        alike[switches].append(name)
    out: list[Together] = []
    at: dict[str, list[Together]] = defaultdict(list)
    for switches in sorted(alike, key=lambda s: (-len(alike[s]), -len(s), sorted(s))):
        near = {id(s): s for x in switches for s in at[x]}.values()
        best = max(near, key=lambda s: len(s.switches & switches), default=None)
        if best is not None and len(best.switches & switches) > SHARED * min(len(best.switches), len(switches)):
            best.members += alike[switches]
            continue
        made = Together(members=list(alike[switches]), switches=set(switches))
        out.append(made)
        for x in switches:
            at[x].append(made)
    return out


def plain_name(label: str) -> str:
    """Return the name in a description as NVIDIA's managed switches announce it (`MF0;NAME:MODEL/U1`)."""
    _, found, rest = label.partition(";")
    return rest.rpartition(":")[0] or rest if found else label


def place_rates(tiers: Tiers, place: Place, rail: str = "") -> tuple[float | None, float | None]:
    """Return what a node of a place and its uplinks carry, Gb/s; None where a rate is not known.

    Args:
        tiers: the fabric.
        place: of it.
        rail: only this adapter; all of a node together where empty.
    """
    own = [[a for r, a in tiers.nodes[n].items() if not rail or r == rail] for n in place.nodes]
    rates = [[a.link.rate_gbit_s for a in found] for found in own]
    node = max((sum(r for r in found if r is not None) for found in rates if None not in found), default=None)
    switches = {a.leaf.device for found in own for a in found}
    up = [x.rate_gbit_s for s in switches for x in tiers.between.get(s, ()) if x.other(s).device not in switches]
    return node, (None if None in up or not up else sum(r for r in up if r is not None))
