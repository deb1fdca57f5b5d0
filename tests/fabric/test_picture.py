"""The drawing of a fabric: what a finding names is marked, and no switch whose name begins alike."""

from __future__ import annotations

import re

from tests.support.fabrics import fat_tree
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
    assert {name for name, stroke in boxes.items() if stroke == "#b00020"} == {"leaf-10", "spine-3"}
