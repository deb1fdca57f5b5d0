"""A rank is named with its node, by rank 0 and by every other rank, also where it came and then went silent."""

from __future__ import annotations

import msgspec
import pytest

from tests.tests_live.launch.callers import meeting
from topocheck.cli import placement
from topocheck.placement.ranks import Problem, RankPlace
from topocheck.tests_live.launch.rank_status import RollCall
from topocheck.tests_live.launch.rendezvous import Rendezvous
from topocheck.tests_live.launch.words import ranks_text
from topocheck.tests_live.launch.world import LaunchError


def of_size(rank: Rendezvous, size: int, launcher: str = "torchrun") -> Rendezvous:
    """Return the same rank in a job of which more ranks were to come."""
    larger = msgspec.structs.replace(rank.world, size=size, launcher=launcher)
    return Rendezvous(larger, rank.ticket, rank._connection, rank._place)


@pytest.fixture
def two_nodes(monkeypatch):
    """Two ranks that have met, on nodes a and a: the test's process is one node."""
    monkeypatch.setenv("TOPOCHECK_NODE", "a")
    with meeting(2) as ranks:
        yield ranks


def test_every_rank_knows_the_node_of_the_others(two_nodes):
    for rank in two_nodes:
        assert rank.name(1) == "rank 1 on node a"
        assert rank.name(7) == "rank 7"
        assert rank.names([0, 1]) == "ranks 0-1 on node a"
        assert rank.names([1, 5, 6]) == "ranks 1, 5-6 on node a"


def test_under_slurm_the_nodes_of_which_no_rank_came_are_named(two_nodes, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NODELIST", "a,b[1-2]")
    assert of_size(two_nodes[0], 4, "slurm").names([2, 3]) == "ranks 2-3 on nodes b1, b2"
    # Where it is one node, the one rank that is missing is its rank.
    monkeypatch.setenv("SLURM_STEP_NODELIST", "a,b1")
    assert of_size(two_nodes[0], 3, "slurm").names([2]) == "rank 2 on node b1"


def test_who_does_not_come_is_named_alike_on_all_ranks(two_nodes):
    here = [RollCall(of_size(r, 3).scoped("roll")) for r in two_nodes]
    # Rank 0 decides, and the other ranks repeat what it said.
    for roll in here:
        with pytest.raises(LaunchError, match=r"ranks 1-2 on node a \(of 3\) did not come"):
            roll.wait_for_all(0.2)


def test_placement_says_who_is_missing_and_does_not_call_it_well(two_nodes):
    lost: list[Problem] = []
    mine = RankPlace(rank=0, world_size=4, local_rank=0, node="a")
    places = placement._gathered(of_size(two_nodes[0], 4), mine, lost, 0.3)
    assert [p.rank for p in places] == [0]
    assert {p.ranks: p.state for p in lost} == {(1,): "warn", (2, 3): "warn"}
    assert [p.text for p in lost if p.ranks == (1,)] == ["came from node a and then sent nothing within 0 s"]


def test_a_long_list_of_ranks_is_folded():
    assert ranks_text(range(12)) == "ranks 0-11"
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([*range(5), 9]) == "ranks 0-4, 9"
