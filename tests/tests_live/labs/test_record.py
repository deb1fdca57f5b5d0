"""The experiment record: from a node's facts, and of all nodes of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from topocheck.cli.common import open_host
from topocheck.model.lab import NodeRecord
from topocheck.pipeline import read_node
from topocheck.tests_live.labs import record
from topocheck.tests_live.labs.run import from_first
from topocheck.tests_live.launch.exchange import Gathered
from topocheck.tests_live.launch.world import LaunchError, World
from topocheck.tests_live.training.report_types import JobLayout
from topocheck.topology.build import build

HALF = Path(__file__).parents[3] / "docs" / "examples" / "half_width.snap"
JOB = JobLayout(ranks=4, nodes=2, launcher="slurm")


def test_of_a_snapshot() -> None:
    node = read_node(open_host([HALF]))
    got = record.node_record(node, build(node), "a", 96)
    assert (got.node, got.cpus) == ("a", 96)
    assert got.gpus == "8 x NVIDIA H100 80GB HBM3"
    # Eight GPUs make 28 pairs, all through NVSwitches.
    assert got.gpu_connection == "NV18 (28 of 28 pairs)"
    assert got.nics == "8 x MT4129 (400 Gb/s), 2 x MT4125 (100 Gb/s)"
    assert got.driver == "570.124.06"
    assert (got.cuda, got.framework, got.settings) == ("12.8", "torch 2.6.0", "NCCL_P2P_DISABLE=1")


class Meeting:
    """Names ranks; nothing is sent."""

    def scoped(self, prefix: str) -> Meeting:
        return self

    def name(self, rank: int) -> str:
        return f"rank {rank} on node b"


def of_all(monkeypatch: pytest.MonkeyPatch, got: Gathered | None) -> Any:
    monkeypatch.setattr(record, "gather", lambda meeting, mine, deadline_s: got)
    meeting: Any = Meeting()
    return record.job_record(JOB, NodeRecord(node="a"), meeting, 1.0)


def test_of_a_job_each_node_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {r: msgspec.msgpack.encode(NodeRecord(node="ab"[r // 2])) for r in range(4)}
    got = of_all(monkeypatch, Gathered(payloads=words, missing={}))
    assert [n.node for n in got.nodes] == ["a", "b"]
    assert (got.ranks, got.servers, got.launcher, got.missing) == (4, 2, "slurm", {})


def test_what_another_rank_sends_is_decoded_strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {
        0: msgspec.msgpack.encode(NodeRecord(node="a")),
        1: b"\xc1",
        2: msgspec.msgpack.encode({"node": "b", "cpu": "x" * 10_000}),
    }
    got = of_all(monkeypatch, Gathered(payloads=words, missing={3: "rank 3 sent nothing within 1 s"}))
    assert [n.node for n in got.nodes] == ["a"]
    assert got.missing["rank 1"].startswith("rank 1 on node b sent something invalid")
    assert got.missing["rank 2"].startswith("rank 2 on node b sent something invalid")
    assert got.missing["rank 3"] == "rank 3 sent nothing within 1 s"


def test_ranks_other_than_0_know_their_own_node(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [n.node for n in of_all(monkeypatch, None).nodes] == ["a"]


class Store(Meeting):
    """Keys that all ranks of a test share."""

    def __init__(self, rank: int, keys: dict[str, bytes]) -> None:
        self.keys, self.world = keys, World(launcher="slurm", rank=rank, size=2)

    def scoped(self, prefix: str) -> Store:
        return self

    def put(self, key: str, value: bytes) -> None:
        self.keys[key] = value

    def get(self, key: str, wait_s: float) -> bytes | None:
        return self.keys.get(key)


def test_all_ranks_run_what_rank_0_says() -> None:
    keys: dict[str, bytes] = {}
    first, other = (cast(Any, Store(r, keys)) for r in (0, 1))
    with pytest.raises(LaunchError, match="rank 0 did not say"):
        from_first(other, "gdr", {})
    assert from_first(first, "gdr", {"why": "no NIC"}) == {"why": "no NIC"}
    assert from_first(other, "gdr", {"why": ""}) == {"why": "no NIC"}
    assert from_first(None, "gdr", {"why": ""}) == {"why": ""}
    keys["gdr"] = b"\xc1"
    with pytest.raises(LaunchError, match="rank 0 sent something invalid"):
        from_first(other, "gdr", {})
