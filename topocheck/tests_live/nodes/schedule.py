"""Who meets whom: a round-robin tournament of nodes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

FULL_UP_TO = 32
"""Nodes up to which every pair is measured when all run at once; beyond it, the neighbours at powers of two."""


def rounds(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return rounds of pairs that share no node, so that each pair meets once.

    The circle method: one node stays, the others turn by one place a round (E. Lucas, Recreations mathematiques,
    1883); with an odd number one node rests in each round.
    """
    circle: list[str | None] = list(nodes)
    if len(circle) % 2:
        circle.append(None)
    n, out = len(circle), []
    for _ in range(n - 1):
        pairs = []
        for i in range(n // 2):
            a, b = circle[i], circle[n - 1 - i]
            if a is not None and b is not None:
                pairs.append((a, b))
        out.append(pairs)
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return [r for r in out if r]


def together(nodes: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs that run all at once: every pair, or with many nodes those 1, 2, 4, 8... places apart."""
    n = len(nodes)
    if n <= FULL_UP_TO:
        return [(nodes[i], nodes[j]) for i in range(n) for j in range(i + 1, n)]
    seen: dict[tuple[int, int], None] = {}
    step = 1
    while step <= n // 2:
        for i in range(n):
            j = (i + step) % n
            seen[min(i, j), max(i, j)] = None
        step *= 2
    return [(nodes[i], nodes[j]) for i, j in seen]


def disjoint(pairs: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Return some pairs in rounds that share no node, first come first placed."""
    out: list[list[tuple[str, str]]] = []
    for a, b in pairs:
        for r in out:
            if not any({a, b} & set(p) for p in r):
                r.append((a, b))
                break
        else:
            out.append([(a, b)])
    return out


def by_leaf(
    pairs: Sequence[tuple[str, str]], leaf_of: Mapping[str, str], width: int = 1
) -> list[list[tuple[str, str]]]:
    """Return the pairs of a round in rounds in which no leaf has more than `width` pairs with other leaves.

    Pairs that run together then do not share an uplink. Pairs below one leaf, and of nodes whose leaf is not known,
    run in the first of them.
    """
    out: list[list[tuple[str, str]]] = [[]]
    load: list[Counter[str]] = [Counter()]
    for a, b in pairs:
        x, y = leaf_of.get(a), leaf_of.get(b)
        if x is None or y is None or x == y:
            out[0].append((a, b))
            continue
        for now, taken in zip(out, load, strict=True):
            if taken[x] < width and taken[y] < width:
                now.append((a, b))
                taken.update((x, y))
                break
        else:
            out.append([(a, b)])
            load.append(Counter((x, y)))
    return [r for r in out if r]
