from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.topology import facts
from topocheck.model.pci import PciDevice, PortType
from topocheck.topology.tree import build_tree, chains

SWITCH = facts.two_gpus_below_a_switch()
EXPECTED_ROLES = {
    "pci0000:00": "host_bridge",
    "0000:00:01.0": "root_port",
    "0000:01:00.0": "upstream_port",
    "0000:02:00.0": "downstream_port",
    "0000:03:00.0": "endpoint",
}


def test_roles_by_port_type() -> None:
    tree = build_tree({d.address: d for d in SWITCH}, chains(SWITCH))
    assert {k: tree[k].role for k in EXPECTED_ROLES} == EXPECTED_ROLES
    assert tree["0000:01:00.0"].children == ("0000:02:00.0", "0000:02:01.0", "0000:02:02.0")
    assert tree["0000:03:00.0"].parent == "0000:02:00.0"
    assert tree["pci0000:00"].parent is None


def test_roles_by_place_where_the_config_space_is_cut_short() -> None:
    bare = tuple(msgspec.structs.replace(d, port_type=SWITCH[0].bars) for d in SWITCH)
    assert not isinstance(bare[0].port_type, PortType)
    tree = build_tree({d.address: d for d in bare}, chains(bare))
    assert {k: tree[k].role for k in EXPECTED_ROLES} == EXPECTED_ROLES


def _without_links(devices: tuple[PciDevice, ...]) -> tuple[PciDevice, ...]:
    """Lose the chains, keep the bus numbers of the bridges."""
    bus = {"0000:00:01.0": 1, "0000:01:00.0": 2, "0000:02:00.0": 3, "0000:02:01.0": 4, "0000:02:02.0": 5}
    return tuple(
        msgspec.structs.replace(d, chain=(), **({"secondary_bus": bus[d.address]} if d.address in bus else {}))
        for d in devices
    )


def test_the_tree_is_rebuilt_from_bus_numbers() -> None:
    assert chains(_without_links(SWITCH)) == chains(SWITCH)


def test_hidden_bus_numbers_leave_the_place_unknown() -> None:
    lost = tuple(msgspec.structs.replace(d, chain=()) for d in SWITCH)
    assert chains(lost)["0000:03:00.0"] == ()
    # what stands on bus 0 needs no bridge
    assert chains(lost)["0000:00:01.0"] == ("pci0000:00", "0000:00:01.0")


def test_bus_numbers_that_run_in_a_circle_end() -> None:
    a = PciDevice(address="0000:01:00.0", class_code=0x060400, secondary_bus=2)
    b = PciDevice(address="0000:02:00.0", class_code=0x060400, secondary_bus=1)
    assert chains((a, b)) == {"0000:01:00.0": (), "0000:02:00.0": ()}


def test_domains_sort_as_numbers() -> None:
    devices = (
        facts.function("pci10000:00 10000:00:04.0", 0x8086, 1, 0x060400),
        facts.function("pci0000:00 00:1f.0", 0x8086, 1, 0x060100),
    )
    tree = build_tree({d.address: d for d in devices}, chains(devices))
    assert [k for k in tree if k.startswith("pci")] == ["pci0000:00", "pci10000:00"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=12))
def test_any_bus_numbers_give_chains_that_end_at_the_function(spec) -> None:
    devices = {
        f"0000:{bus:02x}:{i:02x}.0": PciDevice(
            address=f"0000:{bus:02x}:{i:02x}.0", class_code=0x060400 if bridge else 0x020000, secondary_bus=secondary
        )
        for i, (bus, secondary, bridge) in enumerate(spec)
    }
    found = chains(devices.values())
    assert set(found) == set(devices)
    assert all(not c or c[-1] == a for a, c in found.items())
    build_tree(devices, found)
