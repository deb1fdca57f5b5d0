"""The drawing of a fabric: what a finding names is marked, and no switch whose name begins alike."""

from __future__ import annotations

import re

from tests.support.fabrics import fat_tree, rail_pods
from topocheck.checks.fabric.run import judge_fabric
from topocheck.fabric.read import parse
from topocheck.fabric.tiers import tiers_of
from topocheck.render.fabric_svg import fabric_svg


def test_only_the_switches_of_a_finding_are_red() -> None:
    made = fat_tree(12, 4, 4, each=2)
    made.links.remove(next(x for x in made.links if x[0] == "leaf10" and x[2] == "spine3"))
    tiers = tiers_of(parse(made.text().encode(), "f"))
    svg = fabric_svg(tiers, judge_fabric(tiers))
    boxes = dict(re.findall(r'<title>([^<]+)</title>\n<rect [^>]*stroke="(#[0-9a-f]+)"/>', svg))
    assert len(boxes) == 12 + 4
    boxes = {name.partition(",")[0]: stroke for name, stroke in boxes.items()}
    assert {name for name, stroke in boxes.items() if stroke == "#b00020"} == {"leaf-10", "spine-3"}


def test_rails_and_the_nodes_below_the_leaves_are_shown() -> None:
    tiers = tiers_of(parse(rail_pods(2, 8, 4, 2).text().encode(), "f"))
    svg = fabric_svg(tiers, judge_fabric(tiers))
    # Two pods of four leaves, a rail each; the nodes of a pod are one box, with a line to each of its leaves.
    assert set(re.findall(r"<title>(leaf[^<]+)</title>", svg)) == {
        f"leaf-{p}-{r}, rail mlx5_{r}" for p in range(2) for r in range(4)
    }
    assert re.findall(r"<title>(gpu[^<]+)</title>", svg) == ["gpu[0000-0007]", "gpu[0008-0015]"]
    assert svg.count('stroke="#cdd"') == 2 * 4
