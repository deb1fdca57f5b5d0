"""What any algorithm needs for a collective on a given graph, as SCCL states it. Pure.

Z. Cai et al., "Synthesizing optimal collective algorithms" (PPoPP 2021): an algorithm of S steps and R rounds for C
chunks of each rank's L bytes takes S alpha + (R / C) L beta, where beta is the time of a byte over the narrowest link
and a round is the time in which it carries one chunk. S is at least the diameter of the graph. R / C is at
least what each cut asks: a set U of ranks must receive what the others have, through the links that lead into it; and
at least what all transfers together ask of all links together. An algorithm is not searched for.

What ranks relay counts as a step; switches, root ports and host bridges pass on at once and only share their links.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import combinations

import msgspec

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all")
ALL_CUTS_UP_TO = 10
"""Ranks up to which every set of ranks is tried; beyond, single ranks, all but one, and the groups that are named."""

Vertex = int | str
"""A rank (from 0), or an inner vertex by name."""


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks, and what joins them.

    Attributes:
        ranks: how many.
        links: (from, to) -> width in units of the narrowest link; both directions are listed.
        unit_gb_s: what the narrowest link carries in one direction.
        groups: sets of ranks that are worth a cut (those of one switch, of one socket).
    """

    ranks: int
    links: dict[tuple[Vertex, Vertex], Fraction]
    unit_gb_s: float = 0.0
    groups: tuple[frozenset[int], ...] = ()

    def width_out(self, rank: int) -> Fraction:
        """Return the summed width of the links that leave a rank."""
        return sum((w for (a, _), w in self.links.items() if a == rank), Fraction(0))


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What a collective needs at least.

    Attributes:
        steps: S.
        rounds_per_chunk: R / C.
        limited_by: the cut or the volume that asks for it, in words.
    """

    collective: str
    steps: int
    rounds_per_chunk: Fraction
    limited_by: str


def joined(pairs: dict[tuple[Vertex, Vertex], float], ranks: int, groups: Iterable[frozenset[int]] = ()) -> Network:
    """Return the network of links given once, with their GB/s in each direction; the narrowest is the unit."""
    unit = min(pairs.values())
    links: dict[tuple[Vertex, Vertex], Fraction] = {}
    for (a, b), gb_s in pairs.items():
        width = Fraction(gb_s / unit).limit_denominator(64)
        for ends in ((a, b), (b, a)):
            links[ends] = links.get(ends, Fraction(0)) + width
    return Network(ranks=ranks, links=links, unit_gb_s=unit, groups=tuple(groups))


def bounds(network: Network) -> tuple[Bound, ...]:
    """Return the bounds of all collectives; none where a rank cannot be reached."""
    distance = diameter(network)
    if distance is None or network.ranks < 2:
        return ()
    n = network.ranks
    cuts = [(u, _cut(network, u)) for u in _sets(network)]
    volume = sum((network.width_out(r) for r in range(n)), Fraction(0))
    out = []
    for name in COLLECTIVES:
        needs = [(Fraction(_through(name, len(u), n)) / width, _words(u, n, width)) for u, width in cuts]
        # Each chunk is carried so many times in all, whatever the way; no switch adds or copies on the way.
        needs.append((Fraction(_transfers(name, n)) / volume, f"all links together, {_number(volume)} wide"))
        rounds, words = max(needs, key=lambda x: x[0])
        out.append(Bound(collective=name, steps=distance, rounds_per_chunk=rounds, limited_by=words))
    return tuple(out)


def _through(collective: str, inside: int, n: int) -> Fraction:
    """Return how many times C chunks must enter a set of `inside` of n ranks, at least."""
    outside = n - inside
    if collective == "all_gather":
        return Fraction(outside)
    if collective == "reduce_scatter":
        return Fraction(inside, n)
    if collective == "all_to_all":
        return Fraction(inside * outside, n)
    # broadcast: the root is outside; all_reduce: the others' sum must come in.
    return Fraction(1)


def _transfers(collective: str, n: int) -> Fraction:
    """Return how many times C chunks are carried from rank to rank, at least."""
    if collective == "all_gather":
        return Fraction(n * (n - 1))
    if collective == "all_reduce":
        return Fraction(2 * (n - 1))
    # reduce_scatter: n - 1 sums of each of the C chunks; broadcast: to n - 1 ranks; all_to_all: n ranks, (n - 1) / n.
    return Fraction(n - 1)


def _sets(network: Network) -> list[frozenset[int]]:
    n = network.ranks
    if n <= ALL_CUTS_UP_TO:
        return [frozenset(u) for size in range(1, n) for u in combinations(range(n), size)]
    everybody = frozenset(range(n))
    some = [frozenset((r,)) for r in range(n)] + [g for g in network.groups if 0 < len(g) < n]
    return list(dict.fromkeys([*some, *(everybody - u for u in some)]))


def _cut(network: Network, into: frozenset[int]) -> Fraction:
    """Return the width of the narrowest cut from the other ranks into a set (Edmonds and Karp, 1972)."""
    inner = [v for v in {x for ends in network.links for x in ends} if isinstance(v, str)]
    if not inner:
        return sum((w for (a, b), w in network.links.items() if a not in into and b in into), Fraction(0))
    left: dict[Vertex, dict[Vertex, Fraction]] = {}
    for (a, b), width in network.links.items():
        # All ranks of one side are one vertex.
        ends = tuple(v if isinstance(v, str) else ("in" if v in into else "out") for v in (a, b))
        if ends[0] == ends[1]:
            continue
        left.setdefault(ends[0], {}).setdefault(ends[1], Fraction(0))
        left.setdefault(ends[1], {}).setdefault(ends[0], Fraction(0))
        left[ends[0]][ends[1]] += width
    total = Fraction(0)
    while path := _path(left):
        rate = min(left[a][b] for a, b in path)
        for a, b in path:
            left[a][b] -= rate
            left[b][a] += rate
        total += rate
    return total


def _path(left: dict[Vertex, dict[Vertex, Fraction]]) -> list[tuple[Vertex, Vertex]]:
    before: dict[Vertex, Vertex] = {"out": "out"}
    queue: deque[Vertex] = deque(["out"])
    while queue:
        at = queue.popleft()
        for other, width in left.get(at, {}).items():
            if width > 0 and other not in before:
                before[other] = at
                queue.append(other)
    if "in" not in before:
        return []
    hops: list[tuple[Vertex, Vertex]] = []
    end: Vertex = "in"
    while end != "out":
        hops.append((before[end], end))
        end = before[end]
    return hops


def diameter(network: Network) -> int | None:
    """Return the most steps between two ranks, relays by ranks counted; None where some cannot be reached."""
    beside: dict[Vertex, list[Vertex]] = {}
    for a, b in network.links:
        beside.setdefault(a, []).append(b)
    most = 0
    for start in range(network.ranks):
        steps: dict[Vertex, int] = {start: 0}
        queue: deque[Vertex] = deque([start])
        while queue:
            at = queue.popleft()
            for other in beside.get(at, []):
                # A hop that begins at a rank is a step; those that begin at a switch belong to it.
                cost = steps[at] + (0 if isinstance(at, str) else 1)
                if cost < steps.get(other, network.ranks + 1):
                    steps[other] = cost
                    queue.append(other)
        reached = [steps[r] for r in range(network.ranks) if r in steps]
        if len(reached) < network.ranks:
            return None
        most = max(most, *reached)
    return most


def _words(u: frozenset[int], n: int, width: Fraction) -> str:
    shown = sorted(u) if len(u) <= n // 2 else sorted(frozenset(range(n)) - u)
    names = ", ".join(map(str, shown))
    what = f"rank {names}" if len(shown) == 1 else f"ranks {names}"
    way = "into" if len(u) <= n // 2 else "out of"
    return f"the links {way} {what}, {_number(width)} wide"


def _number(width: Fraction) -> str:
    return f"{float(width):g}"


def seconds(bound: Bound, size_bytes: float, alpha_s: float, unit_gb_s: float) -> float:
    """Return S alpha + (R / C) L beta for L bytes of each rank."""
    return bound.steps * alpha_s + float(bound.rounds_per_chunk) * size_bytes / (unit_gb_s * 1e9)


def ring(collective: str, n: int, width: Fraction) -> tuple[int, Fraction]:
    """Return (S, R / C) of rings that together use `width` at every rank.

    all_gather passes each of n parts on n - 1 times; all_reduce is a reduce_scatter and an all_gather; a pipelined
    broadcast tends to one chunk a round; all_to_all by a ring carries a part n / 2 hops on average.
    """
    steps = {"all_reduce": 2 * (n - 1)}.get(collective, n - 1)
    carried = {
        "all_gather": Fraction(n - 1),
        "reduce_scatter": Fraction(n - 1, n),
        "all_reduce": Fraction(2 * (n - 1), n),
        "broadcast": Fraction(1),
        "all_to_all": Fraction(n - 1, 2),
    }[collective]
    return steps, carried / width


def tree(collective: str, n: int, width: Fraction) -> tuple[int, Fraction] | None:
    """Return (S, R / C) of two binary trees that share `width`, pipelined; None where trees do not serve.

    P. Sanders, J. Speck and J. Larsson Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"
    (2009): every rank is an inner one of one tree and a leaf of the other.
    """
    depth = (n - 1).bit_length()
    if collective == "broadcast":
        return depth, Fraction(1) / width
    if collective == "all_reduce":
        return 2 * depth, Fraction(2) / width
    return None


def dense(rows: Sequence[Sequence[int]], unit_gb_s: float = 1.0) -> Network:
    """Return the network of a matrix of link counts."""
    links: dict[tuple[Vertex, Vertex], Fraction] = {}
    for a, row in enumerate(rows):
        links |= {(a, b): Fraction(n) for b, n in enumerate(row) if n}
    return Network(ranks=len(rows), links=links, unit_gb_s=unit_gb_s)
