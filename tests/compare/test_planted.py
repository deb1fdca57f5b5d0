"""Planted faults are all found and none is invented (benchmarks/fleet_scale.py does the same with 10,000 nodes)."""

from __future__ import annotations

import random

import pytest

from tests.compare import fleets, planting
from topocheck.compare.decode import decode
from topocheck.compare.facts import node_facts
from topocheck.compare.outliers import judge
from topocheck.compare.store import Collection
from topocheck.compare.types import Fleet
from topocheck.render.fleet import fleet_text
from topocheck.render.page import Style

HEALTHY = 3
COPIES = 150


@pytest.fixture(scope="module")
def planted() -> dict[str, planting.Fault]:
    """Return name of a node -> its fault, one of each kind."""
    return {f"node{5000 + i:05d}": f for i, f in enumerate(planting.FAULTS)}


@pytest.fixture(scope="module")
def fleet(planted: dict[str, planting.Fault]) -> Fleet:
    """A fleet of some hundred healthy nodes and one of each fault, in any order."""
    texts = [fleets.direct_report(i) for i in range(HEALTHY)]
    reports = [fleets.copy_of(texts[i % HEALTHY], i % HEALTHY, i) for i in range(COPIES)]
    reports += [fleets.direct_report(int(name[4:]), f) for name, f in planted.items()]
    random.Random(1).shuffle(reports)
    collection = Collection()
    for text in reports:
        collection.add(node_facts(decode(text.encode(), "x")))
    return judge(collection)


def test_no_kind_is_planted_twice() -> None:
    assert len(planting.FAULTS) >= 65
    assert len({f.name for f in planting.FAULTS}) == len(planting.FAULTS)


@pytest.mark.slow
def test_every_planted_fault_is_found(fleet: Fleet, planted: dict[str, planting.Fault]) -> None:
    odd = {o.name: o for o in fleet.outliers}
    missed = [f.name for name, f in planted.items() if name not in odd]
    assert missed == []
    unsigned = {
        f.name: [f"{d.device} {d.field}" for d in odd[name].differences]
        for name, f in planted.items()
        if not any(f.sign in f"{d.device} {d.field}" for d in odd[name].differences)
    }
    assert unsigned == {}


@pytest.mark.slow
def test_no_healthy_node_is_accused(fleet: Fleet, planted: dict[str, planting.Fault]) -> None:
    assert {o.name for o in fleet.outliers} <= set(planted)
    invented = {
        (f.id, f.title) for f in fleet.findings if f.state in ("fail", "warn", "unknown") if set(f.nodes) - set(planted)
    }
    assert invented == set()
    assert [k.no_majority for k in fleet.hardware_types] == [()], "one kind of node, nothing mixed"


@pytest.mark.slow
def test_differences_say_where_to_look(fleet: Fleet) -> None:
    for o in fleet.outliers:
        for d in o.differences:
            assert d.path, (o.name, d)
            assert d.value != d.majority


@pytest.mark.slow
def test_rails_are_told_apart(fleet: Fleet) -> None:
    # Rail k of the fleet has the network 10.(100+k).0.0/16; the two storage NICs 10.8 and 10.9 (planting.py).
    networks = {r.label: r.network for r in fleet.rails}
    assert networks["mlx5_3"] == "10.103.0.0/16"
    assert networks["mlx5_8"] == "10.8.0.0/16"


def rolled_out(new: int, old: int) -> Fleet:
    """Return a fleet of which `new` nodes have one driver and `old` another."""
    collection = Collection()
    driver = next(f for f in planting.FAULTS if f.name == "driver old")
    text, other = fleets.direct_report(0), fleets.direct_report(0, driver)
    for i in range(new + old):
        collection.add(node_facts(decode(fleets.copy_of(text if i < new else other, 0, i).encode(), "x")))
    return judge(collection)


def test_a_roll_out_is_one_entry_and_accuses_nobody() -> None:
    fleet = rolled_out(12, 8)
    assert fleet.outliers == ()
    (kind,) = fleet.hardware_types
    (driver,) = [m for m in kind.no_majority if m.field == "driver_version"]
    assert [n for _, n in driver.values] == [12, 8]


def test_nodes_odd_in_the_same_way_are_one_entry_of_the_text() -> None:
    fleet = rolled_out(18, 2)
    assert len(fleet.outliers) == 2
    text = fleet_text(fleet, Style(width=200))
    assert text.count("driver 550.90.07") == 1
    assert "2 nodes: node00018 node00019" in text
