"""Gradient compression: what each method sends. Pure.

fp16, bf16 and PowerSGD are summed on the way (all_reduce); the sum of the others is no longer of their form, so every
rank gets every other rank's (all_gather). 8-bit floats: P. Micikevicius et al., "FP8 formats for deep learning" (2022).
Top-k with error feedback: S. Stich et al., "Sparsified SGD with memory" (2018). Signs with error feedback: F. Seide et
al., "1-bit stochastic gradient descent" (2014), S. Karimireddy et al., "Error feedback fixes SignSGD" (2019). PowerSGD:
T. Vogels et al. (2019).
"""

from __future__ import annotations

import math

from topocheck.model.measurement import Hook

CHANNEL = 512
"""Elements that share a scale, as in torch's quantization_perchannel_hook."""
TOPK_SHARE = 0.01
"""Share of the elements that top-k sends."""
ALL_REDUCED: tuple[Hook, ...] = ("none", "fp16", "bf16", "powersgd")


def topk_count(elements: int) -> int:
    """Return how many elements top-k sends, one at least."""
    return max(1, int(elements * TOPK_SHARE))


def square(elements: int) -> tuple[int, int]:
    """Return (rows, columns) of the matrix that PowerSGD makes of a flat gradient, padded with zeros."""
    rows = max(1, math.isqrt(elements))
    return rows, -(-elements // rows)


def payload_bytes(hook: Hook, elements: int) -> int:
    """Return the bytes of one rank's gradient as a method encodes it.

    int8: one byte an element and a scale of four bytes per tensor or per channel of CHANNEL. float8: likewise, one
    scale. top-k: value and index, four bytes each. sign: one bit an element and one scale. PowerSGD of rank 1: a row
    and a column in fp32.
    """
    rows, columns = square(elements)
    return {
        "none": 4 * elements,
        "fp16": 2 * elements,
        "bf16": 2 * elements,
        "fp8": elements + 4,
        "8bit_tensor": elements + 4,
        "8bit_channel": -(-elements // CHANNEL) * (CHANNEL + 4),
        "topk": 8 * topk_count(elements),
        "sign": -(-elements // 8) + 4,
        "powersgd": 4 * (rows + columns),
    }[hook]


def sent_bytes(hook: Hook, elements: int, ranks: int) -> float:
    """Return the bytes that each rank sends in one step by a ring.

    all_reduce: 2 (n - 1) / n of the payload; all_gather: n - 1 times the payload.
    """
    size = payload_bytes(hook, elements)
    return 2 * (ranks - 1) / ranks * size if hook in ALL_REDUCED else float((ranks - 1) * size)
