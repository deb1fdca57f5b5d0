"""The fit against published curves, against made curves whose answer is known, and its refusals."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topocheck.bandwidth.advice import advise, best_exposed, smallest_hidden
from topocheck.bandwidth.cost_model import Point, fit_line, fit_sweep, reach, segments
from topocheck.bandwidth.costs import (
    busbw_factor,
)

MIB = 1 << 20


def points(sizes_mib: list[float], rates: list[float], factor: float) -> list[Point]:
    """Points from a published table of sizes and busbw (GB/s)."""
    return [Point(s * MIB, s * MIB * factor / (r * 1e9)) for s, r in zip(sizes_mib, rates, strict=True)]


SIZES = [1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
# all_reduce of 8 GPUs by size, busbw (Azure/AI-benchmarking-guide, ND H100 v5, ND H200 v5, ND A100 v4), and what a
# fit of the unabridged curves gives: alpha us, beta GB/s busbw, and MiB at 50, 80, 90, 95 % of the peak.
PUBLISHED = {
    "H100": ([44, 129, 234, 362, 401, 423, 438, 466, 472, 476, 479], 36, 440, (17, 94, 363, 771)),
    "H200": ([53, 138, 240, 368, 412, 432, 443, 468, 473, 477, 480], 31, 442, (16, 82, 254, 741)),
    "A100": ([36, 71, 109, 167, 174, 214, 222, 228, 230, 230, 232], 44, 210, (19, 155, 233, 444)),
}


@pytest.mark.parametrize("gpu", PUBLISHED)
def test_published_curves_give_the_published_values(gpu: str) -> None:
    rates, alpha, beta, empirical = PUBLISHED[gpu]
    fit = fit_sweep(gpu, points(SIZES, rates, 1.75), factor=1.75, rate="busbw")
    assert fit.not_fitted == ""
    assert fit.overall is not None
    # The published fits used every power of two; the abridged curve moves the lower end of alpha by up to 5 %.
    assert fit.overall.alpha_low_us * 0.95 <= alpha <= fit.overall.alpha_high_us
    assert fit.overall.beta_low_gb_s <= beta <= fit.overall.beta_high_gb_s
    for share, size in zip((50, 80, 90, 95), empirical, strict=True):
        assert fit.empirical_bytes[str(share)] / MIB == pytest.approx(size, rel=0.04)
    # NCCL changes its way of working along the curve: one line does not fit, and the fit says so.
    assert fit.max_residual is not None
    assert fit.max_residual > 0.15
    assert any("one line is off" in n for n in fit.notes)
    assert len(fit.segments) > 1


def test_osu_curve_of_four_nvlinks() -> None:
    # OSU bandwidth, A100 with 4 links of 25 GB/s: 44, 74, 87.5, 93 GB/s. A fit of all its sizes: 0.34 MiB half
    # rate, 96.8 GB/s; 50, 80, 90 % at 0.3, 1.1, 2.3 MiB.
    fit = fit_sweep("OSU", points([0.25, 1, 4, 32], [44, 74, 87.5, 93], 1))
    assert fit.half_size_bytes is not None
    assert fit.half_size_bytes / MIB == pytest.approx(0.34, rel=0.25)
    assert fit.beta_gb_s == pytest.approx(96.8, rel=0.05)
    assert fit.empirical_bytes["50"] / MIB == pytest.approx(0.3, abs=0.05)
    assert fit.empirical_bytes["80"] / MIB == pytest.approx(1.1, abs=0.1)


@settings(max_examples=60)
@given(alpha=st.floats(1e-7, 1e-3), beta=st.floats(1e8, 1e12), seed=st.integers(0, 1000))
def test_a_made_line_is_found_again(alpha: float, beta: float, seed: int) -> None:
    rng = random.Random(seed)
    half = alpha * beta
    sizes = [half * 10 ** (k / 2 - 2) for k in range(10)]
    line = fit_line([(m, (alpha + m / beta) * (1 + rng.uniform(-0.01, 0.01))) for m in sizes])
    assert line.alpha == pytest.approx(alpha, rel=0.03)
    assert line.beta == pytest.approx(beta, rel=0.03)


def test_one_bad_point_pulls_little() -> None:
    sizes = [1024.0 * 4**k for k in range(10)]
    good = [(m, 5e-6 + m / 2e10) for m in sizes]
    bad = [(m, t * (3 if k == 4 else 1)) for k, (m, t) in enumerate(good)]
    line = fit_line(bad)
    assert line.alpha == pytest.approx(5e-6, rel=0.1)
    assert line.beta == pytest.approx(2e10, rel=0.1)


def test_a_bend_is_found_where_it_is() -> None:
    # alpha 10 us and 20 GB/s up to 1 MiB, then 40 us and 300 GB/s.
    sizes = [1024.0 * 2**k for k in range(20)]
    made = [(m, 1e-5 + m / 2e10 if m <= MIB else 4e-5 + m / 3e11) for m in sizes]
    starts = segments(made)
    assert len(starts) == 2
    assert sizes[starts[1]] == 2 * MIB


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ([Point(1024, 1e-5), Point(4096, 2e-5)], "a fit needs 4"),
        ([Point(1024.0 * 4**k, 1e-5) for k in range(6)], "barely longer"),
        ([Point(1024.0 * 8**k, t) for k, t in enumerate([1e-5, 1e-5, 9e-5, 3e-5, 9e-4])], "time falls"),
        ([Point(1024.0 * 4**k, 0.0) for k in range(6)], "not positive"),
    ],
)
def test_refusals(made: list[Point], why: str) -> None:
    fit = fit_sweep("x", made)
    assert why in fit.not_fitted
    assert fit.segments == ()
    assert advise(fit, made) == ()


def test_a_curve_that_still_grows_is_not_called_saturated() -> None:
    fit = fit_sweep("x", [Point(1024.0 * 4**k, 1e-3 + 1024.0 * 4**k / 1e11) for k in range(9)])
    assert any("not saturated" in n for n in fit.notes)


def test_sizes_for_shares_of_the_peak() -> None:
    assert reach([(1, 1.0), (10, 1.0), (100, 1.0)], 0.5) == pytest.approx(
        math.exp(math.log(10) + math.log(10) * 40 / 90)
    )


def test_costs_of_collectives() -> None:
    # 2 (n-1)/n, (n-1)/n and 1 (doc/PERFORMANCE.md of NVIDIA/nccl-tests).
    assert [busbw_factor(c, 4) for c in ("all_reduce", "all_gather", "broadcast")] == [1.5, 0.75, 1.0]
    with pytest.raises(ValueError, match="no busbw factor"):
        busbw_factor("gossip", 2)


def test_bucket_arithmetic() -> None:
    # 14 GB of gradients in 0.5 s, alpha 40 us: sqrt(40e-6 * 14e9 * 28e9) = 125 MB.
    assert best_exposed(40e-6, 14e9, 14e9 / 0.5) == pytest.approx(125.2e6, rel=0.001)
    # At 100 GB/s they take 0.14 s, so 0.36 s are left: 40e-6 * 14e9 / 0.36 = 1.56 MB.
    assert smallest_hidden(40e-6, 1e11, 14e9, 0.5) == pytest.approx(1.556e6, rel=0.001)
    assert smallest_hidden(40e-6, 1e10, 14e9, 0.5) is None


def test_advice_names_the_defaults_it_judges() -> None:
    rates = PUBLISHED["H100"][0]
    made = points(SIZES, rates, 1.75)
    fit = fit_sweep("all_reduce nccl 8 ranks", made, factor=1.75, rate="busbw")
    text = "\n".join(advise(fit, made))
    # 25 MiB lies at 55 to 60 % of the peak on such a machine, 128 MiB above 80 %.
    (ddp,) = [line for line in text.splitlines() if "DDP bucket_cap_mb" in line]
    share = int(ddp.split("about ")[1].split(" %")[0])
    assert 52 <= share <= 62
    assert "raise it" in ddp
    (horovod,) = [line for line in text.splitlines() if "HOROVOD" in line]
    assert "enough" in horovod
