"""What the cost model says of DDP's buckets: when each is ready, when its exchange ends. Pure.

DDP fills buckets in the order in which the backward pass makes gradients, and exchanges one after the other while the
backward pass goes on; a bucket is exchanged in alpha + bytes / beta (S. Li et al., "PyTorch Distributed: Experiences
on Accelerating Data Parallel Training", VLDB 2020, section 3.2.3).
"""

from __future__ import annotations

from collections.abc import Sequence

from topocheck.bandwidth.fusion import by_size


def step_seconds(
    layers: Sequence[int], cap_bytes: float, *, serial_s: float, backward_s: float, alpha_s: float, rate: float
) -> float:
    """Return the predicted time of one step.

    Args:
        layers: gradient bytes of each layer in the order of the backward pass.
        cap_bytes: bucket size.
        serial_s: a step of one rank, without exchange.
        backward_s: the backward pass of it.
        alpha_s: seconds one all_reduce costs at this number of ranks before its first byte.
        rate: what it tends to, bytes per second as algbw.
    """
    total = sum(layers)
    made, end = 0, 0.0
    for size in by_size(layers, cap_bytes):
        made += size
        ready = backward_s * made / total
        end = max(ready, end) + alpha_s + size / rate
    return serial_s - backward_s + max(backward_s, end)
