"""The cost model of a transfer, t(m) = alpha + m / beta, fitted robustly, and what each collective costs at least.

alpha is what a transfer costs before its first byte, beta the rate it tends to; the rate at size m is
beta m / (m + n_half) with n_half = alpha beta, so a share s of the peak needs m = n_half s / (1 - s). The form is that
of R. Hockney, "The communication challenge for MPP" (Parallel Computing 20, 1994).

Seconds and bytes throughout.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from topocheck.bandwidth.stats import median, quantile
from topocheck.model.measurement import Fit, FitSegment, Measurement

HUBER = 0.1
"""Relative error beyond which a point counts linearly instead of quadratically."""
MIN_POINTS = 4
MAX_SEGMENTS = 3
BEND = 0.15
"""Worst relative residual beyond which one straight line is not believed and segments are tried."""
NOT_SATURATED = 0.10
DRAWS = 200
SHARES = (50, 80, 90, 95)


class Point(msgspec.Struct, frozen=True):
    """One size, its time (the median), and the samples behind it (may be the median alone)."""

    size_bytes: float
    seconds: float
    samples: tuple[float, ...] = ()


def point_of(m: Measurement) -> Point:
    """Return a measurement as a point: seconds of one copy or call."""
    if m.unit == "us":
        return Point(m.size_bytes, m.median / 1e6, tuple(s / 1e6 for s in m.samples))
    return Point(m.size_bytes, m.size_bytes / m.median / 1e9, tuple(m.size_bytes / s / 1e9 for s in m.samples))


class Line(msgspec.Struct, frozen=True):
    """alpha in seconds, beta in bytes per second, the loss of the fit and the worst relative residual."""

    alpha: float
    beta: float
    loss: float
    worst: float


def fit_line(points: Sequence[tuple[float, float]], huber: float = HUBER) -> Line:
    """Fit t = alpha + m / beta to (bytes, seconds) by relative error.

    Gauss-Newton on ln t = ln(e^a + e^b m), reweighted by Huber's rule, so that alpha and beta stay positive, all
    sizes count alike whatever their time, and one bad point pulls little (P. Huber, "Robust estimation of a location
    parameter", 1964). Two points or more.
    """
    m = [p[0] for p in points]
    y = [math.log(p[1]) for p in points]
    largest = max(points)
    a, b = min(y), math.log(largest[1] / largest[0])
    damping = 1e-3
    loss = _loss(m, y, a, b, huber)
    for _ in range(200):
        h11 = h12 = h22 = g1 = g2 = 0.0
        for mi, yi in zip(m, y, strict=True):
            ea, eb = math.exp(a), math.exp(b) * mi
            share = ea / (ea + eb)
            r = yi - math.log(ea + eb)
            w = 1.0 if abs(r) <= huber else huber / abs(r)
            h11 += w * share * share
            h12 += w * share * (1 - share)
            h22 += w * (1 - share) * (1 - share)
            g1 += w * share * r
            g2 += w * (1 - share) * r
        while True:
            d11, d22 = h11 * (1 + damping) + 1e-12, h22 * (1 + damping) + 1e-12
            det = d11 * d22 - h12 * h12
            da, db = (g1 * d22 - g2 * h12) / det, (g2 * d11 - g1 * h12) / det
            da, db = max(-2.0, min(2.0, da)), max(-2.0, min(2.0, db))
            new = _loss(m, y, a + da, b + db, huber)
            if new <= loss or damping > 1e8:
                break
            damping *= 10
        if new > loss:
            break
        a, b, gained = a + da, b + db, loss - new
        loss, damping = new, max(damping / 10, 1e-9)
        if abs(da) + abs(db) < 1e-10 or gained < 1e-15:
            break
    alpha, beta = math.exp(a), math.exp(-b)
    worst = max(abs((alpha + mi / beta) / math.exp(yi) - 1) for mi, yi in zip(m, y, strict=True))
    return Line(alpha, beta, loss, worst)


def _loss(m: Sequence[float], y: Sequence[float], a: float, b: float, huber: float) -> float:
    total = 0.0
    for mi, yi in zip(m, y, strict=True):
        r = abs(yi - math.log(math.exp(a) + math.exp(b) * mi))
        total += r * r / 2 if r <= huber else huber * (r - huber / 2)
    return total


def segments(points: Sequence[tuple[float, float]], most: int = MAX_SEGMENTS, least: int = MIN_POINTS) -> list[int]:
    """Return where segments begin (always with 0), chosen by dynamic programming and the Bayesian criterion.

    Each piece holds `least` points or more; a piece costs two parameters and a place.
    """
    n = len(points)
    cost: dict[tuple[int, int], float] = {}
    for i in range(n):
        for j in range(i + least, n + 1):
            cost[i, j] = fit_line(points[i:j]).loss
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {
        (1, j): (cost[0, j], (0,)) for j in range(least, n + 1)
    }
    for k in range(2, most + 1):
        for j in range(k * least, n + 1):
            options = [
                (best[k - 1, i][0] + cost[i, j], (*best[k - 1, i][1], i))
                for i in range((k - 1) * least, j - least + 1)
                if (k - 1, i) in best
            ]
            if options:
                best[k, j] = min(options)
    scored = []
    for k in range(1, most + 1):
        if (k, n) in best:
            # Twice the Huber loss is the sum of squares for small residuals; 1e-4 (1 % each) is the noise below
            # which a better fit means nothing.
            mean = 2 * best[k, n][0] / n + 1e-4
            scored.append((n * math.log(mean) + (3 * k - 1) * math.log(n), best[k, n][1]))
    return list(min(scored)[1]) if scored else [0]


def reach(points: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return the smallest size whose rate reaches `share` of the best rate, interpolated in the logarithm of the size.

    Read off the curve, with no model. None where even the smallest size reaches it.
    """
    ordered = sorted(points)
    rates = [m / t for m, t in ordered]
    wanted = share * max(rates)
    for i, rate in enumerate(rates):
        if rate >= wanted:
            if i == 0:
                return None
            low, high = math.log(ordered[i - 1][0]), math.log(ordered[i][0])
            part = (wanted - rates[i - 1]) / (rate - rates[i - 1])
            return math.exp(low + part * (high - low))
    return None


def refusal(points: Sequence[Point]) -> str:
    """Return why these points say nothing about alpha and beta; the empty text where they do."""
    if len(points) < MIN_POINTS:
        return f"{len(points)} size{'s' * (len(points) != 1)}; a fit needs {MIN_POINTS} or more"
    if any(p.seconds <= 0 or p.size_bytes <= 0 for p in points):
        return "a time or size that is not positive"
    ordered = sorted(points, key=lambda p: p.size_bytes)
    for a, b in pairwise(ordered):
        noise = _noise(a) + _noise(b) + 0.05
        if b.seconds < a.seconds * (1 - noise) and b.size_bytes > 4 * a.size_bytes:
            return f"time falls from {a.size_bytes:.0f} to {b.size_bytes:.0f} bytes by more than the noise"
    largest = ordered[-1].seconds
    if largest < 1.5 * ordered[0].seconds:
        return "the largest size takes barely longer than the smallest; measure larger sizes"
    return ""


def _noise(p: Point) -> float:
    if len(p.samples) < 2:
        return 0.0
    return (quantile(p.samples, 0.75) - quantile(p.samples, 0.25)) / p.seconds


def not_saturated(points: Sequence[tuple[float, float]]) -> str:
    """Return a note where the rate still grows by more than a tenth between the last two sizes."""
    ordered = sorted(points)
    if len(ordered) < 2:
        return ""
    (m1, t1), (m2, t2) = ordered[-2:]
    gain = (m2 / t2) / (m1 / t1) - 1
    if gain > NOT_SATURATED:
        return f"not saturated: the rate still grew by {100 * gain:.0f} % at the last size; measure larger ones"
    return ""


def fit_sweep(
    subject: str, points: Sequence[Point], *, factor: float = 1.0, rate: str = "bandwidth", seed: int = 1
) -> Fit:
    """Fit a sweep, in segments where one line is off by more than 15 %, and say what it is sure of.

    Args:
        subject: what was swept.
        points: one per size.
        factor: what turns size / time into the rate (nccl-tests' busbw factor).
        rate: what that rate is called.
        seed: of the bootstrap's random numbers.
    """
    why = refusal(points)
    if why:
        return Fit(subject=subject, rate=rate, points=len(points), not_fitted=why)
    ordered = sorted(points, key=lambda p: p.size_bytes)
    flat = [(p.size_bytes, p.seconds) for p in ordered]
    whole = fit_line(flat)
    starts = segments(flat) if whole.worst > BEND and len(flat) >= 2 * MIN_POINTS else [0]
    rng = random.Random(seed)
    parts = []
    for i, start in enumerate(starts):
        end = starts[i + 1] if i + 1 < len(starts) else len(flat)
        parts.append(_segment(ordered[start:end], factor, rng))
    everything = parts[0] if len(parts) == 1 else _segment(ordered, factor, rng)
    empirical = {str(s): reach(flat, s / 100) for s in SHARES}
    notes = [n for n in (not_saturated(flat),) if n]
    if whole.worst > BEND:
        notes.append(
            f"one line is off by {100 * whole.worst:.0f} % at worst, so the sizes read off the curve count; "
            + ("the curve bends (a change of protocol)" if len(parts) > 1 else "and no bend explains it")
        )
    return Fit(
        subject=subject,
        rate=rate,
        points=len(points),
        overall=everything,
        segments=tuple(parts),
        alpha_us=whole.alpha * 1e6,
        beta_gb_s=whole.beta * factor / 1e9,
        half_size_bytes=whole.alpha * whole.beta,
        max_residual=whole.worst,
        peak_gb_s=max(m / t for m, t in flat) * factor / 1e9,
        empirical_bytes={k: v for k, v in empirical.items() if v is not None},
        notes=tuple(notes),
    )


def _segment(points: Sequence[Point], factor: float, rng: random.Random) -> FitSegment:
    """Fit one piece, with the 95 % interval of a bootstrap over samples (over residuals where there are none)."""
    flat = [(p.size_bytes, p.seconds) for p in points]
    line = fit_line(flat)
    # Residuals of a fit are smaller than the errors they stand for: two parameters were spent on them.
    widen = math.sqrt(len(flat) / max(1, len(flat) - 2))
    residuals = [(t / (line.alpha + m / line.beta)) ** widen for m, t in flat]
    alphas, betas = [], []
    for _ in range(DRAWS):
        drawn = []
        for p in points:
            t = median(rng.choices(p.samples, k=len(p.samples))) if len(p.samples) > 1 else p.seconds
            # The samples of one size share that size's departure from the line, which no redrawing of them shows.
            drawn.append((p.size_bytes, t * rng.choice(residuals)))
        redone = fit_line(drawn)
        alphas.append(redone.alpha)
        betas.append(redone.beta)
    return FitSegment(
        from_bytes=int(points[0].size_bytes),
        to_bytes=int(points[-1].size_bytes),
        alpha_us=line.alpha * 1e6,
        beta_gb_s=line.beta * factor / 1e9,
        alpha_low_us=quantile(alphas, 0.025) * 1e6,
        alpha_high_us=quantile(alphas, 0.975) * 1e6,
        beta_low_gb_s=quantile(betas, 0.025) * factor / 1e9,
        beta_high_gb_s=quantile(betas, 0.975) * factor / 1e9,
    )
