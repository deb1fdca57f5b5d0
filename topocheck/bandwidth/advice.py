"""From the curve of a collective to the size of fusion buffers, with the arithmetic shown. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from topocheck.bandwidth.cost_model import Point
from topocheck.bandwidth.fusion import buffer_for
from topocheck.model.measurement import Fit
from topocheck.model.units import size_text

MB = 1_000_000
MIB = 1 << 20


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """One framework's fusion buffer and its default in bytes."""

    framework: str
    name: str
    default_bytes: float
    remark: str


KNOBS = (
    Knob(framework="PyTorch DDP", name="bucket_cap_mb", default_bytes=25 * MIB, remark="first bucket 1 MiB"),
    Knob(framework="MindSpore", name="comm_fusion allreduce", default_bytes=64 * MB, remark="mode auto"),
    Knob(framework="Horovod", name="HOROVOD_FUSION_THRESHOLD", default_bytes=128 * MB, remark="since 0.21"),
    Knob(framework="Megatron DDP", name="bucket size", default_bytes=160 * MB, remark="40 million fp32 parameters"),
    Knob(framework="DeepSpeed", name="reduce_bucket_size", default_bytes=1000 * MB, remark="5e8 elements of 2 bytes"),
)
"""Defaults: torch DistributedDataParallel; MindSpore set_auto_parallel_context; Horovod 0.21 release notes; Megatron
DistributedDataParallelConfig; DeepSpeed ZeRO configuration. FSDP2 has no size: it gathers what one wrapped module
holds."""


def smallest_hidden(alpha_s: float, rate: float, gradient_bytes: float, backward_s: float) -> float | None:
    """Return the smallest bucket with which communication fits under the backward pass; None where none does.

    (M / b) alpha + M / beta <= T, so b >= alpha M / (T - M / beta).
    """
    left = backward_s - gradient_bytes / rate
    return alpha_s * gradient_bytes / left if left > 0 else None


def best_exposed(alpha_s: float, gradient_bytes: float, production: float) -> float:
    """Return the best bucket where communication is the bottleneck: sqrt(alpha M g).

    The step is about b / g (until the first bucket is full) + (M / b) alpha + M / beta; this b makes it least.
    `production` is g, the rate at which gradients come, bytes per second.
    """
    return math.sqrt(alpha_s * gradient_bytes * production)


def advise(fit: Fit, points: Sequence[Point]) -> tuple[str, ...]:
    """Return lines of advice from the fit of an all_reduce sweep and its points; empty where there is no fit.

    Buffers are named only where the sweep is steady and saturated (bandwidth/fusion.py); else one line says why not.
    """
    if fit.not_fitted:
        return ()
    buffer = buffer_for(fit, points)
    if buffer.size_bytes is None:
        return (f"{fit.subject}: no advice on fusion buffers: {buffer.reason}",)
    low, high = buffer.low or buffer.size_bytes, buffer.high or buffer.size_bytes
    lines = [
        f"{fit.subject}: a fusion buffer of {size_text(buffer.size_bytes)} or more (95 %: {size_text(low)} to "
        f"{size_text(high)}, {buffer.how}) uses 80 % of what the group reaches "
        f"({fit.peak_gb_s or 0:.4g} GB/s {fit.rate}); keep it below a fifth of the gradients, so that at least five "
        "can overlap with the backward pass"
    ]
    for k in KNOBS:
        share = share_at(fit, k.default_bytes)
        if share is None:
            continue
        verdict = "enough" if k.default_bytes >= low else f"raise it towards {buffer.size_bytes / MIB:.0f} MiB"
        lines.append(
            f"{k.framework} {k.name}, default {size_text(k.default_bytes)} ({k.remark}): about {100 * share:.0f} % of "
            f"the peak: {verdict}"
        )
    return tuple(lines)


def share_at(fit: Fit, size_bytes: float) -> float | None:
    """Return the share of the peak at a size, interpolated between the sizes read off the curve.

    None below the 50 % point and beyond the largest size measured, and the last share read off between.
    """
    if fit.overall is None or size_bytes > fit.overall.to_bytes:
        return None
    known = sorted((size, int(k) / 100) for k, size in fit.empirical_bytes.items())
    if not known or size_bytes < known[0][0]:
        return None
    for (s1, r1), (s2, r2) in itertools.pairwise(known):
        if s1 <= size_bytes <= s2:
            part = (math.log(size_bytes) - math.log(s1)) / (math.log(s2) - math.log(s1)) if s2 > s1 else 1.0
            return r1 + part * (r2 - r1)
    return known[-1][1]


def gradient_example(fit: Fit, gradient_bytes: float, backward_s: float) -> tuple[str, ...]:
    """Return the arithmetic for one model: `gradient_bytes` of gradients in a backward pass of `backward_s`."""
    if fit.alpha_us is None or fit.overall is None or fit.beta_gb_s is None or not fit.half_size_bytes:
        return ()
    alpha = fit.alpha_us / 1e6
    algbw = fit.half_size_bytes / alpha
    m, t = gradient_bytes, backward_s
    lines = [
        f"gradients {m / 1e9:.3g} GB, backward {t:.3g} s, alpha {fit.alpha_us:.3g} us, algbw {algbw / 1e9:.4g} GB/s",
        f"communication alone: {m:.3g} / {algbw:.3g} = {m / algbw:.3g} s",
    ]
    hidden = smallest_hidden(alpha, algbw, m, t)
    if hidden is not None:
        lines.append(
            f"it fits under the backward pass from {alpha:.3g} x {m:.3g} / ({t:.3g} - {m / algbw:.3g}) = "
            f"{size_text(hidden)} a bucket on; the tail is one bucket"
        )
    else:
        best = best_exposed(alpha, m, m / t)
        lines.append(
            f"it does not fit; the best bucket is sqrt({alpha:.3g} x {m:.3g} x {m / t:.3g}) = {size_text(best)}"
        )
    return tuple(lines)
