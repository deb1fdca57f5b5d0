"""Verdicts on the described machines: where the evidence is complete, no pair is unknown."""

from __future__ import annotations

import pytest

from tests.machines.builder import names
from tests.topology.described import cached, read
from topocheck.gpudirect import judge
from topocheck.model.base import Missing, known
from topocheck.model.node import Node
from topocheck.topology.build import build
from topocheck.topology.types import Topology


def _incomplete(node: Node, t: Topology, *addresses: str) -> bool:
    """A guest hides its host; a GPU that is lost or undriven tells nothing; firmware may not place a NIC."""
    told = {g.address for g in t.gpus if g.on_bus and g.nvml is not None}
    gpus = {g.address for g in t.gpus}
    if isinstance(t.path(addresses[0], addresses[1]).crosses_nodes, Missing):
        return True
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


def test_nothing_is_advised_against_what_a_product_is_sold_without() -> None:
    """NVML says CNS, and BAR1 is small; neither a driver nor a larger window gives a GeForce peer access."""
    node = cached("rtx4090_x8")
    steps = [r for v in judge(node, build(node)).p2p for r in v.reasons]
    assert {r.text.split("; ")[-1] for r in steps if r.effect == "no"} == {
        "the product is sold without peer access over PCIe"
    }
    assert any("BAR1" in r.text for r in steps)
    assert {r.fix for r in steps} == {None}


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


def _fixes(name: str, kind: str) -> dict[str, set[str]]:
    """Return verdict -> all fixes given with it."""
    node = cached(name)
    found: dict[str, set[str]] = {}
    for v in getattr(judge(node, build(node)), kind):
        found.setdefault(v.verdict.value, set()).update(r.fix for r in v.reasons if r.fix)
    return found


def test_no_road_is_advised_into_a_gpu_that_takes_none() -> None:
    # GB10: CUDA says that it does not support GPUDirect RDMA; its open module is on kernel 6.11.
    assert _fixes("gb10", "rdma") == {"no": {"cable it and bring the port up, if it is meant to work"}}


def test_the_open_modules_are_not_advised_for_volta() -> None:
    # V100: the open kernel modules drive Turing and newer ones.
    assert _fixes("dgx1v", "rdma")["yes"] == set()
    assert not any("open kernel modules" in f for fixes in _fixes("dgx1v", "rdma").values() for f in fixes)


def test_mig_is_the_one_cause_of_a_refusal() -> None:
    assert _fixes("mig_node", "p2p")["no"] == {"nvidia-smi -i 0 -mig 0 (stops everything that runs on it)"}


def test_reads_and_writes_refused_alike_are_one_reason() -> None:
    node = cached("rtx4090_x8")
    first = judge(node, build(node)).p2p[0]
    (refused,) = [r for r in first.reasons if "refused" in r.text]
    assert refused.text.startswith("peer reads and writes refused")
    assert [e.source for e in refused.evidence] == [
        "NVML DeviceGetP2PStatus(0, 1, 0)",
        "NVML DeviceGetP2PStatus(0, 1, 1)",
    ]
