"""Which leaf, or what lies between leaves, is slow, from the rates of all pairs of nodes. Pure.

Pairs below one leaf cross that leaf alone; pairs of different leaves also cross the uplinks of both. So an uplink that
is slow slows all pairs of its leaf with others, and none below it. Such pairs are named as what they show, and count
for the nodes as if they had the usual rate: no node is accused of what its leaf does.

Of the rates of several pairs the upper quartile counts: chance, and a slow node among them, make pairs only slower.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import stdev

import msgspec

from topocheck.bandwidth.scatter import LEAST, Pair, PairMeasured
from topocheck.bandwidth.stats import quantile
from topocheck.bandwidth.student import t_critical

LEAST_CUT = 0.10
"""Part of the usual rate that may be missing; as for nodes (slow_links)."""
ALPHA = 0.01
"""How often pairs that are no slower than others may look so, at most; as for nodes (slow_links)."""
MIN_NODES = 2
"""Nodes of a leaf, and outside it, that it takes: the pairs of a single node are its own."""


class SlowLeaf(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs of different leaves that are slow together.

    Attributes:
        leaf: whose pairs; empty where all pairs of different leaves are meant.
        other: the other leaf, where there are only two of them: from `leaf` to `other`.
        direction: `up` (its nodes send to other leaves) or `down`, with three leaves or more.
        share: their rate over the usual one.
        rates: (sender, receiver, GB/s) of the pairs that show it.
        reference_gb_s: the usual rate; of pairs below one leaf, or of the pairs of the other leaves.
    """

    leaf: str = ""
    other: str = ""
    direction: str = ""
    share: float
    rates: tuple[tuple[str, str, float], ...]
    reference_gb_s: float


def slow_leaves(
    measured: Mapping[Pair, PairMeasured], leaf_of: Mapping[str, str]
) -> tuple[tuple[SlowLeaf, ...], dict[Pair, PairMeasured]]:
    """Return what is slow between leaves, and the rates as they would be without it.

    Args:
        measured: of all directed pairs.
        leaf_of: node -> its leaf; pairs of a node without one count for no leaf.
    """
    rates = {p: m.gb_s for p, m in measured.items()}
    known = {p for p in rates if p[0] in leaf_of and p[1] in leaf_of}
    across = {p for p in known if leaf_of[p[0]] != leaf_of[p[1]]}
    below = known - across
    nodes: dict[str, set[str]] = {}
    for n in {n for p in known for n in p}:
        nodes.setdefault(leaf_of[n], set()).add(n)
    large = sorted(leaf for leaf, members in nodes.items() if len(members) >= MIN_NODES)
    if not large or len(nodes) < 2 or not across:
        return (), dict(measured)
    found: list[SlowLeaf] = []
    left = dict(rates)
    if len(nodes) == 2:
        a, b = sorted(nodes)
        groups = [((a, b, ""), _pairs(across, leaf_of, a, 0)), ((b, a, ""), _pairs(across, leaf_of, b, 0))]
        if len(large) == 2:
            for (leaf, other, _), pairs in groups:
                found += _slow(left, pairs, below, leaf=leaf, other=other)
    else:
        found += _one_of_many(left, across, leaf_of, large)
        if not found:
            found += _slow(left, across, below)
    for s in found:
        for a, b, rate in s.rates:
            left[a, b] = rate / s.share if s.share > 0 else s.reference_gb_s
    return tuple(found), {
        p: m if left[p] == rates[p] else _scaled(m, left[p] / rates[p] if rates[p] else 0.0, left[p])
        for p, m in measured.items()
    }


def _one_of_many(
    rates: Mapping[Pair, float], across: set[Pair], leaf_of: Mapping[str, str], large: Iterable[str]
) -> list[SlowLeaf]:
    """Return the slow directions of leaves among three or more, each beside the pairs that none of them explains."""
    found: list[SlowLeaf] = []
    taken: set[Pair] = set()
    ports = [(leaf, side) for leaf in large for side in (0, 1)]
    while ports:
        best: tuple[float, SlowLeaf, set[Pair], tuple[str, int]] | None = None
        for leaf, side in ports:
            pairs = _pairs(across, leaf_of, leaf, side) - taken
            others = across - taken - pairs
            said = _slow(rates, pairs, others, leaf=leaf, direction="up" if side == 0 else "down")
            if said and (best is None or said[0].share < best[0]):
                best = (said[0].share, said[0], pairs, (leaf, side))
        if best is None or len(found) >= len(ports):
            break
        found.append(best[1])
        taken |= best[2]
        ports.remove(best[3])
    return found


def _pairs(across: set[Pair], leaf_of: Mapping[str, str], leaf: str, side: int) -> set[Pair]:
    return {p for p in across if leaf_of[p[side]] == leaf}


def _slow(rates: Mapping[Pair, float], pairs: set[Pair], others: set[Pair], **names: str) -> list[SlowLeaf]:
    """Return that some pairs are slower than others by more than their scatter; nothing where they are not."""
    mine = [rates[p] for p in pairs]
    theirs = [rates[p] for p in others]
    if len(mine) < MIN_NODES or len(theirs) < MIN_NODES:
        return []
    usual = quantile(theirs, 0.75)
    level = quantile(mine, 0.75)
    if usual <= 0 or level >= (1 - LEAST_CUT) * usual:
        return []
    # What slows single pairs of the others makes the usual rate too low, if anything; what counts is whether these
    # pairs are low by chance, which their own scatter shows. A slow node may be among them: not the lowest quarter.
    kept = [math.log(r) for r in sorted(mine)[len(mine) // 4 :] if r > 0]
    sigma = max(LEAST, stdev(kept)) if len(kept) > 1 else LEAST
    if len(kept) > 1 and math.log(usual / level) < t_critical(ALPHA / 2, len(kept) - 1) * sigma:
        return []
    # Fast pairs among them show a slow node or link, not the leaf.
    fast = sum(r >= (level + usual) / 2 for r in mine)
    if fast > len(mine) // 4:
        return []
    shown = tuple((a, b, rates[a, b]) for a, b in sorted(pairs))
    return [SlowLeaf(share=level / usual, rates=shown, reference_gb_s=usual, **names)]


def _scaled(m: PairMeasured, factor: float, rate: float) -> PairMeasured:
    """Return what was measured as it would be at another rate."""
    return msgspec.structs.replace(
        m, gb_s=rate, repeats=tuple(r * factor for r in m.repeats), again=tuple(r * factor for r in m.again)
    )
