"""How far the rates of healthy pairs scatter: from pair to pair, and from sample to sample of one pair. Pure.

Everything is of natural logarithms of rates, so a standard deviation is a part of the rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from topocheck.bandwidth.stats import median

Pair = tuple[str, str]
"""Sender and receiver."""
LEAST = 0.002
"""Standard deviation below which no pair is known: windows of a second are timed by threads that share a processor."""
SAMPLES = 5
"""Samples of one measurement, whose median is its rate."""
_IQR = 0.99
"""Interquartile range of five normal values in standard deviations: between the second and the fourth, which lie at
0.495 on either side (H. L. Harter, Expected values of normal order statistics, Biometrika 48 (1961), table 1)."""
_MEDIAN = math.pi / 2
"""Variance of a median over that of a mean, of many normal values."""


class PairMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of one pair.

    Attributes:
        gb_s: its rate; 0 where it failed although both nodes answer.
        spread: interquartile range of its samples over their median; 0 where there are none.
        repeats: rates of equal measurements at different times, where there were several.
        again: rates of measurements anew, since the pair was suspected; `gb_s` is their median then.
    """

    gb_s: float
    spread: float = 0.0
    repeats: tuple[float, ...] = ()
    again: tuple[float, ...] = ()

    @property
    def at_best(self) -> float:
        """GB/s that counts before a link is accused: the upper quartile, since chance only makes a pair slower."""
        return sorted(self.again)[3 * len(self.again) // 4] if self.again else self.gb_s

    @property
    def variance(self) -> float:
        """Variance of the rate as far as its own samples show it."""
        return (self.spread / _IQR) ** 2 * _MEDIAN / SAMPLES


class Scatter(msgspec.Struct, frozen=True, kw_only=True):
    """Standard deviation of one rate, and the degrees of freedom of its estimate."""

    sigma: float
    degrees: int


def within(measured: Iterable[PairMeasured]) -> tuple[float, int]:
    """Return the variance of a rate that its repetitions show, or else its samples, and its degrees of freedom."""
    every = [m for m in measured if m.gb_s > 0]
    repeated = [[math.log(r) for r in m.repeats] for m in every if len(m.repeats) > 1 and min(m.repeats) > 0]
    if repeated:
        degrees = sum(len(r) - 1 for r in repeated)
        squares = sum((x - sum(r) / len(r)) ** 2 for r in repeated for x in r)
        return squares / degrees / min(map(len, repeated)), degrees
    variances = [m.variance for m in every if m.spread > 0]
    # The two directions of a pair share one spread, the larger.
    return (median(variances), (SAMPLES - 1) * len(variances) // 2) if variances else (0.0, 0)


def combine(squares: float, degrees: int, own: tuple[float, int]) -> Scatter:
    """Return the scatter of rates around what is fitted to them.

    Pairs that scatter no more than their own samples show no difference of their own: both estimates are pooled. Else
    only the pairs count.

    Args:
        squares: sum of squares around the fit.
        degrees: its degrees of freedom.
        own: see `within`.
    """
    between = squares / degrees if degrees > 0 else 0.0
    variance, more = own
    if more and between < variance:
        between = (between * degrees + variance * more) / (degrees + more)
        degrees += more
    return Scatter(sigma=max(LEAST, math.sqrt(between)), degrees=max(1, degrees))
