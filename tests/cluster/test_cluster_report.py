"""From the words of all ranks to one report: groups, the odd node, settings, ranks, who is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.snapshots import record
from topocheck.cli.cluster import _bytes, _judge, mixed, recording_of
from topocheck.render.cluster import ClusterReport, cluster_json, cluster_markdown, cluster_text
from topocheck.render.page import Style
from topocheck.tests_live.launch.exchange import Heard, RankWord

RANK = {"SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_ID": "0"}


def word(rank: int, node: str, *, asks: bool = True, local: int = 0, settings: dict[str, str] | None = None, **changed):
    told = {**RANK, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local), "SLURMD_NODENAME": node}
    answers = record("hgx_h100_cx7", environment={**told, **(settings or {})}, **changed)
    own = {q: a for q, a in answers.items() if q.startswith(("environ:", "process:")) or "/proc/self/" in q}
    return RankWord(node=node, machine=_bytes(answers) if asks else b"", own=_bytes(own))


@pytest.fixture(scope="module")
def report() -> ClusterReport:
    words = {
        0: word(0, "n1"),
        1: word(1, "n2", settings={"NCCL_ALGO": "Tree"}),
        2: word(2, "n3"),
        3: word(3, "n4", patch={"GPU3": {"now": "5x8"}}),
        4: word(4, "n4", asks=False, local=0),
    }
    return _judge(Heard(words=words, unresponsive={"n9": "no rank of it came within 60 s"}), "slurm")


def test_equal_nodes_are_one_group_and_the_odd_one_says_what_differs(report):
    (kind,) = report.fleet.hardware_types
    assert kind.groups[0].nodes == ("n1", "n3")
    odd = {o.name: o for o in report.fleet.outliers}
    assert set(odd) == {"n2", "n4"}
    assert any("NCCL_ALGO" in d.device for d in odd["n2"].differences)
    assert any("width" in d.field for d in odd["n4"].differences)


def test_the_narrow_link_is_a_finding_of_its_node(report):
    assert [f.nodes for f in report.fleet.findings if "link-width" in f.id] == [("n4",)]


def test_every_rank_has_its_place(report):
    assert [(p.rank, p.node) for p in report.places] == [(0, "n1"), (1, "n2"), (2, "n3"), (3, "n4"), (4, "n4")]
    assert all(p.gpu is not None for p in report.places)
    # Ranks 3 and 4 say they are local rank 0 of one node: both would take its first GPU.
    assert any(set(p.ranks) == {3, 4} and "ranks on GPU0" in p.text for p in report.problems)


def test_a_setting_of_one_rank_is_told(report):
    assert dict(report.differing_settings) == {"NCCL_ALGO": ("Tree: rank 1", "not set: ranks 0,2-4")}


def test_the_missing_node_comes_with_the_others(report):
    text = cluster_text(report, Style(width=100))
    assert "n9: no rank of it came" in text
    assert "4 nodes, 1 did not answer, 2 outlier nodes, " in text.splitlines()[0]
    assert "n4" in text
    assert json.loads(cluster_json(report))["unresponsive"] == {"n9": "no rank of it came within 60 s"}
    assert "**n9** did not answer" in cluster_markdown(report)


def test_a_broken_recording_loses_one_node():
    got = _judge(Heard(words={0: word(0, "n1"), 1: RankWord(node="n2", machine=b"rubbish", own=b"rubbish")}), "slurm")
    assert got.fleet.nodes == 1
    assert "n2" in got.unresponsive


def test_a_rank_that_says_rubbish_of_itself_loses_itself():
    good = word(0, "n1")
    words = {0: good, 1: RankWord(node="n1", own=b"rubbish"), 2: RankWord(node="n1", machine=b"another", own=good.own)}
    got = _judge(Heard(words=words), "slurm")
    assert [p.node for p in got.places] == ["n1", "n1"]
    (who,) = got.unresponsive
    assert who == "rank 1 on node n1"
    assert "sent no usable snapshot of itself" in got.unresponsive[who]


def test_differing_settings():
    assert mixed({"NCCL_X": {"1": [0, 1]}}, [0, 1]) == ()
    assert mixed({"NCCL_X": {"1": [0], "2": [1]}}, [0, 1]) == (("NCCL_X", ("1: rank 0", "2: rank 1")),)
    assert mixed({"NCCL_HOSTID": {"a": [0], "b": [1]}}, [0, 1]) == ()


def test_a_recording_per_node():
    assert recording_of(Path("/x/%N.snap"), "n1") == Path("/x/n1.snap")
    assert recording_of(Path("/x/{node}.snap"), "host/1") == Path("/x/host_1.snap")
