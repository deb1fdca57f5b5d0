"""Slurm's topology next to the cables: nodes that it has below another leaf, or in another block, than they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from topocheck.fabric.merge import short
from topocheck.fabric.places import places
from topocheck.fabric.rails import stem
from topocheck.fabric.tiers import Tiers, majority
from topocheck.fabric.uplinks import AGREE
from topocheck.model.fabric import PlannedGroup


class Misplaced(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that a switch or block of Slurm's file has, and that are elsewhere than most of its nodes.

    Attributes:
        group: the switch or block.
        nodes: those elsewhere; all of it where its nodes agree on no place.
        where: the places (leaf, or NVLink domain) of these nodes.
        usual: the place of most of its nodes; empty where they agree on none.
        alike, known: how many of its nodes are there, and of how many the place is known.
    """

    group: PlannedGroup
    nodes: tuple[str, ...]
    where: tuple[str, ...]
    usual: str
    alike: int
    known: int


def misplaced(tiers: Tiers, domains: Mapping[str, str]) -> tuple[Misplaced, ...]:
    """Return what differs between Slurm's topology and the cables, or (blocks) the nodes' NVLink domains."""
    leaf = {short(n): p.leaf for p in places(tiers) for n in p.nodes}
    domain = {short(n): d for n, d in domains.items()}
    out = []
    for group in tiers.fabric.planned:
        known = {n: at for n in group.nodes if (at := (domain if group.block else leaf).get(short(n)))}
        if len(known) < 2:
            continue
        usual, alike = majority(list(known.values()))
        if alike == len(known):
            continue
        agree = alike >= AGREE * len(known)
        nodes = tuple(n for n, at in known.items() if not agree or at != usual)
        counted = Counter(known[n] for n in nodes)
        out.append(
            Misplaced(group=group, nodes=nodes, where=tuple(w for w, _ in counted.most_common()),
                      usual=usual if agree else "", alike=alike, known=len(known))
        )  # fmt: skip
    return tuple(out)


def unplanned(tiers: Tiers) -> tuple[str, ...]:
    """Return the nodes of the dump that are in no switch of Slurm's file, and have names like those that are."""
    planned = {short(n) for g in tiers.fabric.planned if not g.block for n in g.nodes}
    stems = {stem(n) for n in planned}
    return tuple(sorted(n for n in tiers.nodes if short(n) not in planned and stem(short(n)) in stems))
