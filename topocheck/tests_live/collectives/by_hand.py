"""Collectives made of sends and receives, over any wire."""

from __future__ import annotations

from typing import Any

from topocheck.tests_live.collectives.wire import Wire


def ring(torch: Any, wire: Wire, buffer: Any) -> None:
    """Sum a flat buffer in place: n - 1 steps of reduce-scatter, then n - 1 of all-gather.

    P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
    """
    n, me = wire.size, wire.rank
    parts = list(buffer.tensor_split(n))
    incoming = [torch.empty_like(p) for p in parts]
    right, left = (me + 1) % n, (me - 1) % n
    for step in range(2 * (n - 1)):
        gather = step >= n - 1
        k = step - (n - 1) if gather else step
        out = (me + 1 - k) % n if gather else (me - k) % n
        into = (out - 1) % n
        wire.swap([(parts[out], right)], [(incoming[into], left)])
        if gather:
            parts[into].copy_(incoming[into])
        else:
            parts[into].add_(incoming[into])


def ring_broadcast(wire: Wire, buffer: Any, pieces: int) -> None:
    """Bring rank 0's buffer along the ring in pieces: a rank passes a piece on while the next one comes."""
    me, last = wire.rank, wire.size - 1
    parts = list(buffer.tensor_split(pieces))
    for step in range(pieces + 1):
        receives = [(parts[step], me - 1)] if me > 0 and step < pieces else []
        sends = [(parts[step - 1], me + 1)] if me < last and step > 0 else []
        wire.swap(sends, receives)
