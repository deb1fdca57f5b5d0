"""One fault is one row, whatever it changes besides."""

from __future__ import annotations

from tests.machines.builder import machine
from topocheck.compare.changes import diff
from topocheck.compare.decode import from_document
from topocheck.compare.facts import node_facts
from topocheck.compare.faults import faults
from topocheck.compare.format import chip, hca
from topocheck.compare.types import NodeFacts
from topocheck.pipeline import build_report
from topocheck.render.differences import field_name, field_value
from topocheck.render.report_json import report_document


def facts(**change: object) -> NodeFacts:
    report = build_report(machine("hgx_h100_cx7", **change).host())
    return node_facts(from_document(report_document(report, "0")))


HEALTHY = facts()


def test_a_link_that_lost_lanes_is_one_fault_although_three_places_show_it() -> None:
    found = diff(facts(patch={"GPU3": {"now": "5x8"}}), HEALTHY)
    assert len(found) == 3, "sysfs at both ends, and NVML"
    (fault,) = faults(found)
    assert (fault.difference.slot, fault.related) == ("pci gpu3", 2)
    shown = [field_value(fault.difference.field, v) for v in (fault.difference.majority, fault.difference.value)]
    assert (field_name(fault.difference.field), *shown) == ("PCIe width", "x16", "x8")


def test_two_links_that_lost_lanes_are_two_faults() -> None:
    found = faults(diff(facts(patch={"GPU3": {"now": "5x8"}, "GPU5": {"now": "5x8"}}), HEALTHY))
    assert [f.difference.slot for f in found] == ["pci gpu3", "pci gpu5"]


def test_a_port_above_no_card_stands_for_itself() -> None:
    """A switch's uplink at half width is a fault of its own: upstream port and root port, and no card."""
    found = faults(diff(facts(patch={"above GPU3": {"now": "5x8"}}), HEALTHY))
    assert found
    assert len({f.difference.slot for f in found}) == len(found)


def test_a_nic_that_is_gone_takes_its_interface_and_the_others_names_with_it() -> None:
    found = diff(facts(patch={"mlx5_4": {"hidden": 1}}), HEALTHY)
    assert {"interface", "inventory", "node"} <= {d.slot.split()[0] for d in found}
    (fault,) = faults(found)
    assert (fault.difference.value, fault.difference.slot) == ("missing", "nic5")
    assert fault.related == len(found) - 1


def test_a_fault_besides_a_gone_nic_stays() -> None:
    found = faults(diff(facts(patch={"mlx5_4": {"hidden": 1}, "GPU3": {"now": "5x8"}}), HEALTHY))
    assert [f.difference.value for f in found] == ["missing", "8"]


def test_chips_have_their_trade_names() -> None:
    # 4129 is 0x1021, the PCI device id of ConnectX-7 (pci.ids: MT2910 Family [ConnectX-7]).
    assert hca("MT4129") == "ConnectX-7 (MT4129)"
    assert chip("15b3:1021") == "ConnectX-7 15b3:1021"
    assert (hca("MT_2180110032"), hca("mt"), chip("?"), chip("1234:5678")) == ("MT_2180110032", "mt", "?", "1234:5678")
