"""The critical value of Student's t, without a library for statistics."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_NORMAL = NormalDist()


def normal_quantile(p: float) -> float:
    """Return the quantile `p` (0 < p < 1) of the standard normal distribution."""
    return _NORMAL.inv_cdf(p)


def normal_share_below(x: float) -> float:
    """Return the probability of a standard normal value below `x`."""
    return _NORMAL.cdf(x)


@lru_cache(maxsize=4096)
def t_critical(alpha: float, degrees: int) -> float:
    """Return the value that Student's t with `degrees` of freedom exceeds with probability `alpha` (0 to 0.5).

    G. W. Hill, Algorithm 396: Student's t-quantiles, Communications of the ACM 13 (1970), 619-620: exact for 1 and 2
    degrees of freedom, to 1 part in 10^5 for more.
    """
    p, n = 2 * alpha, degrees
    if n == 1:
        return 1 / math.tan(p * math.pi / 2)
    if n == 2:
        return math.sqrt(2 / (p * (2 - p)) - 2)
    a = 1 / (n - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    y = (d * p) ** (2 / n)
    if y > 0.05 + a:
        x = normal_quantile(p / 2)
        y = x * x
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        first = (1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1
        y = first * (n + 1) / (n + 2) + 1 / y
    return math.sqrt(n * y)
