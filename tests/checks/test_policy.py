"""What the policy expects: each expectation fails on a node that lacks it, and is quiet on one that has it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.checks import support
from tests.machines.builder import cached, healthy_names, machine
from topocheck.checks import registry, static_checks, threshold_names
from topocheck.model.base import DENIED, State
from topocheck.policy.load import parse
from topocheck.policy.types import Expect, Policy
from topocheck.policy.write import expectations
from topocheck.render.policy import policy_toml

HGX, LOST = "hgx_h100_cx7", "gpu_lost"


def result(id_: str, name: str, expect: Expect | None, **change: Any) -> tuple[registry.CheckResult, list[State]]:
    facts = support.facts(machine(name, **change) if change else cached(name))
    c = support.context(facts, Policy(expect=expect or Expect()))
    r, found = next(iter(registry.run([x for x in static_checks() if x.id == id_], c)))
    return r, [f.state for f in found]


# HGX H100: 8 GPUs, 18 NVLinks each, PCIe gen 5 x16, and mlx5_0 to mlx5_9 of which eight are 400 Gb/s.
HAS = [
    ("policy.gpus-differ", Expect(gpu_count=8, gpu_model="H100")),
    ("policy.nvlinks-missing", Expect(nvlinks_per_gpu=18)),
    ("policy.nics-differ", Expect(nic_count=10)),
    ("policy.p2p-missing", Expect(p2p_everywhere=True, gdr_pairs=8)),
    ("policy.pcie-slower", Expect(pcie_gen=5, pcie_width=16)),
]
LACKS = [
    ("policy.gpus-differ", Expect(gpu_count=16)),
    ("policy.gpus-differ", Expect(gpu_model="B200")),
    ("policy.nvlinks-missing", Expect(nvlinks_per_gpu=24)),
    ("policy.nics-differ", Expect(nic_count=12)),
    ("policy.nics-differ", Expect(nic_rate_gbit_s=800)),
    ("policy.p2p-missing", Expect(gdr_pairs=1000)),
    ("policy.pcie-slower", Expect(pcie_gen=6)),
    ("policy.pcie-slower", Expect(pcie_width=32)),
]


@pytest.mark.parametrize(("id_", "expect"), HAS)
def test_a_node_that_has_it(id_: str, expect: Expect) -> None:
    r, states = result(id_, HGX, expect)
    assert (r.state, states) == (State.OK, [])


@pytest.mark.parametrize(("id_", "expect"), LACKS)
def test_a_node_that_lacks_it(id_: str, expect: Expect) -> None:
    r, states = result(id_, HGX, expect)
    assert r.state is State.FAIL
    assert set(states) == {State.FAIL}


def _advice(id_: str, name: str, expect: Expect, **change: Any) -> set[str | None]:
    """The fixes of a check's failures."""
    c = support.context(support.facts(machine(name, **change)), Policy(expect=expect))
    _, found = next(iter(registry.run([x for x in static_checks() if x.id == id_], c)))
    return {f.fix for f in found}


# A DGX A100 under the policy of an HGX H100: 12 NICs where 10 are expected, and cards of 12 NVLinks and PCIe gen 4.
@pytest.mark.parametrize(
    ("id_", "expect", "words"),
    [
        ("policy.nics-differ", Expect(nic_count=10), "correct the policy: this node has more"),
        ("policy.nics-differ", Expect(nic_count=14), "look for the missing card"),
        ("policy.nvlinks-missing", Expect(nvlinks_per_gpu=18), "NVIDIA A100-SXM4-40GB has 12 NVLinks"),
        ("policy.pcie-slower", Expect(pcie_gen=5), "the card itself can do no more than generation 4"),
        ("policy.pcie-slower", Expect(pcie_width=32), "the card itself can do no more than width 16"),
    ],
)
def test_the_advice_looks_for_nothing_that_is_not_missing(id_: str, expect: Expect, words: str) -> None:
    (fix,) = _advice(id_, "dgx_a100", expect)
    assert fix is not None
    assert words in fix


def test_a_link_that_is_down_is_the_boards_matter() -> None:
    (fix,) = _advice("policy.nvlinks-missing", HGX, Expect(nvlinks_per_gpu=18), gpu={"3": {"links_down": [4]}})
    assert fix == "reset the GPU, then have its board checked"


def test_mig_is_told_as_the_reason_and_what_to_do() -> None:
    c = support.context(support.facts(cached("mig_node")), Policy(expect=Expect(p2p_everywhere=True)))
    _, found = next(iter(registry.run([x for x in static_checks() if x.id == "policy.p2p-missing"], c)))
    assert found
    assert all("split by MIG" in f.title for f in found)
    assert all(f.fix is not None and "-mig 0" in f.fix for f in found)


@pytest.mark.parametrize("id_", sorted({i for i, _ in HAS} | {"policy.driver-differs"}))
def test_nothing_is_judged_where_nothing_is_expected(id_: str) -> None:
    assert result(id_, HGX, None)[0].state is State.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("wanted", "state"),
    [("570", State.OK), ("570.124.06", State.OK), ("57", State.FAIL), ("570.1", State.FAIL), ("580", State.FAIL)],
)
def test_a_driver_version_or_its_beginning_up_to_a_dot(wanted: str, state: State) -> None:
    change = {"driver": {"version": "570.124.06"}}
    assert result("policy.driver-differs", HGX, Expect(driver_version=wanted), **change)[0].state is state


def test_a_driver_that_does_not_answer_is_unknown() -> None:
    c = support.healthy(HGX)
    nvml = msgspec.structs.replace(c.node.nvml, driver_version=DENIED)
    c = support.context(msgspec.structs.replace(c.node, nvml=nvml), Policy(expect=Expect(driver_version="570")))
    (check,) = (x for x in static_checks() if x.id == "policy.driver-differs")
    assert next(iter(registry.run([check], c)))[0].state is State.UNKNOWN


def test_pairs_without_an_answer_are_unknown_and_never_missing() -> None:
    """One of eight GPUs is off the bus: its 14 ordered pairs are unknown, the 42 others have peer access."""
    _, states = result("policy.p2p-missing", LOST, Expect(p2p_everywhere=True))
    assert states == [State.UNKNOWN] * 14


def test_peer_access_that_is_refused_fails() -> None:
    _, states = result("policy.p2p-missing", "rtx4090_x8", Expect(p2p_everywhere=True))
    assert set(states) == {State.FAIL}
    assert len(states) == 8 * 7


@pytest.mark.parametrize("name", healthy_names())
def test_a_node_keeps_the_policy_that_was_written_from_it(name: str) -> None:
    facts = support.facts(cached(name))

    def failed(policy: Policy) -> set[tuple[str, str]]:
        results = registry.run(static_checks(), support.context(facts, policy))
        return {(f.id, f.subject) for _, found in results for f in found if f.state is State.FAIL}

    plain = support.context(facts, Policy())
    text = policy_toml(expectations(plain.node, plain.topology, plain.gpudirect), plain.node)
    written = parse(text.encode(), "written", threshold_names())
    assert failed(written) <= failed(Policy())


def test_what_a_written_policy_holds() -> None:
    c = support.context(support.facts(cached(HGX)), Policy())
    wants = expectations(c.node, c.topology, c.gpudirect)
    # Eight ports of 400 Gb/s and two of 100, of another model: a rate for each kind, and none for all.
    assert "nic_rate_gbit_s" not in wants
    rates = wants["nic_rates_gbit_s"]
    assert isinstance(rates, dict)
    assert sorted(rates.values()) == [100, 400]
    slow = min(rates, key=lambda k: rates[k])
    c = support.context(support.facts(cached(HGX)), Policy(expect=Expect(nic_rates_gbit_s={**rates, slow: 200})))
    assert [f.state for f in support.findings("policy.nics-differ", c)] == [State.FAIL] * 2
    c = support.context(support.facts(cached(HGX)), Policy(expect=Expect(nic_rates_gbit_s=rates)))
    assert support.findings("policy.nics-differ", c) == ()
    assert (wants["pcie_gen"], wants["pcie_width"], wants["gpu_count"], wants["nic_count"]) == (5, 16, 8, 10)
    # Gen 4 cards that rest at gen 1: what they can do is expected, not how they rest.
    c = support.context(support.facts(cached("rtx4090_x8")), Policy())
    assert expectations(c.node, c.topology, c.gpudirect)["pcie_gen"] == 4
