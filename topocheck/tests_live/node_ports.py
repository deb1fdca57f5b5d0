"""Which node, direction or link is slow, from the rates of all pairs. Pure.

A rate between two nodes is as good as the worst of three things: what the first can send, what the second can
receive, and what lies between. Each node has two ports, one that sends and one that receives. A port most of whose
pairs are slow is itself slow, and its pairs blame nobody else; a slow pair that no port explains is a slow link.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topocheck.tests_live.stats import median

LEAST_CUT = 0.15
"""Part of the siblings' median that a rate may lose before it counts as slow; pairs of healthy nodes differ by less."""
FAIL_BELOW = 0.75
"""Share of the siblings' median below which it is a failure (design of the bandwidth checks: warn 10 %, fail 25 %)."""
NOISE = 5 * 1.4826
"""Times the median absolute deviation: five standard deviations of a normal distribution."""
LEAST_PAIRS = 2

Rates = Mapping[tuple[str, str], float]
"""(sender, receiver) -> GB/s; 0 for a pair that failed although both nodes answer."""


class Slow(msgspec.Struct, frozen=True, kw_only=True):
    """Something slow: a port (`node` with `direction` sends or receives) or a link (`node` to `other`).

    Attributes:
        share: its median over the siblings' median.
        rates: (sender, receiver, GB/s) of the pairs that show it.
        reference_gb_s: the siblings' median.
    """

    node: str
    other: str = ""
    direction: str = ""
    share: float
    rates: tuple[tuple[str, str, float], ...]
    reference_gb_s: float


def reference(rates: Rates) -> tuple[float, float]:
    """Return the siblings' usual rate and the part of it below which a pair is slow.

    The best pair of each port is what a port can do when nothing is in its way; the median of these bests holds while
    fewer than half of the ports are slow. The usual rate is the median of all pairs near it.
    """
    best: dict[tuple[str, str], float] = {}
    for (a, b), rate in rates.items():
        for port in ((a, "sends"), (b, "receives")):
            best[port] = max(best.get(port, 0.0), rate)
    at = median(list(best.values()))
    good = [r for r in rates.values() if r >= FAIL_BELOW * at and r > 0]
    if not good:
        return at, 1 - LEAST_CUT
    usual = median(good)
    deviation = median([abs(r - usual) for r in good])
    return usual, 1 - max(LEAST_CUT, NOISE * deviation / usual)


def find_slow(rates: Rates) -> tuple[Slow, ...]:
    """Return the slow ports, then the slow links that no slow port explains."""
    if len({n for pair in rates for n in pair}) < 3:
        return ()
    usual, cut = reference(rates)
    if usual <= 0 or cut <= 0:
        return ()
    left = dict(rates)
    out: list[Slow] = []
    while worst := _worst_port(left, usual * cut):
        node, direction = worst
        mine = {p: r for p, r in left.items() if p[direction == "receives"] == node}
        out.append(
            Slow(
                node=node,
                direction=direction,
                share=median(list(mine.values())) / usual,
                rates=tuple((a, b, r) for (a, b), r in mine.items()),
                reference_gb_s=usual,
            )
        )
        left = {p: r for p, r in left.items() if p not in mine}
    for (a, b), rate in left.items():
        if rate < usual * cut:
            out.append(Slow(node=a, other=b, share=rate / usual, rates=((a, b, rate),), reference_gb_s=usual))
    return tuple(out)


def _worst_port(rates: Rates, limit: float) -> tuple[str, str] | None:
    """Return the port with the largest share of slow pairs, if that is more than half and at least two."""
    ports: dict[tuple[str, str], list[float]] = {}
    for (a, b), rate in rates.items():
        ports.setdefault((a, "sends"), []).append(rate)
        ports.setdefault((b, "receives"), []).append(rate)
    found: list[tuple[float, int, tuple[str, str]]] = []
    for port, values in ports.items():
        slow = sum(v < limit for v in values)
        if slow >= LEAST_PAIRS and 2 * slow > len(values):
            found.append((slow / len(values), slow, port))
    return max(found)[2] if found else None


def suspects(rates: Rates) -> tuple[tuple[str, str], ...]:
    """Return the unordered pairs that are slow, to be measured again before anyone is accused.

    Of two nodes it is their pair where one direction is slower.
    """
    if len({n for pair in rates for n in pair}) < 3:
        return tuple((min(p), max(p)) for p, r in rates.items() if r < FAIL_BELOW * rates.get((p[1], p[0]), 0.0))
    usual, cut = reference(rates)
    slow = {(min(p), max(p)): None for p, r in rates.items() if r < usual * cut}
    return tuple(slow)
