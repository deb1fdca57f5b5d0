"""Generated fabrics: the planted fault is named, and nothing else is; healthy ones are quiet."""

from __future__ import annotations

from random import Random

import pytest

from tests.support import fabrics as generate
from tests.support.fabric_faults import PLANTERS, Planter
from tests.support.fabrics import Made
from topocheck.checks.fabric.run import judge_fabric
from topocheck.fabric.ibnetdiscover import parse
from topocheck.fabric.read import parse as read
from topocheck.fabric.tiers import tiers_of
from topocheck.model.base import Finding, State

BAD = (State.WARN, State.FAIL, State.UNKNOWN)


def found(made: Made) -> list[Finding]:
    text = made.db_csv() if made.mtu else made.text()
    return [f for f in judge_fabric(tiers_of(read(text.encode(), "f"))).findings if f.state in BAD]


HEALTHY = {
    "one leaf": generate.fat_tree(1, 8, 0),
    "fat tree": generate.fat_tree(8, 16, 4),
    "two cables each": generate.fat_tree(8, 16, 4, each=2),
    "rails": generate.rail_pods(1, 32, 8, 0),
    "rails with spines": generate.rail_pods(2, 16, 8, 4, each=2),
    "pods": generate.rail_pods(4, 8, 4, 4),
    "three tiers": generate.three_tiers(4, 4, 4, 4, 2),
    "dragonfly": generate.dragonfly(6, 4, 4),
    "two nodes": generate.fat_tree(1, 2, 0),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_fabric_is_quiet(name: str) -> None:
    assert [f"{f.id} {f.subject}: {f.title}" for f in found(HEALTHY[name])] == []


BENT = {
    "fat tree": generate.fat_tree(8, 8, 4, each=2),
    "three tiers": generate.three_tiers(4, 4, 4, 4, 4),
    "rails": generate.rail_pods(4, 8, 4, 4),
    "dragonfly": generate.dragonfly(6, 5, 2),
}


IDS = {
    "swap_rails": "fabric.odd-cable", "wrong_pod": "fabric.odd-cable", "on_a_spine": "fabric.odd-cable",
    "drop_uplink": "fabric.missing-uplink", "drop_bundle": "fabric.missing-uplink",
    "cut_off_leaf": "fabric.missing-uplink", "lose_line_card": "fabric.missing-uplink",
    "wrong_spine": "fabric.missing-uplink", "core_link": "fabric.missing-uplink",
    "leaf_to_leaf": "fabric.unexpected-link", "loop": "fabric.unexpected-link",
    "skip_a_tier": "fabric.unexpected-link", "half_width_node": "fabric.slow-link",
    "half_width_uplink": "fabric.slow-link", "slow_node": "fabric.slow-link", "slow_uplink": "fabric.slow-link",
    "slow_leaf": "fabric.slow-link", "drop_adapter": "fabric.node-not-joined", "dead_leaf": "fabric.node-not-joined",
    "same_name": "fabric.duplicate-name", "ends_differ": "fabric.ends-differ", "local_link": "fabric.missing-link",
    "global_link": "fabric.missing-link", "other_mtu": "fabric.mtu",
}  # fmt: skip
"""The check that a planted fault is for."""


@pytest.mark.parametrize("plant", PLANTERS, ids=lambda p: p.__name__)
def test_a_planted_fault_is_named_and_nothing_else_is(plant: Planter) -> None:
    tried = 0
    for name, healthy in BENT.items():
        for seed in range(2):
            made = healthy.copy()
            planted = plant(made, Random(seed))
            if planted is None:
                continue
            tried += 1
            findings = found(made)
            said = [f"{f.subject} {f.title}" for f in findings]
            for names in planted.expected:
                right = [f.id for f in findings if all(n in f"{f.subject} {f.title}" for n in names)]
                assert IDS[plant.__name__] in right, (name, names, said)
            assert [text for text in said if not any(t in text for t in planted.touched)] == [], name
    assert tried


def test_a_slow_link_says_both_rates() -> None:
    made = HEALTHY["fat tree"].copy()
    i = made.of("leaf")[3]
    made.links[i] = (*made.links[i][:4], "2xHDR")
    (finding,) = found(made)
    assert (finding.id, finding.state) == ("fabric.slow-link", State.FAIL)
    # HDR: 50 Gb/s a lane, 4 lanes and 2; 8 leaves on 4 spines.
    assert finding.title == "2xHDR (100 Gb/s); 31 of 32 links of its kind carry 200 Gb/s"


def test_a_port_that_is_down_is_missed() -> None:
    made = HEALTHY["rails"].copy()
    del made.devices["n0.5.3"]
    made.links = [x for x in made.links if x[0] != "n0.5.3"]
    (finding,) = found(made)
    assert (finding.id, finding.subject) == ("fabric.node-not-joined", "gpu0005")
    assert finding.title == "mlx5_3 is not on the fabric; 31 of 32 nodes on the same leaves have it"


def test_hosts_of_a_kind_of_their_own_on_spines_are_no_fault() -> None:
    made = HEALTHY["fat tree"].copy()
    for i in range(4):
        made.devices[f"s{i}"] = ("H", f"ufm{i} mlx5_0", 1)
        made.links.append((f"s{i}", 1, f"spine{i}", 40, "4xHDR"))
    tiers = tiers_of(parse(made.text(), "f"))
    assert {tiers.label(s): t for s, t in tiers.tier.items()} == {
        **{f"leaf-{i}": 0 for i in range(8)}, **{f"spine-{i}": 1 for i in range(4)}
    }  # fmt: skip
    assert found(made) == []


def test_a_network_of_its_own_for_storage_is_no_leaf_that_is_cut_off() -> None:
    made = HEALTHY["pods"].copy()
    made.devices["leafs"] = ("S", "storage-switch", 65)
    for n in range(8):
        made.devices[f"n0.{n}.s"] = ("H", f"gpu{n:04d} mlx5_9", 1)
        made.links.append((f"n0.{n}.s", 1, "leafs", 1 + n, "4xNDR"))
    assert found(made) == []


def test_pairs_of_leaves_that_are_all_joined_are_no_fault() -> None:
    made = HEALTHY["fat tree"].copy()
    for i in range(0, 8, 2):
        made.links.append((f"leaf{i}", 38, f"leaf{i + 1}", 38, "4xHDR"))
    assert found(made) == []


def test_adapters_without_a_host_name_are_a_note() -> None:
    made = HEALTHY["fat tree"].copy()
    for n in range(5):
        made.devices[f"n3.{n}"] = ("H", "MT4129 ConnectX7   Mellanox Technologies", 1)
    result = judge_fabric(tiers_of(parse(made.text(), "f")))
    (note,) = [f for f in result.findings if f.id == "fabric.unnamed-adapters"]
    assert (note.state, note.title.partition(",")[0]) == (State.NOTE, "5 of 128 adapters announce no host name")
    assert [f for f in result.findings if f.state in BAD] == []


def test_storage_nodes_with_slower_adapters_are_no_fault() -> None:
    made = HEALTHY["fat tree"].copy()
    for i in range(4):
        made.devices[f"s{i}"] = ("H", f"storage{i} mlx5_bond", 1)
        made.links.append((f"s{i}", 1, f"leaf{i}", 20, "4xEDR"))
    assert found(made) == []


def test_oversubscription_is_a_note_with_its_arithmetic() -> None:
    result = judge_fabric(tiers_of(parse(generate.fat_tree(4, 16, 4, each=2).text(), "f")))
    notes = [f for f in result.findings if f.id == "fabric.oversubscribed"]
    # 16 adapters down, 4 spines x 2 cables up, all of one rate: 16 / 8 = 2.
    assert {f.title for f in notes} == {"2.00 : 1 oversubscribed (16 links down, 8 up)"}
    assert len(notes) == 4


def test_parts_that_no_link_joins_are_noted() -> None:
    result = judge_fabric(tiers_of(parse(generate.rail_pods(1, 8, 4, 0).text(), "f")))
    assert [f.id for f in result.findings] == ["fabric.planes"]
    assert result.findings[0].title.startswith("4 parts that no link joins")


def test_ends_that_differ_are_named() -> None:
    text = HEALTHY["two nodes"].text()
    # The first rate in the text is that of a switch's port; its other end keeps 4x.
    (finding,) = judge_fabric(tiers_of(parse(text.replace("4xHDR", "2xHDR", 1), "f"))).findings
    assert (finding.id, finding.state) == ("fabric.ends-differ", State.WARN)
    assert "cn0000 mlx5_0" in finding.subject


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("", "the dump holds no link"),
        (HEALTHY["one leaf"].text().partition("caguid")[0], "8 devices are named by links and not described"),
        (HEALTHY["one leaf"].text().replace("[1]\t", "[x]\t", 1), "1 lines could not be read"),
    ],
)
def test_a_dump_that_is_not_whole_is_unknown(text: str, title: str) -> None:
    findings = [f for f in judge_fabric(tiers_of(parse(text, "f"))).findings if f.id == "fabric.dump-incomplete"]
    assert [(f.state, f.title.startswith(title)) for f in findings] == [(State.UNKNOWN, True)]
