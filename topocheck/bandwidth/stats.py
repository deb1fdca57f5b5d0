"""Statistics of samples and the rule that says when there are enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic


def median(values: Sequence[float]) -> float:
    """Return the median of at least one value."""
    s = sorted(values)
    n = len(s)
    return s[n // 2] if n % 2 else (s[n // 2 - 1] + s[n // 2]) / 2


def quantile(values: Sequence[float], q: float) -> float:
    """Return the quantile `q` (0 to 1) by linear interpolation between order statistics."""
    s = sorted(values)
    at = q * (len(s) - 1)
    low = int(at)
    high = min(low + 1, len(s) - 1)
    return s[low] + (s[high] - s[low]) * (at - low)


def spread(values: Sequence[float]) -> float:
    """Return the interquartile range over the median; 0 for fewer than two values or a median of 0."""
    mid = median(values)
    if len(values) < 2 or mid == 0:
        return 0.0
    return (quantile(values, 0.75) - quantile(values, 0.25)) / mid


def is_stable(values: Sequence[float], tolerance: float, window: int = 5) -> bool:
    """Tell whether the spread of the last `window` values is below `tolerance`."""
    return len(values) >= window and spread(values[-window:]) < tolerance


def sample_until_stable(
    take: Callable[[], float],
    *,
    at_least: int,
    at_most: int,
    budget_s: float,
    tolerance: float = 0.01,
    clock: Callable[[], float] = monotonic,
) -> tuple[tuple[float, ...], str]:
    """Call `take` until its values are stable, `at_most` were taken or `budget_s` seconds are used.

    `at_least` samples are taken whatever the budget says, and the rule of stability needs min(5, at_most) of them.

    Returns:
        The samples and why it stopped: `stable`, `samples` or `budget`.
    """
    start = clock()
    out: list[float] = []
    window = max(min(5, at_most), at_least)
    while True:
        out.append(take())
        if len(out) < at_least:
            continue
        if is_stable(out, tolerance, window):
            return tuple(out), "stable"
        if len(out) >= at_most:
            return tuple(out), "samples"
        if clock() - start > budget_s:
            return tuple(out), "budget"
