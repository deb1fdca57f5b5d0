"""What collectives cost by the model t(m) = alpha + m / beta of one message. Pure.

alpha is in seconds, beta in bytes per second of one direction; a rank may send and receive at once. The form is
R. Hockney's ("The communication challenge for MPP", Parallel Computing 20, 1994); the algorithms are those of
R. Thakur, R. Rabenseifner and W. Gropp ("Optimization of collective communication operations in MPICH", 2005) and, for
the ring, of P. Patarasuk and X. Yuan (2009).
"""

from __future__ import annotations

import math


def message_s(size_bytes: float, alpha_s: float, beta: float) -> float:
    """Return the time of one message."""
    return alpha_s + size_bytes / beta


def rooted_s(ranks: int, part_bytes: float, alpha_s: float, beta: float) -> float:
    """Return the time of a gather or scatter of one part a rank.

    The root's port carries n - 1 parts, whatever tree they come by.
    """
    return alpha_s + (ranks - 1) * part_bytes / beta


def ring_all_reduce_s(ranks: int, size_bytes: float, alpha_s: float, beta: float) -> float:
    """Return the time of a ring: 2(n - 1) steps of S / n bytes."""
    return 2 * (ranks - 1) * message_s(size_bytes / ranks, alpha_s, beta)


def ring_part_s(ranks: int, size_bytes: float, alpha_s: float, beta: float) -> float:
    """Return the time of a ring's reduce_scatter or all_gather: n - 1 steps of S / n bytes; S is that of all parts."""
    return (ranks - 1) * message_s(size_bytes / ranks, alpha_s, beta)


def hierarchical_all_reduce_s(
    inside: int, nodes: int, size_bytes: float, near: tuple[float, float], far: tuple[float, float]
) -> float:
    """Return the time of reduce_scatter within each node, all_reduce between nodes, all_gather within.

    Args:
        inside: ranks of a node; each takes 1 / inside of the data to its counterparts on the other nodes.
        nodes: how many.
        size_bytes: S, of one rank's buffer.
        near: (alpha, beta) of two ranks of one node.
        far: of two ranks of different nodes.
    """
    within = 2 * ring_part_s(inside, size_bytes, *near)
    return within + (ring_all_reduce_s(nodes, size_bytes / inside, *far) if nodes > 1 else 0.0)


def tree_broadcast_s(ranks: int, size_bytes: float, alpha_s: float, beta: float) -> float:
    """Return the time of a binomial tree: every step doubles the ranks that have the data."""
    return math.ceil(math.log2(ranks)) * message_s(size_bytes, alpha_s, beta) if ranks > 1 else 0.0


def ring_broadcast_s(ranks: int, size_bytes: float, pieces: int, beta: float, alpha_s: float = 0.0) -> float:
    """Return the time of a broadcast along a ring of K ranks in S pieces.

    Without alpha it is N(S + K - 2) / (S B): the first piece takes K - 1 hops, each further one comes a step later, so
    there are S + K - 2 steps of N / S bytes. With alpha each step costs it once.
    """
    return (pieces + ranks - 2) * message_s(size_bytes / pieces, alpha_s, beta)


def best_pieces(ranks: int, size_bytes: float, alpha_s: float, beta: float) -> int:
    """Return the number of pieces for which `ring_broadcast_s` is least: sqrt(N (K - 2) / (alpha beta)), at least 1."""
    if ranks <= 2 or alpha_s <= 0:
        return 1
    return max(1, round(math.sqrt(size_bytes * (ranks - 2) / (alpha_s * beta))))


def halo_s(neighbours: int, halo_bytes: float, alpha_s: float, beta: float) -> float:
    """Return the time of an exchange of borders with neighbours one after the other, both directions at once."""
    return neighbours * message_s(halo_bytes, alpha_s, beta)
