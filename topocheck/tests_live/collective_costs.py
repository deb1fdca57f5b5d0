"""nccl-tests' factors, and the least a collective can cost on links of a given latency and rate.

Sizes as nccl-tests counts them (doc/PERFORMANCE.md of NVIDIA/nccl-tests): one rank's buffer for all_reduce,
broadcast, reduce and send/recv; the whole of n parts for all_gather, reduce_scatter and all_to_all.
"""

from __future__ import annotations

import math


def busbw_factor(collective: str, ranks: int) -> float:
    """Return busbw / algbw; 0 for the collectives of one rank that move nothing.

    Raises:
        ValueError: not a collective of topocheck.
    """
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    if collective in ("broadcast", "reduce", "send_recv"):
        return 1.0
    raise ValueError(f"no busbw factor known for {collective!r}")


def ring_seconds(collective: str, ranks: int, size_bytes: float, hop_s: float, rate: float, chunks: int = 64) -> float:
    """Return the time of the ring (or pipelined chain) algorithm.

    Args:
        collective: name of it.
        ranks: members.
        size_bytes: as nccl-tests counts.
        hop_s: seconds a hop costs before its first byte.
        rate: bytes per second of a link, one direction.
        chunks: pieces of a pipelined chain (broadcast, reduce).
    """
    n, s = ranks, size_bytes
    if collective == "all_reduce":
        return 2 * (n - 1) * hop_s + 2 * (n - 1) / n * s / rate
    if collective in ("all_gather", "reduce_scatter", "all_to_all"):
        return (n - 1) * hop_s + (n - 1) / n * s / rate
    if collective in ("broadcast", "reduce"):
        return (n - 2 + chunks) * hop_s + (n - 2 + chunks) / chunks * s / rate
    return hop_s + s / rate


def tree_seconds(ranks: int, size_bytes: float, hop_s: float, rate: float) -> float:
    """Return the time of all_reduce by two complementary binary trees: each rank sends twice the buffer in all."""
    return 2 * math.log2(ranks) * hop_s + 2 * size_bytes / rate


def least_seconds(collective: str, ranks: int, size_bytes: float, hop_s: float, rate: float) -> float:
    """Return a bound that no algorithm without reduction in the switch can beat."""
    steps = math.ceil(math.log2(ranks)) * hop_s
    return max(steps, busbw_factor(collective, ranks) * size_bytes / rate)


def cut_seconds(links: list[tuple[float, float]]) -> float:
    """Return the least time by the cut bound, from (bytes that must pass, bytes per second) of each link."""
    return max((moved / rate for moved, rate in links), default=0.0)
