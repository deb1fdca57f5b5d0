"""The search for slow nodes, ports and links among rates that scatter. Pure; see `slow_links` for the method."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec

from topocheck.bandwidth.scatter import Pair, combine
from topocheck.bandwidth.student import t_critical

LEAST_PAIRS = 2
MOST_FAULTS = 24
LEAST_T = 1.5
"""Where the best explanation is no better than this, nothing hides behind it."""
Port = tuple[str, str]
"""Node and `sends` or `receives`."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """The pairs of one port, of both ports of a node, or of a link (no port)."""

    ports: tuple[Port, ...] = ()
    pairs: tuple[Pair, ...]


class _Sums:
    """Number, sum and sum of squares of some values."""

    __slots__ = ("n", "q", "s")

    def __init__(self, n: int = 0, s: float = 0.0, q: float = 0.0) -> None:
        self.n, self.s, self.q = n, s, q

    def add(self, value: float, sign: int = 1) -> None:
        self.n += sign
        self.s += sign * value
        self.q += sign * value * value

    def minus(self, *others: _Sums) -> _Sums:
        return _Sums(
            self.n - sum(o.n for o in others), self.s - sum(o.s for o in others), self.q - sum(o.q for o in others)
        )

    @property
    def mean(self) -> float:
        return self.s / self.n

    @property
    def squares(self) -> float:
        return max(0.0, self.q - self.s * self.s / self.n)


class _Choice(msgspec.Struct, frozen=True):
    """One explanation: what is left unexplained, per degree of freedom."""

    unexplained: float
    squares: float
    degrees: int
    ports: tuple[Port, ...]
    pairs: tuple[Pair, ...]


def tests(nodes: int) -> tuple[int, int]:
    """Return how many ports and nodes, and how many links in one or both directions, could be named."""
    return 3 * nodes, 3 * nodes * (nodes - 1) // 2


class Search:
    """Explains rates by faults, one after the other.

    Args:
        shares: (sender, receiver) -> natural logarithm of its share of the usual rate.
        nodes: how many there are.
        own: variance of a rate and its degrees of freedom by samples (`scatter.within`).
        errors: variance of single rates by their own samples.
        cut: natural logarithm of the share above which nothing is slow.
        alpha: level of all tests of nodes, and of all tests of links.
    """

    def __init__(
        self,
        shares: Mapping[Pair, float],
        nodes: int,
        own: tuple[float, int],
        errors: Mapping[Pair, float],
        *,
        cut: float,
        alpha: float,
    ) -> None:
        self.left, self.own, self.errors, self.cut = dict(shares), own, errors, cut
        self.levels = tuple(alpha / n for n in tests(nodes))
        self.most = min(MOST_FAULTS, max(3, nodes))
        self._least = max(2, len(shares) // 3)
        self._all = _Sums()
        self._ports: dict[Port, _Sums] = {}
        for pair, value in self.left.items():
            self._count(pair, value, 1)
        self._links = sorted(self.left, key=lambda p: self.left[p])
        both = [(a, b) for a, b in self.left if a < b and (b, a) in self.left]
        self._both = sorted(both, key=lambda p: self.left[p] + self.left[p[1], p[0]])

    def run(self) -> tuple[list[Fault], dict[Pair, float]]:
        """Return the faults that are significant, and the shares of the pairs that none of them explains."""
        found: list[tuple[Fault, dict[Pair, float]]] = []
        accepted = 0
        while len(found) < self.most:
            best = min(self._choices(), key=lambda c: c.unexplained, default=None)
            if best is None:
                break
            fault = Fault(ports=best.ports, pairs=best.pairs or self._pairs(best.ports))
            t, significant = self._test(fault, best)
            if t < LEAST_T:
                break
            found.append((fault, {p: self.left[p] for p in fault.pairs}))
            self._take(fault.pairs)
            if significant:
                accepted = len(found)
        for _, taken in found[accepted:]:
            self.left.update(taken)
        return [fault for fault, _ in found[:accepted]], self.left

    def _count(self, pair: Pair, value: float, sign: int) -> None:
        self._all.add(value, sign)
        for port in ((pair[0], "sends"), (pair[1], "receives")):
            self._ports.setdefault(port, _Sums()).add(value, sign)

    def _take(self, pairs: tuple[Pair, ...]) -> None:
        for p in pairs:
            self._count(p, self.left.pop(p), -1)

    def _choices(self) -> Iterator[_Choice]:
        for port, sums in self._ports.items():
            if sums.n >= LEAST_PAIRS:
                yield from self._choice((port,), (), sums)
                if port[1] == "sends":
                    other = (port[0], "receives")
                    if (back := self._ports.get(other, _Sums())).n >= LEAST_PAIRS:
                        yield from self._choice((port, other), (), sums, back)
        link = next((p for p in self._links if p in self.left), None)
        if link is not None:
            yield from self._choice((), (link,), self._sums(link))
        two = next((p for p in self._both if p in self.left and (p[1], p[0]) in self.left), None)
        if two is not None:
            pairs = (two, (two[1], two[0]))
            yield from self._choice((), pairs, self._sums(*pairs))

    def _sums(self, *pairs: Pair) -> _Sums:
        out = _Sums()
        for p in pairs:
            out.add(self.left[p])
        return out

    def _choice(self, ports: tuple[Port, ...], pairs: tuple[Pair, ...], *groups: _Sums) -> Iterator[_Choice]:
        """Yield the explanation by one group of pairs, each with a mean, if there is enough to compare it with.

        Both directions of a node or link are one fault only where each of them is slow.
        """
        rest = self._all.minus(*groups)
        degrees = rest.n - 1 + sum(g.n - 1 for g in groups)
        if rest.n < self._least or degrees < 1:
            return
        if len(groups) > 1 or len(pairs) > 1:
            each = [g.mean for g in groups] if ports else [self.left[p] for p in pairs]
            if max(each) > rest.mean + self.cut:
                return
        elif groups[0].mean >= rest.mean:
            return
        squares = rest.squares + sum(g.squares for g in groups)
        yield _Choice(squares / degrees, squares, degrees, ports, pairs)

    def _pairs(self, ports: tuple[Port, ...]) -> tuple[Pair, ...]:
        return tuple(p for p in self.left if (p[0], "sends") in ports or (p[1], "receives") in ports)

    def _test(self, fault: Fault, choice: _Choice) -> tuple[float, bool]:
        """Return how many standard errors lie between the group and the rest, and whether that is significant."""
        mine = self._sums(*fault.pairs)
        rest = self._all.minus(mine)
        noise = combine(choice.squares, choice.degrees, self.own)
        own = sum(self.errors.get(p, 0.0) for p in fault.pairs) / mine.n**2
        error = math.sqrt(max(noise.sigma**2 / mine.n, own) + noise.sigma**2 / rest.n)
        t = (rest.mean - mine.mean) / error
        return t, t > t_critical(self.levels[0 if fault.ports else 1], noise.degrees)
