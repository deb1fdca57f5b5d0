"""What the order of nodes costs on a fabric."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.support.fabrics import Made, fat_tree, rail_pods
from topocheck.cli.nccl import on_fabric
from topocheck.cli.placement import _order
from topocheck.fabric.read import parse
from topocheck.fabric.tiers import tiers_of
from topocheck.nccl.predict.types import Bound, Prediction, RankSpec
from topocheck.placement.order import LeafRates, node_order, order_problems, parents, two_trees
from topocheck.placement.ranks import Problem, RankPlace


def ranks(nodes: list[str], per_node: int = 2) -> list[RankPlace]:
    return [RankPlace(rank=i * per_node + k, node=n) for i, n in enumerate(nodes) for k in range(per_node)]


LEAVES = [
    LeafRates(leaf="a", nodes=("n0", "n1", "n2", "n3"), node_gbit_s=400, up_gbit_s=800),
    LeafRates(leaf="b", nodes=("n4", "n5", "n6", "n7"), node_gbit_s=400, up_gbit_s=800),
]


def test_nodes_leaf_by_leaf_cross_as_seldom_as_can_be() -> None:
    order = node_order(ranks([f"n{i}" for i in range(8)]), LEAVES)
    assert order is not None
    assert (order.crossings, order.least, order.better, order.limit_share) == (2, 2, (), 1.0)
    assert order_problems(order) == ()


def test_alternating_nodes_cross_every_time_and_share_the_uplinks() -> None:
    order = node_order(ranks(["n0", "n4", "n1", "n5", "n2", "n6", "n3", "n7"]), LEAVES)
    assert order is not None
    assert (order.crossings, order.least) == (8, 2)
    # Four nodes of 400 Gb/s send up at once over 800.
    assert (order.limit_share, order.limited_by) == (0.5, "a")
    assert order.better == ("n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7")
    (problem,) = order_problems(order)
    assert problem.state == "warn"
    assert "50 %" in problem.text


def test_unknown_rates_give_a_note() -> None:
    leaves = [LeafRates(leaf=x.leaf, nodes=x.nodes) for x in LEAVES]
    order = node_order(ranks(["n0", "n4", "n1", "n5"]), leaves)
    assert order is not None
    assert order.limit_share is None
    assert [p.state for p in order_problems(order)] == ["note"]


def test_nodes_that_are_not_in_the_dump() -> None:
    order = node_order(ranks(["n0", "x", "n4.example.org", "n1"]), LEAVES)
    assert order is not None
    assert (order.unknown, order.crossings) == (("x",), 2)
    assert node_order(ranks(["x", "y"]), LEAVES) is None
    assert node_order(ranks(["n0"]), LEAVES) is None


def test_who_is_inside_one_tree_is_at_the_end_of_the_other() -> None:
    """The double tree: with an even number every node has children in one tree only (P. Sanders et al., 2009)."""
    for n in (2, 4, 6, 8, 14, 32):
        edges = two_trees(n)
        first, second = edges[: n - 1], edges[n - 1 :]
        assert not {p for _, p in first} & {p for _, p in second}
    odd = two_trees(5)
    assert len(odd) == 8
    assert odd[4:] == [((i + 1) % 5, (p + 1) % 5) for i, p in odd[:4]]


def test_the_binary_tree_of_nccl() -> None:
    """The drawing in src/graph/trees.cc of 14 nodes: 8 below 0; 4 and 12 below 8; odd ones are leaves."""
    found = parents(14)
    assert found[8] == 0
    assert (found[4], found[12]) == (8, 8)
    assert (found[2], found[6], found[10]) == (4, 4, 12)
    assert [found[i] for i in (1, 3, 5, 7, 9, 11, 13)] == [2, 2, 6, 6, 10, 10, 12]
    assert found[0] is None


@pytest.mark.parametrize("made", [fat_tree(2, 4, 4), rail_pods(2, 4, 4, 4)])
def test_of_a_dump(made: Made, tmp_path: Path) -> None:
    tiers = tiers_of(parse(made.text().encode(), "dump"))
    names = sorted(tiers.nodes)
    mixed = [n for pair in zip(names[:4], names[4:], strict=True) for n in pair]
    found: tuple[Problem, ...] = _order(ranks(mixed), tiers)
    # Each leaf has 4 adapters and 4 uplinks of one rate: nothing is slower, but all cross.
    assert [(p.state, "8 times, at best 2" in p.text) for p in found] == [("note", True)]
    assert _order(ranks(names), tiers) == ()
    assert _order(ranks(names), None) == ()


def test_the_bound_of_a_ring_is_what_uplinks_leave(tmp_path: Path) -> None:
    """Two leaves of 4 nodes with 4 x 400 Gb/s each; one spine by 4 cables a leaf of each rail: 4 x 4 x 400 Gb/s up."""
    made = rail_pods(2, 4, 4, 1, each=1)
    (tmp_path / "dump").write_text(made.text())
    hosts = [f"gpu{i:04d}" for i in (0, 4, 1, 5, 2, 6, 3, 7)]
    p = Prediction(
        version="2.28.9",
        ranks=tuple(RankSpec(rank=i, host=h, gpu="0000:01:00.0") for i, h in enumerate(hosts)),
        pairs=(),
        bounds=(Bound(algorithm="Ring", busbw_gb_s=190.0, limited_by="NICs", formula="narrowest hop"),
                Bound(algorithm="Tree", busbw_gb_s=180.0, limited_by="NICs", formula="B")),
    )  # fmt: skip
    said = on_fabric(p, [tmp_path / "dump"])
    # All four nodes of a leaf send up at once, over 4 rails x 1 cable of 400 Gb/s: a quarter of 4 x 50 GB/s each.
    assert said.bounds[0].busbw_gb_s == pytest.approx(50.0)
    assert "uplinks of leaf-0-0 and 3 more leaves" in said.bounds[0].limited_by
    # Tree edges of eight hosts (node, parent): 4-0 2-4 6-4 1-2 3-2 5-6 7-6, and mirrored 3-7 5-3 1-3 6-5 4-5 2-1 0-1.
    # Hosts of even places are below one leaf, odd ones below the other: 1-2 3-2 5-6 7-6 cross, and 6-5 4-5 2-1 0-1.
    # Each edge carries half of the bytes: 8 / 2 times over the 4 x 50 GB/s of a leaf; busbw is 2 x 7/8 of that.
    assert said.bounds[1].busbw_gb_s == pytest.approx(2 * 7 / 8 * 200 / 4)
    assert "which let 50.0 GB/s of an all_reduce through both trees" in said.bounds[1].limited_by
    assert "crosses between leaves 8 times, at best 2" in said.notes[-1]
    in_order = on_fabric(msgspec.structs.replace(p, ranks=tuple(
        RankSpec(rank=i, host=f"gpu{i:04d}", gpu="0000:01:00.0") for i in range(8)
    )), [tmp_path / "dump"])  # fmt: skip
    # Leaf by leaf 4-0 and 2-4 cross in the first tree, 3-7 and 5-3 in the second: 4 / 2 times over 200 GB/s.
    assert in_order.bounds[1].busbw_gb_s == pytest.approx(2 * 7 / 8 * 200 / 2)
    assert on_fabric(p, None) is p
