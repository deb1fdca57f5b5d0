"""A slow uplink is named, and no node; a slow node is named, and no leaf. Rates made from ports, leaves and a spine."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from topocheck.bandwidth.node_pairs import LeafNodes, NodeHello, NodePairsReport, PairRate
from topocheck.bandwidth.node_pairs_summary import summarize
from topocheck.bandwidth.scatter import PairMeasured
from topocheck.bandwidth.slow_leaves import slow_leaves
from topocheck.bandwidth.slow_links import judge, suspects
from topocheck.checks.network.pairs import judge_pairs
from topocheck.model.base import State
from topocheck.tests_live.nodes.schedule import by_leaf, rounds

RATE = 10.0


def world(leaves: int, each: int) -> dict[str, str]:
    return {f"n{leaf}{i}": f"leaf{leaf}" for leaf in range(leaves) for i in range(each)}


def rates(
    leaf_of: dict[str, str],
    *,
    up: dict[str, float] | None = None,
    down: dict[str, float] | None = None,
    node: dict[str, float] | None = None,
    scatter: float = 0.01,
    seed: int = 1,
) -> dict[tuple[str, str], PairMeasured]:
    """Each rate is the least of both nodes and, between leaves, of the uplinks; times noise."""
    rng = Random(seed)
    up, down, node = up or {}, down or {}, node or {}
    out = {}
    for a, x in leaf_of.items():
        for b, y in leaf_of.items():
            if a != b:
                least = min(node.get(a, RATE), node.get(b, RATE))
                if x != y:
                    least = min(least, up.get(x, RATE), down.get(y, RATE))
                out[a, b] = PairMeasured(gb_s=least * rng.gauss(1, scatter), spread=scatter)
    return out


SIZES = [(2, 2), (2, 4), (3, 2), (4, 4), (8, 3)]


@pytest.mark.parametrize(("leaves", "each"), SIZES)
@pytest.mark.parametrize("scatter", [0.003, 0.03])
def test_healthy_nodes_and_leaves_are_not_named(leaves: int, each: int, scatter: float) -> None:
    where = world(leaves, each)
    for seed in range(20):
        said = judge(rates(where, scatter=scatter, seed=seed), where)
        assert said.leaves == ()
        assert said.slow == ()


@pytest.mark.parametrize(("leaves", "each"), [s for s in SIZES if s[0] > 2])
@pytest.mark.parametrize("share", [0.4, 0.7])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_slow_uplink_is_named_with_its_direction_and_no_node(
    leaves: int, each: int, share: float, direction: str
) -> None:
    where = world(leaves, each)
    for seed in range(10):
        slow = {f"leaf{seed % leaves}": share * RATE}
        measured = rates(
            where, up=slow if direction == "up" else {}, down=slow if direction == "down" else {}, seed=seed
        )
        said = judge(measured, where)
        assert [(s.leaf, s.direction) for s in said.leaves] == [(f"leaf{seed % leaves}", direction)]
        assert said.leaves[0].share == pytest.approx(share, rel=0.05)
        assert said.slow == ()
        assert not said.no_majority


@pytest.mark.parametrize("each", [2, 4])
@pytest.mark.parametrize("share", [0.4, 0.7])
def test_between_two_leaves_both_directions_are_named(each: int, share: float) -> None:
    where = world(2, each)
    said = judge(rates(where, up=dict.fromkeys(("leaf0", "leaf1"), share * RATE)), where)
    assert [(s.leaf, s.other) for s in said.leaves] == [("leaf0", "leaf1"), ("leaf1", "leaf0")]
    assert said.slow == ()
    # Without the fabric half of the pairs of every node are slow, and nodes are accused or nothing is clear.
    blind = judge(rates(where, up=dict.fromkeys(("leaf0", "leaf1"), share * RATE)))
    assert blind.slow or blind.no_majority or not blind.clear


@pytest.mark.parametrize(("leaves", "each"), [(3, 3), (4, 4)])
def test_a_spine_that_is_slow_for_all_is_named_as_such(leaves: int, each: int) -> None:
    where = world(leaves, each)
    said = judge(rates(where, up={f"leaf{i}": 0.5 * RATE for i in range(leaves)}), where)
    assert [(s.leaf, s.other, s.direction) for s in said.leaves] == [("", "", "")]
    assert said.slow == ()


@pytest.mark.parametrize(("leaves", "each"), [s for s in SIZES if s != (2, 2)])
def test_a_slow_node_is_named_and_no_leaf(leaves: int, each: int) -> None:
    where = world(leaves, each)
    said = judge(rates(where, node={"n00": 0.5 * RATE}), where)
    assert said.leaves == ()
    assert {s.node for s in said.slow} == {"n00"}


@pytest.mark.parametrize(("leaves", "each"), [(3, 4), (4, 4)])
def test_a_slow_node_and_a_slow_uplink_are_both_named(leaves: int, each: int) -> None:
    where = world(leaves, each)
    said = judge(rates(where, node={"n00": 0.4 * RATE}, up={"leaf1": 0.6 * RATE}), where)
    assert [(s.leaf, s.direction) for s in said.leaves] == [("leaf1", "up")]
    assert {s.node for s in said.slow} == {"n00"}


def test_what_is_suspected_is_measured_again_before_it_counts() -> None:
    where = world(3, 2)
    todo = suspects(rates(where, up={"leaf1": 0.5 * RATE}), where)
    assert todo
    assert all("leaf1" in (where[a], where[b]) for a, b in todo)


def test_nodes_that_the_dump_does_not_hold_count_for_no_leaf() -> None:
    where = world(2, 3)
    measured = rates(where, up=dict.fromkeys(("leaf0", "leaf1"), 0.5 * RATE))
    leaves, _ = slow_leaves(measured, {n: x for n, x in where.items() if n != "n00"})
    assert all("n00" not in (a, b) for s in leaves for a, b, _ in s.rates)
    assert slow_leaves(measured, {}) == ((), measured)


@pytest.mark.parametrize(("leaves", "each"), SIZES)
def test_pairs_that_run_together_share_no_uplink(leaves: int, each: int) -> None:
    where = world(leaves, each)
    seen = []
    for pairs in rounds(list(where)):
        for together in by_leaf(pairs, where):
            crossing = [x for a, b in together if where[a] != where[b] for x in (where[a], where[b])]
            assert len(crossing) == len(set(crossing))
            seen += together
    assert sorted(seen) == sorted(p for r in rounds(list(where)) for p in r)
    n = leaves * each
    assert len({frozenset(p) for p in seen}) == n * (n - 1) // 2


def report(where: dict[str, str], measured: dict[tuple[str, str], PairMeasured]) -> NodePairsReport:
    """A run over TCP with these rates, judged."""
    pairs = tuple(
        PairRate(a=a, b=b, a_to_b_gb_s=measured[a, b].gb_s, b_to_a_gb_s=measured[b, a].gb_s)
        for a, b in measured
        if a < b
    )
    hellos = tuple(NodeHello(node=n, rank=i, host=n, address="10.0.0.1", port=1) for i, n in enumerate(sorted(where)))
    leaves = tuple(
        LeafNodes(leaf=leaf, nodes=tuple(n for n, x in where.items() if x == leaf), uplinks=(f"{leaf} port 1 - spine",))
        for leaf in sorted(set(where.values()))
    )
    return judge_pairs(summarize(NodePairsReport(nodes=hellos, pairs=pairs, leaves=leaves)))


def test_the_finding_names_the_leaf_and_its_uplinks() -> None:
    where = world(3, 3)
    said = report(where, rates(where, up={"leaf1": 0.5 * RATE}))
    (finding,) = [f for f in said.findings if f.state in (State.FAIL, State.WARN)]
    assert (finding.id, finding.state, finding.subject) == ("network.slow-uplink", State.FAIL, "leaf1, sending")
    assert "50 % of the 10" in finding.title
    assert "leaf1 port 1 - spine" in [e.raw for e in finding.evidence]
    assert any("below one leaf" in n and "between leaves" in n for n in said.notes)


def test_the_finding_is_quiet_on_healthy_leaves_and_without_a_dump() -> None:
    where = world(3, 3)
    assert report(where, rates(where)).findings == ()
    without = msgspec.structs.replace(report(where, rates(where, up={"leaf1": 0.5 * RATE})), leaves=(), findings=())
    assert "network.slow-uplink" not in {f.id for f in judge_pairs(without).findings}
