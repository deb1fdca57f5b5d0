"""Fusion of gradients into buffers, by t = alpha + m / beta, and how large a buffer should be. Pure.

Here alpha is the time before the first byte and beta a rate (R. Hockney, 1994); Y. You et al. and others call the time
per byte beta (the alpha-beta model of R. Thakur et al., 2005), and MindSpore's and Horovod's notes name no symbol.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from topocheck.bandwidth.cost_model import BEND, Point, not_saturated, reach
from topocheck.bandwidth.stats import median, quantile, spread
from topocheck.model.measurement import Fit

SHARE = 0.8
"""Share of the peak rate that a buffer should reach."""
UNSTEADY = 0.2
"""Interquartile range over median of the samples of a size beyond which the sweep says nothing about buffers: the
fitted line bends by less than this."""
DRAWS = 200


class BufferAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest buffer that reaches a share of the peak, in bytes with its 95 % interval; or why none is named.

    Attributes:
        how: `by the fitted line`, or `read off the curve` where that bends.
    """

    size_bytes: float | None = None
    low: float | None = None
    high: float | None = None
    how: str = ""
    reason: str = ""


def buffer_for(fit: Fit, points: Sequence[Point], share: float = SHARE) -> BufferAdvice:
    """Return the advice from the sweep of one collective.

    At m bytes the rate is beta m / (m + alpha beta), so a share s takes alpha beta s / (1 - s) bytes. The interval
    takes the ends of alpha's and beta's intervals together, so it is no narrower than 95 %. Where one line does not fit
    the curve, the size is read off it, and the interval is that of a bootstrap over the samples.

    Args:
        fit: of the sweep.
        points: what it was fitted to.
        share: of the peak, 0 to 1.
    """
    if fit.not_fitted or fit.overall is None or fit.half_size_bytes is None:
        return BufferAdvice(reason=fit.not_fitted or "the sweep gives no fit")
    unsteady = [p for p in points if spread(p.samples or (p.seconds,)) > UNSTEADY]
    if unsteady:
        return BufferAdvice(
            reason=f"{len(unsteady)} of {len(points)} sizes scatter by more than {UNSTEADY:.0%} between samples"
        )
    if why := not_saturated([(p.size_bytes, p.seconds) for p in points]):
        return BufferAdvice(reason=why)
    if (fit.max_residual or 0) > BEND:
        return _off_the_curve(points, share)
    o = fit.overall
    # beta of the segment is in the fit's own rate, so its interval enters by ratios.
    size = fit.half_size_bytes * share / (1 - share)
    return BufferAdvice(
        size_bytes=size,
        low=size * (o.alpha_low_us / o.alpha_us) * (o.beta_low_gb_s / o.beta_gb_s),
        high=size * (o.alpha_high_us / o.alpha_us) * (o.beta_high_gb_s / o.beta_gb_s),
        how="by the fitted line",
    )


def _off_the_curve(points: Sequence[Point], share: float) -> BufferAdvice:
    size = reach([(p.size_bytes, p.seconds) for p in points], share)
    if size is None:
        return BufferAdvice(reason=f"even the smallest size reaches {share:.0%} of the peak")
    rng = random.Random(1)
    drawn = []
    for _ in range(DRAWS):
        some = [(p.size_bytes, median(rng.choices(p.samples or (p.seconds,), k=len(p.samples) or 1))) for p in points]
        drawn.append(reach(some, share) or min(p.size_bytes for p in points))
    return BufferAdvice(
        size_bytes=size, low=min(size, quantile(drawn, 0.025)), high=max(size, quantile(drawn, 0.975)),
        how="read off the curve",
    )  # fmt: skip


def by_index(layers: Sequence[int], count: int) -> list[int]:
    """Return the bytes of each buffer where `count` layers after one another share one: the first k, the next k, ..."""
    return [sum(layers[i : i + count]) for i in range(0, len(layers), count)]


def by_size(layers: Sequence[int], cap_bytes: float) -> list[int]:
    """Return the bytes of each buffer where one is closed as soon as it holds the cap or more (torch's reducer.cpp)."""
    out: list[int] = []
    held = 0
    for size in layers:
        held += size
        if held >= cap_bytes:
            out.append(held)
            held = 0
    return [*out, held] if held else out


def exchange_s(buffers: Sequence[float], alpha_s: float, beta: float) -> float:
    """Return the time of exchanging buffers one after the other."""
    return sum(alpha_s + size / beta for size in buffers)
