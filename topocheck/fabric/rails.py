"""Which leaf each adapter of a node belongs on, by the nodes that are cabled like it; adapters that are missing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

import msgspec

from topocheck.fabric.tiers import Attachment, Tiers, majority

MIN_PEERS = 3
"""Nodes cabled alike that it takes to say where a cable belongs."""
AGREE = 0.75
"""Part of them that must have it on one leaf."""
MIN_RAILS = 3
"""Adapters of a node from which on a whole group of nodes with one less is taken for a leaf that is off."""


class OddCable(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter on another leaf than the same adapter of the nodes that are cabled alike otherwise.

    Attributes:
        found: where it is.
        leaf: id of the leaf where it belongs.
        agree, peers: how many of those nodes have it there.
        peer: one of them.
    """

    found: Attachment
    leaf: str
    agree: int
    peers: int
    peer: Attachment


class NotJoined(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that have fewer adapters on the fabric than nodes of their kind.

    Attributes:
        nodes: in order; several where the whole group of nodes on the same leaves is without it.
        lost: the adapters.
        alike, peers: how many of the nodes (or groups of nodes) compared have them.
        groups: groups of nodes were compared, not nodes.
    """

    nodes: tuple[str, ...]
    lost: tuple[str, ...]
    alike: int
    peers: int
    groups: bool = False


def stem(node: str) -> str:
    """Return a host name without its numbers: nodes of one kind mostly differ in these alone."""
    return re.sub(r"[0-9]+", "#", node)


def odd_cables(tiers: Tiers) -> tuple[OddCable, ...]:
    """Return the adapters that are plugged into another leaf than those of their peers.

    Peers of a node share with it the leaf of more than half of the rails it has. So neither the layout (all rails of
    a node on one leaf, each on its own, pods) nor the names of leaves matter, and two swapped cables are both named.
    """
    nodes = tiers.nodes
    # Nodes that are cabled alike have the same neighbours, so what is counted for one is counted for all of them.
    on: dict[tuple[str, str], list[str]] = defaultdict(list)
    cabling: dict[str, frozenset[tuple[str, str]]] = {}
    for node, rails in nodes.items():
        cabling[node] = frozenset((rail, a.leaf.device) for rail, a in rails.items())
        for place in cabling[node]:
            on[place].append(node)
    alike: dict[frozenset[tuple[str, str]], Counter[str]] = {}
    fine: dict[frozenset[tuple[str, str]], bool] = {}
    out = []
    for node, rails in nodes.items():
        places = cabling[node]
        if fine.get(places):
            continue
        if places not in alike:
            alike[places] = Counter(other for place in places for other in on[place])
        found = [
            odd
            for rail, a in rails.items()
            if tiers.tier.get(a.leaf.device) == 0 and (odd := _odd(node, a, rails, nodes, alike[places])) is not None
        ]
        out += found
        fine[places] = not found
    return tuple(out)


def _odd(
    node: str,
    a: Attachment,
    rails: Mapping[str, Attachment],
    nodes: Mapping[str, Mapping[str, Attachment]],
    shared: Mapping[str, int],
) -> OddCable | None:
    peers, leaves = [], []
    for other, n in shared.items():
        own = nodes[other].get(a.rail)
        # The rail itself does not count: where it is, is the question.
        if own is not None and other != node and 2 * (n - (own.leaf.device == a.leaf.device)) > len(rails) - 1:
            peers.append(other)
            leaves.append(own.leaf.device)
    if len(peers) < MIN_PEERS:
        return None
    leaf, agree = majority(leaves)
    if leaf == a.leaf.device or agree < AGREE * len(peers):
        return None
    peer = min(o for o, own in zip(peers, leaves, strict=True) if own == leaf)
    return OddCable(found=a, leaf=leaf, agree=agree, peers=len(peers), peer=nodes[peer][a.rail])


def above_the_leaves(tiers: Tiers) -> tuple[tuple[Attachment, int, int], ...]:
    """Return the adapters on a switch above the leaves, whose nodes' kind is on leaves: (adapter, alike, peers).

    Hosts of the subnet manager are plugged into spines on purpose, and are of a kind of their own.
    """
    kinds: dict[tuple[str, str], list[Attachment]] = defaultdict(list)
    for a in tiers.attachments:
        if a.node:
            kinds[stem(a.node), a.rail].append(a)
    out = []
    for found in kinds.values():
        on_leaf = sum(tiers.tier.get(a.leaf.device) == 0 for a in found)
        if len(found) > MIN_PEERS and on_leaf >= AGREE * len(found):
            out += [(a, on_leaf, len(found)) for a in found if tiers.tier.get(a.leaf.device) != 0]
    return tuple(out)


def not_joined(tiers: Tiers) -> tuple[NotJoined, ...]:
    """Return the nodes that lack adapters which nodes of their kind have: a port, or a leaf, that is down."""
    nodes = tiers.nodes
    on: dict[str, set[str]] = defaultdict(set)
    for node, rails in nodes.items():
        for a in rails.values():
            on[a.leaf.device].add(node)
    names = {node: tuple(sorted(rails)) for node, rails in nodes.items()}
    near: dict[frozenset[str], set[str]] = {}
    out = []
    for node in sorted(nodes):
        leaves = frozenset(a.leaf.device for a in nodes[node].values())
        if leaves not in near:
            near[leaves] = {n for leaf in leaves for n in on[leaf]}
        counted = Counter(names[n] for n in near[leaves])
        usual = min(counted, key=lambda s: (-counted[s], s))
        peers = len(near[leaves])
        if peers > MIN_PEERS and counted[usual] >= AGREE * peers and set(names[node]) < set(usual):
            lost = tuple(r for r in usual if r not in names[node])
            out.append(NotJoined(nodes=(node,), lost=lost, alike=counted[usual], peers=peers))
    return tuple(out) + _groups_not_joined(names, on)


def _groups_not_joined(names: Mapping[str, tuple[str, ...]], on: Mapping[str, set[str]]) -> tuple[NotJoined, ...]:
    """Return the groups of nodes on the same leaves that lack one adapter which groups of the same kind have.

    One, of three or more: nodes of another kind, with a name alike, have fewer.
    """
    kinds: dict[str, list[tuple[tuple[str, ...], list[str]]]] = defaultdict(list)
    for group in _groups(on):
        counted = Counter(names[n] for n in group)
        usual = min(counted, key=lambda s: (-counted[s], s))
        kinds[stem(group[0])].append((usual, group))
    out = []
    for groups in kinds.values():
        counted = Counter(usual for usual, _ in groups)
        usual = min(counted, key=lambda s: (-counted[s], s))
        if len(groups) <= MIN_PEERS or counted[usual] < AGREE * len(groups) or len(usual) < MIN_RAILS:
            continue
        for own, group in groups:
            lost = tuple(r for r in usual if r not in own)
            if len(lost) == 1 and set(own) < set(usual):
                bare = tuple(n for n in group if lost[0] not in names[n])
                out.append(
                    NotJoined(nodes=bare, lost=lost, alike=counted[usual], peers=len(groups), groups=True),
                )
    return tuple(out)


def _groups(on: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the nodes that share leaves, directly or through others, in order."""
    leaves_of: dict[str, list[str]] = defaultdict(list)
    for leaf, nodes in on.items():
        for n in nodes:
            leaves_of[n].append(leaf)
    left, out = set(leaves_of), []
    for node in sorted(leaves_of):
        if node not in left:
            continue
        group, todo, seen = [], [node], set()
        left.discard(node)
        while todo:
            here = todo.pop()
            group.append(here)
            for leaf in leaves_of[here]:
                if leaf not in seen:
                    seen.add(leaf)
                    new = on[leaf] & left
                    left -= new
                    todo += new
        out.append(sorted(group))
    return out
