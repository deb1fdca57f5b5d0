"""LLDP as switches and lldpd show it: tables, plain text, keyvalue; and the same cable seen from both its ends."""

from __future__ import annotations

import json

import pytest

from tests.fabric.test_formats import NETWORKCTL
from tests.support.lldp_tables import EOS, LLDPCTL, NVUE, SONIC
from tests.support.lldp_tables import TABLES as ALL
from topocheck.fabric.merge import merge
from topocheck.fabric.read import parse
from topocheck.fabric.tiers import tiers_of
from topocheck.model.fabric import DeviceKind, Fabric


def read(text: str, name: str) -> Fabric:
    return parse(text.encode(), name)


@pytest.mark.parametrize("form", ALL)
def test_a_leaf_hears_two_spines_and_two_nodes(form: str) -> None:
    fabric = read(ALL[form], "dumps/leaf-1.txt")
    assert fabric.problems == ()
    nodes = {d.node.partition(".")[0]: d.adapter for d in fabric.devices.values() if d.kind is DeviceKind.ADAPTER}
    assert sorted(nodes) == ["gpu03", "gpu04"]
    switches = {d.label.partition(".")[0].lower() for d in fabric.devices.values() if d.kind is DeviceKind.SWITCH}
    second = "a-spine-with-a-long-name" if form in ("eos", "nxos") else "spine-2"
    assert switches == {"leaf-1", "spine-1", second}
    assert len(fabric.links) == 4
    tiers = tiers_of(fabric)
    assert tiers.tier["leaf-1"] == 0
    assert (tiers.leaves["leaf-1"].down, tiers.leaves["leaf-1"].up) == (2, 2)


def test_what_tables_give_beside_the_ports() -> None:
    fabric = read(NVUE, "leaf-1")
    rates = {e.port: x for x in fabric.links for e in (x.a, x.b) if e.device == "leaf-1"}
    assert (rates["swp51"].rate_gbit_s, rates["swp51"].mtu, rates["swp1"].rate_gbit_s) == (100.0, 9216, 25.0)
    plain = {e.port: x for x in read(LLDPCTL, "leaf-1").links for e in (x.a, x.b) if e.device == "leaf-1"}
    assert (plain["swp51"].rate_gbit_s, plain["swp51"].mtu) == (100.0, 9216)


SPINE = SONIC.replace("spine-1         etp1 ", "leaf-1          etp1 ").replace(
    "spine-2         etp1 ", "leaf-2          etp1 "
)


def test_both_ends_of_a_cable_are_one_cable() -> None:
    """The leaf knows the spine by name or by chassis, the node knows the leaf by its chassis."""
    heard = {
        "chassis": {"leaf-1": {"id": {"type": "mac", "value": "00:00:00:00:01:01"}}},
        "port": {"id": {"type": "ifname", "value": "Ethernet8"}, "mfs": "9216"},
        "via": "LLDP",
    }
    node = json.dumps({"lldp": {"interface": [{"enp1s0f0": heard}]}})
    spine = "\n".join(x for x in SPINE.splitlines() if not x.startswith(("Ethernet8", "Ethernet12")))
    fabric = merge([read(SONIC, "leaf-1.txt"), read(node, "gpu03.cluster.example.json"), read(spine, "spine-1.txt")])
    assert fabric.conflicts == fabric.dangling == ()
    labels = sorted(d.label for d in fabric.devices.values())
    assert labels == ["gpu03 enp1s0f0", "gpu04 enp1s0f0", "leaf-1", "leaf-2", "spine-1", "spine-2"]
    # leaf-1: spine-1, spine-2, gpu03, gpu04; spine-1 also has leaf-2.
    assert len(fabric.links) == 5
    (mtu,) = [x.mtu for x in fabric.links if x.mtu is not None]
    assert mtu == 9216
    tiers = tiers_of(fabric)
    assert {tiers.label(i): t for i, t in tiers.tier.items()} == {"leaf-1": 0, "spine-1": 1, "spine-2": 1, "leaf-2": 2}


def test_a_host_with_a_virtual_bridge_is_no_switch() -> None:
    on = [{"type": "Bridge", "enabled": True}, {"type": "Router", "enabled": True}]
    heard = {
        "chassis": {"gpu09": {"id": {"type": "mac", "value": "00:00:00:00:01:01"}, "capability": on}},
        "port": {"id": {"type": "mac", "value": "00:00:00:00:01:01"}, "descr": "enp1s0f1np1"},
        "via": "LLDP",
    }  # fmt: skip
    fabric = read(json.dumps({"lldp": {"interface": [{"swp7": heard}]}}), "leaf-1.json")
    assert {d.label: d.kind for d in fabric.devices.values()} == {
        "leaf-1": DeviceKind.SWITCH, "gpu09 enp1s0f1np1": DeviceKind.ADAPTER
    }  # fmt: skip


def test_a_row_that_does_not_fit_is_said() -> None:
    fabric = read(EOS + "Et5 something else that is no row of this table at all\n", "leaf-1")
    assert fabric.problems == ("leaf-1:11: Et5 something else that is no row of this table at all",)


@pytest.mark.parametrize("text", [*ALL.values(), NETWORKCTL])
def test_each_is_of_one_reader(text: str) -> None:
    from topocheck.fabric.read import READERS

    assert sum(recognise(text) for _, recognise, _ in READERS) == 1
