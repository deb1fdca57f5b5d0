"""Lower bounds of collectives: published numbers of DGX-1, and graphs small enough to count by hand."""

from __future__ import annotations

from fractions import Fraction as F

import pytest

from topocheck.bandwidth.lower_bounds import COLLECTIVES, bounds, dense, diameter, joined, ring, seconds, tree

DGX1 = dense(
    [
        [0, 2, 1, 1, 2, 0, 0, 0],
        [2, 0, 1, 2, 0, 1, 0, 0],
        [1, 1, 0, 2, 0, 0, 2, 0],
        [1, 2, 2, 0, 0, 0, 0, 1],
        [2, 0, 0, 0, 0, 2, 1, 1],
        [0, 1, 0, 0, 2, 0, 1, 2],
        [0, 0, 2, 0, 1, 1, 0, 2],
        [0, 0, 0, 1, 1, 2, 2, 0],
    ],
    25.0,
)
"""NVLinks between the GPUs of a DGX-1 with V100, as sccl/topologies/nvidia.py of microsoft/msccl-tools lists them."""


def test_dgx1_as_published():
    found = {b.collective: b for b in bounds(DGX1)}
    # msccl-tools, dgx1(): "self.beta_bound = Fraction(7,6)", "self.diameter = 2", both of all_gather.
    assert (found["all_gather"].steps, found["all_gather"].rounds_per_chunk) == (2, F(7, 6))
    # SCCL (PPoPP 2021), table 4: the best all_reduce has C, R = 48, 14 and all_to_all 24, 8.
    assert found["all_reduce"].rounds_per_chunk == F(14, 48)
    assert found["all_to_all"].rounds_per_chunk == F(8, 24)
    # NCCL's six rings have C, S, R = 6, 7, 7 for all_gather and 48, 14, 14 for all_reduce there.
    assert ring("all_gather", 8, F(6)) == (7, F(7, 6))
    assert ring("all_reduce", 8, F(6)) == (14, F(14, 48))


def test_no_algorithm_of_sccl_beats_the_bounds():
    """Table 4 of the paper for DGX-1: (collective, C, S, R)."""
    found = {b.collective: b for b in bounds(DGX1)}
    for name, chunks, steps, rounds in [
        ("all_gather", 1, 2, 2), ("all_gather", 6, 3, 7), ("all_gather", 6, 7, 7), ("all_reduce", 8, 4, 4),
        ("all_reduce", 48, 6, 14), ("all_reduce", 48, 14, 14), ("broadcast", 2, 2, 2), ("all_to_all", 8, 3, 3),
        ("all_to_all", 24, 8, 8),
    ]:  # fmt: skip
        assert steps >= found[name].steps, name
        assert F(rounds, chunks) >= found[name].rounds_per_chunk, name


def test_a_switch_is_no_step_and_its_links_count_once():
    # Four ranks with one link each into a switch: each must receive 3 C over it.
    star = joined({(r, "switch"): 100.0 for r in range(4)}, 4)
    found = {b.collective: b for b in bounds(star)}
    assert diameter(star) == 1
    assert found["all_gather"].rounds_per_chunk == 3
    assert found["reduce_scatter"].rounds_per_chunk == F(3, 4)
    assert found["all_reduce"].rounds_per_chunk == F(3, 2)
    assert found["broadcast"].rounds_per_chunk == 1
    assert found["all_to_all"].rounds_per_chunk == F(3, 4)


def test_the_narrow_link_between_two_switches_limits():
    # Two pairs behind a switch each; one link of the same width joins the switches.
    pairs = {(0, "a"): 10.0, (1, "a"): 10.0, (2, "b"): 10.0, (3, "b"): 10.0, ("a", "b"): 10.0}
    found = {b.collective: b for b in bounds(joined(pairs, 4))}
    # all_gather: a rank needs 3 C by its own link; 2 C cross between the switches. all_to_all: 2 x 2 / 4 C cross.
    assert found["all_gather"].rounds_per_chunk == 3
    assert found["all_to_all"].rounds_per_chunk == 1
    assert found["all_to_all"].limited_by == "the links into ranks 0, 1, 1 wide"


def test_a_ring_of_four_by_hand():
    square = joined({(0, 1): 1.0, (1, 2): 1.0, (2, 3): 1.0, (3, 0): 1.0}, 4)
    found = {b.collective: b for b in bounds(square)}
    # Two links lead into each rank, which needs 3 C: R/C = 3/2; opposite corners are two steps apart.
    assert (found["all_gather"].steps, found["all_gather"].rounds_per_chunk) == (2, F(3, 2))
    assert found["broadcast"].rounds_per_chunk == F(1, 2)


def test_a_rank_out_of_reach_has_no_bounds():
    assert diameter(joined({(0, 1): 1.0}, 3)) is None
    assert bounds(joined({(0, 1): 1.0}, 3)) == ()


@pytest.mark.parametrize("name", COLLECTIVES)
def test_ring_and_tree_never_beat_the_bound(name):
    found = {b.collective: b for b in bounds(DGX1)}
    assert ring(name, 8, F(6))[1] >= found[name].rounds_per_chunk
    way = tree(name, 8, F(6))
    assert way is None or way[1] >= found[name].rounds_per_chunk


def test_seconds():
    (gather,) = (b for b in bounds(DGX1) if b.collective == "all_gather")
    # 2 x 1 us + 7/6 x 25 MB / 25 GB/s = 2 us + 1166.7 us.
    assert seconds(gather, 25e6, 1e-6, 25.0) == pytest.approx(1168.67e-6, rel=1e-5)
