"""nccl-tests' factors between algorithm and bus bandwidth.

Sizes as nccl-tests counts them (doc/PERFORMANCE.md of NVIDIA/nccl-tests): one rank's buffer for all_reduce,
broadcast, reduce and send/recv; the whole of n parts for all_gather, reduce_scatter and all_to_all.
"""

from __future__ import annotations


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
