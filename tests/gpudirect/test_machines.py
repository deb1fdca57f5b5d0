"""Verdicts on the described machines: where the evidence is complete, no pair is unknown."""

from __future__ import annotations

import pytest

from tests.machines.builder import names
from tests.topology.described import cached, read
from topocheck.gpudirect import judge
from topocheck.model.base import known
from topocheck.model.node import Node
from topocheck.topology.build import build
from topocheck.topology.types import Topology


def _incomplete(node: Node, t: Topology, *addresses: str) -> bool:
    """A guest hides its host; a GPU that is lost or that no driver drives tells nothing."""
    told = {g.address for g in t.gpus if g.on_bus and g.nvml is not None}
    gpus = {g.address for g in t.gpus}
    return known(node.system.hypervisor) or any(a in gpus and a not in told for a in addresses)


@pytest.mark.parametrize("name", names())
def test_no_pair_is_unknown_where_the_evidence_is_complete(name: str) -> None:
    node = cached(name)
    t = build(node)
    verdicts = judge(node, t)
    for v in (*verdicts.p2p, *verdicts.rdma):
        assert v.verdict != "unknown" or _incomplete(node, t, v.from_, v.to), v.reasons


@pytest.mark.parametrize("name", names())
def test_every_pair_has_its_verdict_and_every_verdict_its_reason(name: str) -> None:
    node = cached(name)
    t = build(node)
    verdicts = judge(node, t)
    n = len(t.gpus)
    assert len(verdicts.p2p) == n * (n - 1)
    assert len(verdicts.rdma) == n * len(t.nics)
    for v in (*verdicts.p2p, *verdicts.rdma):
        assert any(r.effect == v.verdict.value for r in v.reasons)
        assert all(r.text and r.effect in ("yes", "degraded", "no", "unknown", "info") for r in v.reasons)


def test_geforce_without_p2p() -> None:
    node = cached("rtx4090_x8")
    assert {v.verdict.value for v in judge(node, build(node)).p2p} == {"no"}


def test_a_lost_gpu_takes_seven_pairs_with_it() -> None:
    node = cached("gpu_lost")
    found = [v.verdict.value for v in judge(node, build(node)).p2p]
    assert found.count("unknown") == 14  # both directions of 7 pairs
    assert found.count("yes") == 42


def test_without_root_a_healthy_nvlink_machine_loses_no_verdict() -> None:
    node = read("hgx_h100_cx7", system={"root": False})
    assert {v.verdict.value for v in judge(node, build(node)).p2p} == {"yes"}
