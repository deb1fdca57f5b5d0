"""The text of ibnetdiscover as its documentation shows it, and any text."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.support.fabrics import rail_pods
from topocheck.fabric.ibnetdiscover import parse, recognise
from topocheck.model.fabric import DeviceKind, End

DOCUMENTED = """\
#
# Topology file: generated on Tue Jun  5 14:15:10 2007
#
# Max of 3 hops discovered
# Initiated from node 0008f10403960558 port 0008f10403960559

Non-Chassis Nodes

vendid=0x8f1
devid=0x5a06
sysimgguid=0x5442ba00003000
switchguid=0x5442ba00003080(5442ba00003080)
Switch  24 "S-005442ba00003080"         # "ISR9024 Voltaire" base port 0 lid 6 lmc 0
[22]    "H-0008f10403961354"[1](8f10403961355)         # "MT23108 InfiniHost Mellanox Technologies" lid 4 4xSDR
[10]    "S-0008f10400410015"[1]         # "SW-6IB4 Voltaire" lid 3 4xSDR

vendid=0x8f1
devid=0x5a05
switchguid=0x8f10400410015(8f10400410015)
Switch  8 "S-0008f10400410015"          # "SW-6IB4 Voltaire" base port 0 lid 3 lmc 0
[1]     "S-005442ba00003080"[10]                # "ISR9024 Voltaire" lid 6 1xSDR

vendid=0x2c9
devid=0x5a44
caguid=0x8f10403961354
Ca      2 "H-0008f10403961354"          # "MT23108 InfiniHost Mellanox Technologies"
[1](8f10403961355)     "S-005442ba00003080"[22]                # lid 4 lmc 1 "ISR9024 Voltaire" lid 6 4xSDR
"""
"""A part of the example of the man page (infiniband-diags, "Topology file format")."""


def test_the_documented_example() -> None:
    assert recognise(DOCUMENTED)
    fabric = parse(DOCUMENTED, "f")
    switch = fabric.devices["005442ba00003080"]
    assert (switch.kind, switch.ports, switch.lid, switch.name) == (DeviceKind.SWITCH, 24, 6, "ISR9024 Voltaire")
    adapter = fabric.devices["0008f10403961354"]
    assert (adapter.kind, adapter.node, adapter.adapter) == (DeviceKind.ADAPTER, "", "")
    between, to_adapter = sorted(fabric.links, key=lambda x: adapter.id in (x.a.device, x.b.device))
    assert {to_adapter.a, to_adapter.b} == {End("005442ba00003080", "22"), End("0008f10403961354", "1")}
    # SDR: 2 Gb/s of data a lane (8b/10b of 2.5).
    assert (to_adapter.width, to_adapter.speed, to_adapter.rate_gbit_s) == (4, "SDR", 8.0)
    # In the documentation itself the two ends of this link differ: 4x and 1x.
    assert between.ends_differ
    assert (between.width, between.rate_gbit_s) == (1, 2.0)
    assert [e.source for e in between.evidence] == ["f:15", "f:21"]
    assert fabric.problems == fabric.dangling == ()


def test_a_node_is_named_by_the_description_of_its_adapter() -> None:
    text = DOCUMENTED.replace("MT23108 InfiniHost Mellanox Technologies", "gpu07 mlx5_3")
    adapter = parse(text, "f").devices["0008f10403961354"]
    assert (adapter.node, adapter.adapter) == ("gpu07", "mlx5_3")


def test_a_dump_that_was_cut_names_what_is_missing() -> None:
    fabric = parse(DOCUMENTED.partition("vendid=0x2c9")[0], "f")
    assert fabric.dangling == ("0008f10403961354",)


def test_lines_that_cannot_be_read_are_problems() -> None:
    fabric = parse(DOCUMENTED.replace('[1]     "S-0054', '[one]   "S-0054'), "f")
    assert fabric.problems == (
        'f:21: [one]   "S-005442ba00003080"[10]                # "ISR9024 Voltaire" lid 6 1xSDR',
    )


def test_counts_are_those_of_the_fabric() -> None:
    made = rail_pods(2, 4, 8, 4)
    fabric = parse(made.text(), "f")
    assert len(fabric.devices) == len(made.devices) == 2 * 8 + 4 + 2 * 4 * 8
    assert len(fabric.links) == len(made.links) == 2 * 8 * 4 + 2 * 4 * 8
    assert {len(x.evidence) for x in fabric.links} == {2}


@given(st.text(max_size=200), st.integers(0, 2**32))
def test_any_text_gives_a_fabric(noise: str, seed: int) -> None:
    rng = Random(seed)
    lines = DOCUMENTED.splitlines()
    place = rng.randrange(len(lines))
    lines[place] = lines[place][: rng.randrange(len(lines[place]) + 1)] + noise
    fabric = parse("\n".join(lines), "f")
    recognise(noise)
    for link in fabric.links:
        assert link.a <= link.b
        assert {link.a.device, link.b.device} <= fabric.devices.keys() | set(fabric.dangling)
