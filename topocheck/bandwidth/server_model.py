"""Parameter servers against a ring, by the cost model of one message. Pure.

n workers, k servers that hold 1 / k of the parameters each, S bytes of gradients, alpha seconds and beta bytes per
second of one direction of a link; a worker computes for `compute_s` before it sends. M. Li et al., "Scaling distributed
machine learning with the parameter server" (OSDI 2014); staleness as W. Zhang et al. count it, "Staleness-aware
async-SGD for distributed deep learning" (IJCAI 2016): updates that others made between a worker's pull and its push.
"""

from __future__ import annotations

from topocheck.bandwidth.collective_model import ring_all_reduce_s


def ring_step_s(workers: int, size_bytes: float, compute_s: float, alpha_s: float, beta: float) -> float:
    """Return a step of data-parallel training whose gradients a ring sums."""
    return compute_s + (ring_all_reduce_s(workers, size_bytes, alpha_s, beta) if workers > 1 else 0.0)


def synchronous_step_s(
    workers: int, servers: int, size_bytes: float, compute_s: float, alpha_s: float, beta: float
) -> float:
    """Return a step in which the servers wait for all workers.

    A server's port takes n parts of S / k bytes and gives n back: 2 n S / (k beta), or 2 S / beta where a worker's own
    port is the narrower one.
    """
    widest = max(workers / servers, 1.0)
    return compute_s + 2 * alpha_s + 2 * widest * size_bytes / beta


def asynchronous_steps_per_s(
    workers: int, servers: int, size_bytes: float, compute_s: float, alpha_s: float, beta: float
) -> float:
    """Return the updates a second of all workers together, where a server answers each by itself.

    A worker alone needs compute + 2 alpha + 2 S / beta a step. A server's port takes no more than k beta / S updates a
    second, and gives as many back at the same time.
    """
    alone = compute_s + 2 * alpha_s + 2 * size_bytes / beta
    return min(workers / alone, servers * beta / size_bytes)


def mean_staleness(workers: int) -> float:
    """Return the mean staleness of workers of one speed: between a pull and a push each of the others pushes once."""
    return float(workers - 1)
