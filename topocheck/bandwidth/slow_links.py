"""Which node, direction or link is slow, from the rates of all pairs. Pure.

A rate between two nodes is as good as the worst of three things: what the first can send, what the second can
receive, and what lies between. Each node has two ports, one that sends and one that receives. A port whose pairs are
slow is itself slow, and its pairs blame nobody else; a slow pair that no port explains is a slow link.

Rates are compared by their logarithms, so that a part of the usual rate is a distance. What is below half is slow
however far the rates scatter. What is above is searched as B. Rosner does for outliers (Percentage points for a
generalized ESD many-outlier procedure, Technometrics 25 (1983) 165-172; NIST/SEMATECH e-Handbook 1.3.5.17.3), with
nodes, ports and links in place of single values: the one that explains most is taken out, again and again, and the
last one that is significant decides how many there are, so that two faults cannot hide each other. Each step is a
t-test of its pairs against the rest, at the level ALPHA over all that could have been named (Bonferroni). The
scatter is that of the pairs, with that of their samples and repetitions (`scatter.py`). docs/slow_nodes.md shows how
often this is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from topocheck.bandwidth.fault_search import LEAST_PAIRS, Fault, Port, Search, tests
from topocheck.bandwidth.scatter import Pair, PairMeasured, Scatter, combine, within
from topocheck.bandwidth.slow_leaves import SlowLeaf, slow_leaves
from topocheck.bandwidth.stats import median
from topocheck.bandwidth.student import normal_quantile, normal_share_below, t_critical

ALPHA = 0.01
"""How often a run of healthy nodes may name a node, and how often a link, each at most."""
LEAST_CUT = 0.10
"""Part of the usual rate that may be missing however sure that is (design of the bandwidth checks: warn at 10 %)."""
FAIL_BELOW = 0.75
"""Share of the usual rate below which it is a failure (the same: fail at 25 %)."""
HALF = 0.5
"""Share of the usual rate below which a pair is slow however far the rates scatter."""
POWER = 0.9
"""How often a fault as large as the limit that is stated would be named."""
AGAIN_PAIRS = 8
"""Pairs of one port that are measured again: they were measured at different times, which is repetition enough."""
TIMES_AGAIN = (3, 5, 7, 9)
PROMISED = 0.85
"""Share of the usual rate at which a node is to be named, as far as three measurements of all pairs can do it."""
TOURNAMENTS, MOST_NODES = 3, 32
"""How often all pairs are measured at most, and up to how many nodes; above, each node has pairs enough."""
_FLOOR = 0.01
"""Shares below it count as this one: a pair without a connection has no logarithm."""


class Slow(msgspec.Struct, frozen=True, kw_only=True):
    """Something slow: a port (`node` with `direction` sends or receives) or a link (`node` to `other`).

    Attributes:
        share: its rate over the usual one.
        rates: (sender, receiver, GB/s) of the pairs that show it.
        reference_gb_s: the usual rate.
    """

    node: str
    other: str = ""
    direction: str = ""
    share: float
    rates: tuple[tuple[str, str, float], ...]
    reference_gb_s: float


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What the rates of all pairs say.

    Attributes:
        usual_gb_s: median of the pairs that nothing slows; 0 where there is none.
        scatter: standard deviation of their rates as a part of it.
        node_limit, link_limit: share of the usual rate below which one slow direction of a node, or one link, is named
            in at least 9 of 10 runs; 0 where that cannot be said.
        no_majority: so much is slow that what is usual is not known.
        leaves: pairs of different leaves that are slow together; they count for no node and no link.
    """

    slow: tuple[Slow, ...] = ()
    usual_gb_s: float = 0.0
    scatter: float = 0.0
    node_limit: float = 0.0
    link_limit: float = 0.0
    no_majority: bool = False
    leaves: tuple[SlowLeaf, ...] = ()

    @property
    def clear(self) -> bool:
        """Whether a node at FAIL_BELOW of the usual rate, and a link at half of it, would have been named."""
        return not self.no_majority and self.node_limit >= FAIL_BELOW and self.link_limit >= HALF


def judge(measured: Mapping[Pair, PairMeasured], leaf_of: Mapping[str, str] | None = None) -> Judged:
    """Return what is slow among the pairs of three nodes or more: ports first, then links that no port explains.

    Args:
        measured: of all directed pairs.
        leaf_of: node -> its leaf, where the fabric is known: what lies between leaves is judged before nodes.
    """
    if leaf_of:
        leaves, measured = slow_leaves(measured, leaf_of)
        return msgspec.structs.replace(judge(measured), leaves=leaves)
    nodes = sorted({n for pair in measured for n in pair})
    if len(nodes) < 3 or not any(m.gb_s > 0 for m in measured.values()):
        return Judged()
    rates = {p: m.gb_s for p, m in measured.items()}
    usual, half = _below_half(rates)
    faults = _ports_of(half, rates)
    taken = {p for f in faults for p in f.pairs}
    own = within(m for p, m in measured.items() if p not in taken)
    search = Search(
        {p: math.log(max(r / usual, _FLOOR)) for p, r in rates.items() if p not in taken},
        len(nodes),
        own,
        {p: m.variance for p, m in measured.items()},
        cut=math.log(1 - LEAST_CUT),
        alpha=ALPHA,
    )
    found, left = search.run()
    usual = median([rates[p] for p in left])
    found += [Fault(pairs=(p,)) for p in sorted(left) if rates[p] < HALF * usual]
    left = {p: x for p, x in left.items() if rates[p] >= HALF * usual}
    mean = sum(left.values()) / len(left)
    noise = combine(sum((x - mean) ** 2 for x in left.values()), len(left) - 1, own)
    ports, links = tests(len(nodes))
    bar = max(HALF, min(1 - LEAST_CUT, math.exp(-t_critical(ALPHA / links, noise.degrees) * noise.sigma)))
    slow = [
        s
        for f in (*faults, *found)
        for s in _slow(f, rates, usual)
        if s.share < 1 - LEAST_CUT and (s.direction or measured[s.node, s.other].at_best < bar * usual)
    ]
    return Judged(
        slow=tuple(sorted(slow, key=lambda s: bool(s.other))),
        usual_gb_s=usual,
        scatter=noise.sigma,
        node_limit=_limit(noise, len(nodes) - 1, len(left), ALPHA / ports),
        link_limit=_limit(noise, 1, len(left), ALPHA / links),
        no_majority=2 * len({s.node for s in slow if s.direction}) >= len(nodes),
    )


def _slow(fault: Fault, rates: Mapping[Pair, float], usual: float) -> list[Slow]:
    """Return each port of a fault, or each direction of a link."""
    out = []
    for port in fault.ports:
        at = 0 if port[1] == "sends" else 1
        mine = {p: rates[p] for p in fault.pairs if p[at] == port[0]}
        share = median(list(mine.values())) / usual
        shown = tuple((a, b, r) for (a, b), r in sorted(mine.items()))
        out.append(Slow(node=port[0], direction=port[1], share=share, rates=shown, reference_gb_s=usual))
    for a, b in () if fault.ports else fault.pairs:
        r = rates[a, b]
        out.append(Slow(node=a, other=b, share=r / usual, rates=((a, b, r),), reference_gb_s=usual))
    return out


def _limit(noise: Scatter, pairs: int, rest: int, level: float) -> float:
    """Return the share of the usual rate at which the mean of so many pairs is named with the probability POWER."""
    error = noise.sigma * math.sqrt(1 / pairs + 1 / rest)
    drop = (t_critical(level, noise.degrees) + normal_quantile(POWER)) * error
    below_half = HALF * math.exp(-normal_quantile(POWER) * noise.sigma / math.sqrt(pairs))
    return min(1 - LEAST_CUT, max(below_half, math.exp(-drop)))


def more_tournaments(
    measured: Mapping[Pair, PairMeasured], done: int, leaf_of: Mapping[str, str] | None = None
) -> bool:
    """Tell whether all pairs are to be measured once more, since a node slower than PROMISED might go unnoticed."""
    nodes = len({n for pair in measured for n in pair})
    return 3 <= nodes <= MOST_NODES and done < TOURNAMENTS and judge(measured, leaf_of).node_limit < PROMISED


def suspects(measured: Mapping[Pair, PairMeasured], leaf_of: Mapping[str, str] | None = None) -> tuple[Pair, ...]:
    """Return the unordered pairs to be measured anew before anyone is accused: those that were not yet.

    Of a port those are at most eight: the pairs of a port were measured at different times. Of two nodes it is their
    pair where one direction is slower.
    """
    if len({n for pair in measured for n in pair}) < 3:
        rates = {p: m.gb_s for p, m in measured.items()}
        return tuple((min(p), max(p)) for p, r in rates.items() if r < FAIL_BELOW * rates.get((p[1], p[0]), 0.0))
    out: dict[Pair, None] = {}
    said = judge(measured, leaf_of)
    for slow in (*(x.rates for x in said.leaves), *(x.rates for x in said.slow)):
        for a, b, _ in sorted(slow, key=lambda r: r[2])[:AGAIN_PAIRS]:
            if not measured[a, b].again:
                out[min(a, b), max(a, b)] = None
    return tuple(out)


def times_again(measured: Mapping[Pair, PairMeasured], leaf_of: Mapping[str, str] | None = None) -> int:
    """Return how often a suspected pair is to be measured anew.

    As often as it takes that in one run of healthy nodes in a hundred, at most, a pair is low by chance both in the
    tournament and in `at_best`, given how many pairs are low in the tournament.
    """
    now = judge(measured, leaf_of)
    links = sum(1 for s in now.slow if s.other)
    tail = normal_share_below(math.log(HALF) / now.scatter) if now.scatter > 0 else 0.0
    low = max(tail, min(0.5, links / len(measured)), 1 / len(measured))
    for times in TIMES_AGAIN:
        least = 3 * times // 4 + 1
        again = sum(math.comb(times, k) * low**k * (1 - low) ** (times - k) for k in range(least, times + 1))
        if len(measured) * low * again <= ALPHA:
            return times
    return TIMES_AGAIN[-1]


def _below_half(rates: Mapping[Pair, float]) -> tuple[float, set[Pair]]:
    """Return the usual rate and the pairs below half of it.

    The upper quartile of a port's rates is what it does while a quarter of its partners are fast; the median over all
    ports holds while fewer than half of them are slow.
    """
    ports: dict[tuple[str, str], list[float]] = {}
    for (a, b), rate in rates.items():
        ports.setdefault((a, "sends"), []).append(rate)
        ports.setdefault((b, "receives"), []).append(rate)
    at = median([sorted(v)[3 * len(v) // 4] for v in ports.values()])
    half = {p for p, r in rates.items() if r < HALF * at}
    usual = median([r for p, r in rates.items() if p not in half])
    return usual, {p for p in half if rates[p] < HALF * usual}


def _ports_of(half: set[Pair], rates: Mapping[Pair, float]) -> list[Fault]:
    """Return the ports most of whose pairs, and at least two, are below half."""
    out: list[Fault] = []
    left, slow = set(rates), set(half)
    while True:
        ports: dict[Port, list[Pair]] = {}
        for a, b in sorted(left):
            ports.setdefault((a, "sends"), []).append((a, b))
            ports.setdefault((b, "receives"), []).append((a, b))
        counts = {port: sum(p in slow for p in mine) for port, mine in ports.items()}
        able = [p for p, n in counts.items() if n >= LEAST_PAIRS and 2 * n > len(ports[p])]
        if not able:
            return out
        worst = max(able, key=lambda p: (counts[p] / len(ports[p]), counts[p]))
        out.append(Fault(ports=(worst,), pairs=tuple(ports[worst])))
        left.difference_update(ports[worst])
        slow.difference_update(ports[worst])
