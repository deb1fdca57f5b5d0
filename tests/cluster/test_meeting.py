"""What tells one node from another, by launcher; and who is named when somebody does not come."""

from __future__ import annotations

import pytest

from topocheck.tests_live.launch.exchange import RankWord, name_unresponsive
from topocheck.tests_live.launch.world import node_key


@pytest.mark.parametrize(
    ("launcher", "environ", "key"),
    [
        ("slurm", {"SLURMD_NODENAME": "n1", "SLURM_NODEID": "0"}, "n1"),
        ("slurm", {"SLURM_NODEID": "1"}, "host/1"),
        ("slurm", {}, "host"),
        ("torchrun", {"GROUP_RANK": "3", "GROUP_WORLD_SIZE": "4"}, "host/3"),
        ("torchrun", {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}, "host"),
        ("openmpi", {"OMPI_COMM_WORLD_RANK": "5"}, "host"),
        ("openmpi", {"TOPOCHECK_NODE": "blade7"}, "blade7"),
        ("slurm", {"TOPOCHECK_NODE": "blade7", "SLURMD_NODENAME": "n1"}, "blade7"),
    ],
)
def test_node_key(launcher, environ, key):
    assert node_key(environ, launcher, "host") == key


def test_silent_nodes_by_the_launchers_list():
    words = {0: RankWord(node="n1"), 1: RankWord(node="n2")}
    said = name_unresponsive(words, {2: ""}, ["n1", "n2", "n3"], 60)
    assert list(said) == ["n3"]
    assert "60 s" in said["n3"]


def test_a_node_that_began_and_did_not_finish():
    said = name_unresponsive({0: RankWord(node="n1")}, {1: "n2"}, [], 30)
    assert "rank 1" in said["n2"]


def test_ranks_where_no_node_is_known():
    assert list(name_unresponsive({0: RankWord(node="n1")}, {1: "", 2: ""}, [], 30)) == ["ranks 1-2"]


def test_an_error_is_told_of_its_node():
    said = name_unresponsive({0: RankWord(node="n1"), 1: RankWord(node="n2", error="InputError: x")}, {}, [], 30)
    assert "InputError: x" in said["n2"]
