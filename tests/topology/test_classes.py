"""PCIe classes: the legend of `nvidia-smi topo`, applied to small trees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck.model.base import ABSENT, Missing
from topocheck.topology.classes import ORDER, Place, Surroundings, pcie_class

BARE2, BARE1, GUEST = Surroundings(2, False), Surroundings(1, False), Surroundings(1, True)


def place(chain: str, node: int | Missing = 0, label: str = "d") -> Place:
    return Place(label, tuple(chain.split()), node)


def classify(a: Place, b: Place, around: Surroundings = BARE2, ancestor: str | Missing = ABSENT) -> str | Missing:
    got = pcie_class(a, b, around, ancestor)
    assert pcie_class(b, a, around, ancestor) == got, "a class has no direction"
    return got


RP, UP = "pci0000:00 0000:00:01.0", "pci0000:00 0000:00:01.0 0000:01:00.0"
CASES = {
    "one switch": (f"{UP} 0000:02:00.0 0000:03:00.0", f"{UP} 0000:02:01.0 0000:04:00.0", "PIX"),
    "two functions of a card below a root port": (f"{RP} 0000:01:00.0", f"{RP} 0000:01:00.1", "PIX"),
    "two functions of a card below a switch": (
        f"{UP} 0000:02:00.0 0000:03:00.0",
        f"{UP} 0000:02:00.0 0000:03:00.1",
        "PIX",
    ),
    "switch below a switch": (
        f"{UP} 0000:02:00.0 0000:03:00.0 0000:04:00.0 0000:05:00.0",
        f"{UP} 0000:02:01.0 0000:06:00.0",
        "PXB",
    ),
    "both on the inner switch of two": (
        f"{UP} 0000:02:00.0 0000:03:00.0 0000:04:00.0 0000:05:00.0",
        f"{UP} 0000:02:00.0 0000:03:00.0 0000:04:01.0 0000:06:00.0",
        "PIX",
    ),
    "two root ports of a host bridge": (f"{RP} 0000:01:00.0", "pci0000:00 0000:00:02.0 0000:05:00.0", "PHB"),
    "both straight on the root bus": ("pci0000:00 0000:00:06.0", "pci0000:00 0000:00:07.0", "PHB"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_tree_decides(name: str) -> None:
    a, b, expected = CASES[name]
    # different NUMA numbers must not matter below one host bridge
    assert classify(place(a, 0), place(b, 1)) == expected


FAR = ("pci0000:00 0000:00:01.0 0000:01:00.0", "pci0000:40 0000:40:01.0 0000:41:00.0")


@pytest.mark.parametrize(
    ("nodes", "around", "ancestor", "expected"),
    [
        ((0, 0), BARE2, ABSENT, "NODE"),
        ((0, 1), BARE2, ABSENT, "SYS"),
        ((0, 1), BARE2, "NODE", "SYS"),  # the tree comes first; the disagreement is reported elsewhere
        ((0, ABSENT), BARE2, "NODE", "NODE"),
        ((ABSENT, ABSENT), BARE2, "SYS", "SYS"),
        ((ABSENT, ABSENT), BARE1, ABSENT, "NODE"),
        ((ABSENT, ABSENT), GUEST, ABSENT, "SYS"),
        ((0, ABSENT), BARE2, ABSENT, "SYS"),
    ],
)
def test_across_host_bridges(nodes, around, ancestor, expected) -> None:
    assert classify(place(FAR[0], nodes[0]), place(FAR[1], nodes[1]), around, ancestor) == expected


def test_a_domain_of_its_own_for_each_device_is_a_host_bridge_of_its_own() -> None:
    """Hyper-V: no common parent exists; the nodes it tells still count."""
    a, b = place("pci0001:00 0001:00:00.0"), place("pcic941:00 c941:00:02.0")
    assert classify(a, b, GUEST) == "NODE"


def test_domains_of_more_than_16_bits() -> None:
    vmd = "pci0000:97 0000:97:00.5 pci10000:00"
    a, b = place(f"{vmd} 10000:00:02.0 10000:01:00.0"), place(f"{vmd} 10000:00:04.0 10000:02:00.0")
    assert classify(a, b) == "PHB"


def test_an_unknown_place_is_told_and_the_driver_may_help() -> None:
    a, b = place("", 0, "GPU0"), place(FAR[1], 0, "mlx5_0")
    gap = classify(a, b)
    assert isinstance(gap, Missing)
    assert "GPU0" in gap.detail
    assert "mlx5_0" not in gap.detail
    assert classify(a, b, ancestor="PIX") == "PIX"


def test_nothing_known_of_the_nodes_is_no_class() -> None:
    gap = classify(place(FAR[0], ABSENT), place(FAR[1], 0), Surroundings(ABSENT, False))
    assert isinstance(gap, Missing)


PARTS = st.lists(
    st.sampled_from(["0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "pci0000:00", "pci0000:40"]), max_size=6
)


@given(PARTS, PARTS, st.sampled_from([0, 1, ABSENT]), st.sampled_from([0, 1, ABSENT]), st.booleans())
def test_any_two_places_have_a_class_or_a_reason(a, b, na, nb, guest) -> None:
    got = pcie_class(Place("a", tuple(a), na), Place("b", tuple(b), nb), Surroundings(2, guest), ABSENT)
    assert isinstance(got, Missing) or got in ORDER
