"""What UFM, ibdiagnet and the subnet administrator say of a fabric, alone and with other dumps of it."""

from __future__ import annotations

import json

import pytest

from tests.fabric.test_formats import shown
from tests.support import fabric_writers as write
from tests.support.fabrics import Made, fat_tree, rail_pods, three_tiers
from topocheck.checks.fabric.run import judge_fabric
from topocheck.fabric.merge import merge
from topocheck.fabric.read import parse, parse_all
from topocheck.fabric.tiers import tiers_of
from topocheck.model.base import InputError, State
from topocheck.model.fabric import DeviceKind, End, Fabric

FABRICS = (fat_tree(3, 4, 2, each=2), rail_pods(2, 4, 3, 2), three_tiers(2, 2, 2, 2, 2))


def read(*texts: str) -> Fabric:
    return merge(parse_all((t.encode(), f"dump{i}") for i, t in enumerate(texts)))


def saquery(made: Made) -> tuple[str, ...]:
    return write.saquery_links(made), write.saquery_ports(made), write.saquery_nodes(made)


@pytest.mark.parametrize("made", FABRICS)
def test_all_say_the_same(made: Made) -> None:
    plain = read(made.text())
    texts = [(write.ufm_ports(made),), (write.lst(made),), (write.net_dump(made),), saquery(made)]
    for fabric in (*(read(*t) for t in texts), read("".join(saquery(made)))):
        assert fabric.problems == fabric.dangling == ()
        assert shown(fabric) == shown(plain)
        assert sorted(d.node for d in fabric.devices.values()) == sorted(d.node for d in plain.devices.values())
    # UFM's list of links has no speeds.
    without = read(write.ufm_links(made))
    assert {x[:2] for x in shown(without)} == {x[:2] for x in shown(plain)}
    assert {x.width for x in without.links} == {4}
    assert sum(d.kind is DeviceKind.SWITCH for d in without.devices.values()) == sum(
        kind == "S" for kind, _, _ in made.devices.values()
    )


@pytest.mark.parametrize("made", FABRICS)
def test_dumps_of_one_fabric_are_one_fabric(made: Made) -> None:
    """Adapters have the GUID of the node in one dump, and that of its port in another."""
    texts = (
        made.text(),
        write.ufm_links(made),
        write.ufm_ports(made),
        made.iblinkinfo(),
        made.db_csv(),
        *saquery(made),
    )
    for order in (texts, texts[::-1]):
        fabric = read(*order)
        assert (len(fabric.devices), len(fabric.links)) == (len(made.devices), len(made.links))
        assert fabric.problems == fabric.dangling == fabric.conflicts == ()
        assert shown(fabric) == shown(read(made.text()))
        assert {x.mtu for x in fabric.links} == {4096}
        assert {x.state for x in fabric.links} == {"Active"}


def test_links_and_ports_of_ufm_are_one_fabric() -> None:
    made = FABRICS[0]
    fabric = read(write.ufm_links(made), write.ufm_ports(made))
    assert shown(fabric) == shown(read(made.text()))


def test_an_adapter_that_was_moved_between_two_dumps_is_said() -> None:
    made = fat_tree(3, 4, 2)
    before = made.text()
    (i,) = [i for i in made.of("n") if made.links[i][0] == made.links[made.of("n")[0]][0]]
    a, pa, _, _, rate = made.links[i]
    made.links[i] = (a, pa, "leaf1", 30, rate)
    fabric = read(before, made.text())
    (conflict,) = fabric.conflicts
    assert made.devices[a][1] in conflict
    assert "leaf-0" in conflict
    assert "dump1 to leaf-1 port 30" in conflict
    assert len(fabric.links) == len(made.links)
    (found,) = [f for f in judge_fabric(tiers_of(fabric)).findings if f.state is State.WARN]
    assert found.id == "fabric.dumps-differ"
    assert "1 ports" not in found.title
    assert conflict in found.title


def test_a_port_that_is_down_in_ufm_s_list() -> None:
    made = fat_tree(1, 2, 1)
    fabric = read(write.ufm_ports(made))
    ends = {p.end for p in fabric.down}
    switches = [i for i, d in fabric.devices.items() if d.kind is DeviceKind.SWITCH]
    assert {e.device for e in ends} == set(switches)
    assert {p.state for p in fabric.down} == {"Down/Polling"}


OLD = [
    {
        "destination_port_dname": "HCA-1/2", "severity": "Info", "source_guid": "248a070300f88fe0", "width": "IB_4x",
        "source_port_dname": "20", "source_port": "20", "destination_port": "2",
        "destination_guid": "b8599f03000a77d0", "name": "248a070300f88fe0_20:ec0d9a03007d7d0b_2",
    },
    {
        "destination_port_dname": "HCA-1/1", "severity": "Info", "source_guid": "248a070300f88fe0", "width": "IB_4x",
        "source_port_dname": "19", "source_port": "19", "destination_port": "1",
        "destination_guid": "b8599f03000a77d0", "name": "248a070300f88fe0_19:ec0d9a03007d7d0a_1",
    },
]  # fmt: skip
"""The example of the guide for version 6.11, without names of ports and descriptions."""


LST = (
    "{ CA Ports:02 SystemGUID:0002c90300165e63 NodeGUID:0002c90300165e60 PortGUID:0002c90300165e61 VenID:000002c9 "
    "DevID:1003 Rev:00000000  LID:0005 PN:01 } { SW Ports:24 SystemGUID:0002c90300688830 NodeGUID:0002c90300688830 "
    "PortGUID:0002c90300688830 VenID:000002c9 DevID:c738 Rev:000000a1  LID:0002 PN:14 } PHY=4x LOG=ACT SPD=2.5\n"
)
"""A line of a public report (of a cable that trained at SDR), in which the switch's port is 20."""


def test_a_line_of_ibdiagnet_s_list() -> None:
    (link,) = read(LST).links
    assert (link.a, link.b) == (End("0002c90300165e60", "1"), End("0002c90300688830", "20"))
    assert (link.width, link.speed, link.rate_gbit_s) == (4, "SDR", 8.0)


def test_links_of_an_older_ufm() -> None:
    fabric = read(json.dumps(OLD))
    assert {(x.a, x.b) for x in fabric.links} == {
        (End("248a070300f88fe0", "20"), End("ec0d9a03007d7d0b", "2")),
        (End("248a070300f88fe0", "19"), End("ec0d9a03007d7d0a", "1")),
    }
    assert fabric.devices["248a070300f88fe0"].kind is DeviceKind.SWITCH
    assert fabric.devices["ec0d9a03007d7d0a"].kind is DeviceKind.ADAPTER
    systems = json.dumps([{"guid": "248a070300f88fe0", "type": "switch", "system_name": "leaf-1", "total_alarms": 0}])
    assert read(json.dumps(OLD), systems).devices["248a070300f88fe0"].name == "leaf-1"
    pages = json.dumps({"num_of_results": 2, "current_page": 1, "content": OLD})
    assert len(read(pages).links) == 2


def test_what_is_no_list_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="expected an answer of UFM"):
        parse(b'{"source_guid": "x"}', "links.json")
    with pytest.raises(InputError, match="no JSON"):
        parse(b'[{"source_guid": "x"', "links.json")


def test_links_by_lid_find_their_nodes_in_another_dump() -> None:
    made = fat_tree(2, 3, 1)
    text = made.ports()  # ibnetdiscover -p has LIDs
    fabric = read(write.saquery_links(made), text)
    assert (len(fabric.devices), len(fabric.links), fabric.dangling) == (len(made.devices), len(made.links), ())
    assert len(tiers_of(fabric).leaves) == 2


def test_the_subnet_manager() -> None:
    record = (
        "SMInfoRecord dump:\n\t\tRID\n\t\tLID...................1\n\t\tSMInfo dump:\n"
        "\t\tGUID..................0x0000000000000001\n\t\tSM_Key................0x0000000000000000\n"
        "\t\tActCount..............2385\n\t\tPriority..............14\n\t\tSMState...............3\n"
    )
    (one,) = read(write.SMINFO).managers
    (two,) = read(record).managers
    assert (one.guid, one.lid, one.priority, one.state) == ("0000000000000001", 1, 14, "MASTER")
    assert (two.guid, two.lid, two.priority, two.state) == ("0000000000000001", 1, 14, "MASTER")
