"""The rows of a scaling run: training steps, patterns of exchange, and a small real task."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from topocheck.model.measurement import Backend, Hook, Pattern

HOOKS: tuple[Hook, ...] = get_args(Hook)
"""Gradient compression by communication hooks of DDP; `none` is DDP's all_reduce in full precision."""
USUAL_HOOKS: tuple[Hook, ...] = ("none", "fp16", "bf16", "8bit_tensor", "8bit_channel", "powersgd")
"""Those whose step takes little longer than one without; `lab compression` runs all."""
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
Device = Literal["host", "gpu"]
Model = Literal["mlp", "rnn", "transformer"]
MODELS: tuple[Model, ...] = get_args(Model)
MIB = 1 << 20


class TrainRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row.

    Attributes:
        kind: step (a data-parallel training step of a synthetic model), pattern (one exchange of all gradients) or
            digits (training on scikit-learn's digits to an accuracy).
        device: host or gpu: where model and gradients live.
        model: mlp (square linear layers, as many as `gradient_bytes` asks for), rnn or transformer (of one size).
        gradient_bytes: of the synthetic model, fp32.
        batch: samples a rank takes in one step.
        bucket_mib: DDP's bucket_cap_mb, in MiB; 0 for torch's default (25).
        pattern: of PATTERNS, for kind pattern.
        data: file of images in the idx format for kind digits; empty for scikit-learn's.
        exact: also measure how far the averaged gradient is from the exact mean.
        limit_s: of one step, and of all epochs of the digits: what takes longer is stopped there, and says so.
    """

    id: str
    kind: Literal["step", "pattern", "digits"] = "step"
    backend: Backend
    device: Device = "host"
    ranks: int
    model: Model = "mlp"
    gradient_bytes: int = 0
    batch: int = 32
    hook: Hook = "none"
    bucket_mib: float = 0.0
    pattern: Literal[Pattern, ""] = ""
    exact: bool = False
    epochs: int = 8
    samples: int = 5
    sample_s: float = 0.2
    limit_s: float = 20.0
    data: str = ""


SMALLEST_BYTES = 2 * 4 * 128 * 128
"""Gradients of the smallest model: two layers of 128 x 128 in fp32."""


def layers_of(gradient_bytes: int) -> tuple[int, int]:
    """Return (width, layers) of a model of square linear layers whose fp32 gradients come nearest to a size."""
    width = 128 if gradient_bytes < 2 * MIB else 512 if gradient_bytes <= 64 * MIB else 2048
    return width, max(2, round(gradient_bytes / (4 * width * width)))
