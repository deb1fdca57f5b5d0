"""Bisection bandwidth of generated fabrics, by arithmetic shown here."""

from __future__ import annotations

import pytest

from tests.support.fabrics import Made, dragonfly, fat_tree, rail_pods, three_tiers
from topocheck.fabric.bisection import Bisection, bisection
from topocheck.fabric.read import parse
from topocheck.fabric.tiers import tiers_of


def of(made: Made) -> Bisection | None:
    return bisection(tiers_of(parse(made.text().encode(), "f")))


def test_one_leaf_does_not_block() -> None:
    found = of(fat_tree(1, 8, 0))
    assert found is not None
    # 8 adapters of 200 Gb/s, half of them send.
    assert (found.gbit_s, found.full_gbit_s, found.bounds) == (800, 800, ())


def test_uplinks_bound_a_tree() -> None:
    found = of(fat_tree(8, 16, 4))
    assert found is not None
    # A leaf: 16 x 200 = 3200 down, 4 x 200 = 800 up. Half of 8 x 800.
    assert (found.full_gbit_s, found.gbit_s) == (8 * 3200 / 2, 8 * 800 / 2)
    (bound,) = found.bounds
    assert (bound.tier, bound.groups, bound.down_gbit_s, bound.up_gbit_s) == (0, 8, 25600, 6400)


def test_a_lost_uplink_counts() -> None:
    made = fat_tree(8, 16, 16)
    del made.links[made.of("leaf0")[0]]
    found = of(made)
    assert found is not None
    # 7 leaves with 3200 both ways, one with 15 x 200 = 3000 up.
    assert (found.full_gbit_s, found.gbit_s) == (12800, (7 * 3200 + 3000) / 2)


def test_more_uplinks_than_adapters_need_give_no_more() -> None:
    found = of(fat_tree(4, 4, 8))
    assert found is not None
    assert found.gbit_s == found.full_gbit_s == 4 * 4 * 200 / 2


def test_the_second_tier_of_three() -> None:
    made = three_tiers(4, 4, 4, 4, 2)
    found = of(made)
    assert found is not None
    # Pods: 4 leaves x 4 nodes x 200 = 3200 down; what their spines have to cores: counted from the description.
    ups = [x for x in made.links if {x[0][:4], x[2][:4]} & {"core"}]
    assert found.bounds[1].groups == 4
    assert found.bounds[1].up_gbit_s == 200 * len(ups)
    assert found.gbit_s == min(200 * len(ups) / 2, 4 * 3200 / 2)


def test_rails_are_planes_that_add() -> None:
    found = of(rail_pods(1, 32, 8, 0))
    assert found is not None
    # Each rail has one leaf and all nodes: 32 x 8 x 400 / 2.
    assert (found.gbit_s, found.full_gbit_s) == (51200, 51200)


def test_groups_of_a_dragonfly() -> None:
    made = dragonfly(6, 5, 2)
    found = of(made)
    assert found is not None
    (bound,) = [b for b in found.bounds if b.direct]
    group = {name: name[1:].partition(".")[0] for name in made.devices}
    across = sum(
        200 for a, _, b, _, _ in made.links
        if a.startswith("r") and b.startswith("r") and (group[a] in "012") != (group[b] in "012")
    )  # fmt: skip
    assert bound.groups == 6
    assert found.gbit_s == min(across, 6 * 5 * 2 * 200 / 2)


@pytest.mark.parametrize("text", ["SwitchName=a Nodes=n[1-4]\n"])
def test_nothing_without_rates(text: str) -> None:
    assert bisection(tiers_of(parse(text.encode(), "f"))) is None


def test_nothing_where_nodes_are_not_joined() -> None:
    """Two leaves with nodes of their own and nothing between them."""
    assert of(fat_tree(2, 4, 0)) is None
