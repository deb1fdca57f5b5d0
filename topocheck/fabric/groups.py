"""Links inside a tier: cables that should not be there, and what a dragonfly lacks inside and between its groups.

A dragonfly (J. Kim et al., "Technology-Driven, Highly-Scalable Dragonfly Topology", ISCA 2008) has groups of routers
that are fully joined, and links between every two groups; in a dragonfly+ (A. Shpiner et al., HiPINEB 2017) a group is
a tree of two tiers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import combinations

import msgspec

from topocheck.fabric.tiers import Tiers
from topocheck.fabric.uplinks import AGREE, MIN_ALIKE
from topocheck.model.fabric import FabricLink

MIN_SWITCHES = 8
"""Switches of a tier that it takes to say that a link is unusual there."""


class Unexpected(msgspec.Struct, frozen=True, kw_only=True):
    """A link such as few switches of its tier have: to `itself`, to the same tier (`levels` 0), or past a tier."""

    link: FabricLink
    levels: int
    itself: bool = False
    having: int = 0
    switches: int = 0


class MissingPeer(msgspec.Struct, frozen=True, kw_only=True):
    """Two switches of a group, or two groups, joined by fewer links than others: ids of one switch of each.

    Attributes:
        a, b: ids of the two switches; of two groups, of the first switch of each.
        groups: two groups are meant.
        found, usual, alike, pairs: links, usual links, and how many of the pairs compared have the usual number.
    """

    a: str
    b: str
    groups: bool
    found: int
    usual: int
    alike: int
    pairs: int


def unexpected_links(tiers: Tiers) -> tuple[Unexpected, ...]:
    """Return the links to the same switch, and those inside a tier or past one that at most a quarter of it has."""
    out = [Unexpected(link=x, levels=0, itself=True) for x in tiers.fabric.links if x.a.device == x.b.device]
    kinds: dict[tuple[int, int], list[FabricLink]] = defaultdict(list)
    for link in _unique(tiers):
        low, high = sorted((tiers.tier.get(link.a.device, -1), tiers.tier.get(link.b.device, -1)))
        if low >= 0 and high - low != 1:
            kinds[low, high].append(link)
    size = Counter(tiers.tier.values())
    for (low, high), links in kinds.items():
        having = {e.device for x in links for e in (x.a, x.b) if tiers.tier[e.device] == low}
        if size[low] >= MIN_SWITCHES and len(having) <= (1 - AGREE) * size[low] and len(size) > 1:
            out += [Unexpected(link=x, levels=high - low, having=len(having), switches=size[low]) for x in links]
    return tuple(out)


def missing_peers(tiers: Tiers) -> tuple[MissingPeer, ...]:
    """Return what the groups of a dragonfly lack; nothing where few switches of a tier are joined to each other."""
    number: Counter[tuple[str, str]] = Counter()
    near: dict[str, set[str]] = defaultdict(set)
    for link in _unique(tiers):
        a, b = sorted((link.a.device, link.b.device))
        if tiers.tier.get(a) is not None and tiers.tier.get(a) == tiers.tier.get(b):
            number[a, b] += 1
            near[a].add(b)
            near[b].add(a)
    level = {tiers.tier[s] for s in near}
    size = Counter(tiers.tier.values())
    if len(level) != 1 or len(near) <= (1 - AGREE) * size[min(level)]:
        return ()
    tree = _tree_groups(tiers)
    groups = tree if len(tree) > 1 else _cliques(near)
    out: list[MissingPeer] = []
    if groups is not tree:
        for group in groups:
            out += _missing(dict.fromkeys(combinations(group, 2), 0) | _inside(group, number), groups=False)
    of = {s: i for i, group in enumerate(groups) for s in group}
    if len(groups) >= MIN_ALIKE:
        between = dict.fromkeys(combinations(range(len(groups)), 2), 0)
        for (a, b), n in number.items():
            i, j = sorted((of[a], of[b])) if a in of and b in of else (0, 0)
            if i != j:
                between[i, j] += n
        named = {(groups[i][0], groups[j][0]): n for (i, j), n in between.items()}
        out += _missing(named, groups=True)
    return tuple(out)


def switch_groups(tiers: Tiers) -> list[tuple[str, ...]]:
    """Return the groups of switches of a dragonfly: those of one tier that are joined to each other."""
    near: dict[str, set[str]] = defaultdict(set)
    for link in _unique(tiers):
        if tiers.tier.get(link.a.device) == tiers.tier.get(link.b.device):
            near[link.a.device].add(link.b.device)
            near[link.b.device].add(link.a.device)
    return _cliques(near)


def _missing(counts: Mapping[tuple[str, str], int], *, groups: bool) -> list[MissingPeer]:
    if len(counts) < MIN_ALIKE:
        return []
    usual, alike = Counter(counts.values()).most_common(1)[0]
    if alike < AGREE * len(counts):
        return []
    return [
        MissingPeer(a=a, b=b, groups=groups, found=n, usual=usual, alike=alike, pairs=len(counts))
        for (a, b), n in counts.items()
        if n < usual
    ]


def _inside(group: tuple[str, ...], number: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    return {pair: n for pair in combinations(group, 2) if (n := number.get(pair, 0))}


def _unique(tiers: Tiers) -> Iterable[FabricLink]:
    return {id(x): x for links in tiers.between.values() for x in links}.values()


def _tree_groups(tiers: Tiers) -> list[tuple[str, ...]]:
    """Return the switches that links between tiers join."""
    near: dict[str, set[str]] = defaultdict(set)
    for link in _unique(tiers):
        if tiers.tier.get(link.a.device) != tiers.tier.get(link.b.device):
            near[link.a.device].add(link.b.device)
            near[link.b.device].add(link.a.device)
    return connected_parts({s: near[s] for s in sorted(near)})


def _cliques(near: Mapping[str, set[str]]) -> list[tuple[str, ...]]:
    """Return the groups whose switches are joined to each other: their links have neighbours in common."""
    common = {(a, b): len(near[a] & near[b]) for a in near for b in near[a]}
    most = {a: max((common[a, b] for b in near[a]), default=0) for a in near}
    local: dict[str, set[str]] = {a: set() for a in near}
    for (a, b), n in common.items():
        if 2 * n > min(most[a], most[b]):
            local[a].add(b)
    return connected_parts({s: local[s] for s in sorted(local)})


def connected_parts(near: Mapping[str, set[str]]) -> list[tuple[str, ...]]:
    """Return the connected parts of a graph, in the order of `near`, which has the neighbours of each node."""
    left, out = set(near), []
    for start in near:
        if start not in left:
            continue
        part, todo = [], [start]
        left.discard(start)
        while todo:
            here = todo.pop()
            part.append(here)
            new = near[here] & left
            left -= new
            todo += new
        out.append(tuple(sorted(part)))
    return out
