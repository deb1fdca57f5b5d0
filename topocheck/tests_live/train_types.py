"""The rows of a scaling run: training steps, patterns of exchange, and a small real task."""

from __future__ import annotations

import msgspec

HOOKS = ("none", "fp16", "bf16", "powersgd", "8bit_tensor", "8bit_channel")
"""Gradient compression by torch's own communication hooks; `none` is DDP's all_reduce in full precision."""
HOOK_NAMES = {
    "none": "full precision",
    "fp16": "fp16_compress_hook",
    "bf16": "bf16_compress_hook",
    "powersgd": "PowerSGD, rank 1",
    "8bit_tensor": "8 bits, quantization_pertensor_hook",
    "8bit_channel": "8 bits, quantization_perchannel_hook",
}
PATTERNS = ("backend", "ring", "parameter_server")
MIB = 1 << 20


class TrainRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row.

    Attributes:
        kind: step (a data-parallel training step of a synthetic model), pattern (one exchange of all gradients) or
            digits (training on scikit-learn's digits to an accuracy).
        device: host or gpu: where model and gradients live.
        gradient_bytes: of the synthetic model, fp32.
        batch: samples a rank takes in one step.
        bucket_mib: DDP's bucket_cap_mb, in MiB; 0 for torch's default (25).
        pattern: of PATTERNS, for kind pattern.
        exact: also measure how far the averaged gradient is from the exact mean.
    """

    id: str
    kind: str = "step"
    backend: str
    device: str = "host"
    ranks: int
    gradient_bytes: int = 0
    batch: int = 32
    hook: str = "none"
    bucket_mib: float = 0.0
    pattern: str = ""
    exact: bool = False
    epochs: int = 8
    samples: int = 5
    sample_s: float = 0.2


class TrainJob(msgspec.Struct, frozen=True, kw_only=True):
    """What every rank is told."""

    rows: tuple[TrainRow, ...]


SMALLEST_BYTES = 2 * 4 * 128 * 128
"""Gradients of the smallest model: two layers of 128 x 128 in fp32."""


def layers_of(gradient_bytes: int) -> tuple[int, int]:
    """Return (width, layers) of a model of square linear layers whose fp32 gradients come nearest to a size."""
    width = 128 if gradient_bytes < 2 * MIB else 512 if gradient_bytes <= 64 * MIB else 2048
    return width, max(2, round(gradient_bytes / (4 * width * width)))
