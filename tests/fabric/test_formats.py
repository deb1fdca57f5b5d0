"""Each format of a dump: a sample as its program prints it, and generated fabrics that all formats agree on."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fabrics import fat_tree, rail_pods, three_tiers
from topocheck.checks.fabric.run import judge_fabric
from topocheck.fabric.merge import merge
from topocheck.fabric.neighbours import machine_of
from topocheck.fabric.read import READERS, parse
from topocheck.fabric.tiers import tiers_of
from topocheck.model.base import InputError
from topocheck.model.fabric import DeviceKind, End, Fabric, Protocol

NORMAL = """\
CA: centos-data-201 HCA-1:
    0x0002c903004d14a5      1    1[  ] ==( 4X          10.0 Gbps Active/ LinkUp)==>       2    2[  ] "leaf" ( )
CA: DESCRIPTION:
     0x0002c90300002779  4  1[  ] ==( 4X           5.0 Gbps Active/  LinkUp)==>  2    1[  ] "leaf" ( Could be 10.0 Gbps)
CA: gpu3 mlx5_0:
      0x0002c90300002780      5    1[  ] ==( 2X       53.125 Gbps   Init/  LinkUp)==>  2    3[  ] "leaf" (Could be 4X )
Switch: 0x0002c9020046c588 leaf:
           2    1[  ] ==( 4X           5.0 Gbps Active/  LinkUp)==>       4    1[  ] "DESCRIPTION" ( Could be 10.0 Gbps)
           2    2[  ] ==( 4X          10.0 Gbps Active/  LinkUp)==>       1    1[  ] "centos-data-201 HCA-1" ( )
           2    3[  ] ==( 2X       53.125 Gbps   Init/  LinkUp)==>       5    1[  ] "gpu3 mlx5_0" (Could be 4X )
           2    4[  ] ==(                Down/ Polling)==>             [  ] "" ( )
           2    5[  ] ==(                Down/Disabled)==>             [  ] "" ( )
""".replace("DESCRIPTION", "MT25408 ConnectX Mellanox Technologies")
"""Of the form in rdma-core's infiniband-diags/iblinkinfo.c (print_port), after outputs in public issues."""


def read(text: str, name: str = "dump") -> Fabric:
    return parse(text.encode(), name)


def shown(fabric: Fabric) -> set[tuple[str, ...]]:
    """Return the links by the labels of their ends, so that ids may differ."""
    names = {i: d.label for i, d in fabric.devices.items()}
    return {
        (*sorted((f"{names[x.a.device]}/{x.a.port}", f"{names[x.b.device]}/{x.b.port}")), f"{x.rate_gbit_s}")
        for x in fabric.links
    }


@pytest.mark.parametrize("made", [fat_tree(3, 4, 2, each=2), rail_pods(2, 4, 3, 2), three_tiers(2, 2, 2, 2, 2)])
def test_all_formats_of_one_fabric_agree(made) -> None:  # type: ignore[no-untyped-def]
    texts = [made.text(), made.ports(), made.iblinkinfo(), made.iblinkinfo(line=True), made.db_csv()]
    fabrics = [read(t) for t in texts]
    for fabric in fabrics:
        assert fabric.problems == fabric.dangling == ()
        assert (len(fabric.devices), len(fabric.links)) == (len(made.devices), len(made.links))
        assert shown(fabric) == shown(fabrics[0])
        kinds = [d.kind for d in fabric.devices.values()]
        assert kinds.count(DeviceKind.SWITCH) == sum(kind == "S" for kind, _, _ in made.devices.values())
        assert {d.node for d in fabric.devices.values()} == {d.node for d in fabrics[0].devices.values()}


def test_iblinkinfo() -> None:
    fabric = read(NORMAL)
    switch = fabric.devices["0002c9020046c588"]
    assert (switch.kind, switch.name, switch.ports) == (DeviceKind.SWITCH, "leaf", 5)
    by_port = {x.other("0002c9020046c588").device: x for x in fabric.links}
    first, second, third = by_port["0002c90300002779"], by_port["0002c903004d14a5"], by_port["0002c90300002780"]
    # DDR and QDR are 8b/10b: 4 x 5 x 0.8 = 16 Gb/s, 4 x 10 x 0.8 = 32. HDR: 50 Gb/s of data a lane.
    assert (first.speed, first.rate_gbit_s, first.could_be) == ("DDR", 16.0, "10.0 Gbps")
    assert (second.speed, second.rate_gbit_s, second.could_be, second.state) == ("QDR", 32.0, "", "Active")
    assert (third.speed, third.rate_gbit_s, third.could_be, third.state) == ("HDR", 100.0, "4X", "Init")
    assert [(p.end, p.state) for p in fabric.down] == [
        (End("0002c9020046c588", "4"), "Down/Polling"),
        (End("0002c9020046c588", "5"), "Down/Disabled"),
    ]
    assert fabric.devices["0002c903004d14a5"].node == "centos-data-201"
    assert fabric.problems == fabric.dangling == ()
    found = {(f.id, f.subject) for f in judge_fabric(tiers_of(fabric)).findings}
    assert ("fabric.slow-link", "leaf port 3 - gpu3 mlx5_0") in found
    assert {i for i, _ in found} == {"fabric.slow-link", "fabric.port-state", "fabric.unnamed-adapters"}


LINE = """\
0xf452140300f55051 "              ib-test-7 mlx4_0"     37    1[  ] ==( 4X       14.0625 Gbps Active/  LinkUp)==>  \
0xf45214030067c630      5   16[  ] "MF0;switch-e1be74:SX6036/U1" ( )
0xf45214030067c630 "   MF0;switch-e1be74:SX6036/U1"      5   16[  ] ==( 4X       14.0625 Gbps Active/  LinkUp)==>  \
0xf452140300f55051     37    1[  ] "ib-test-7 mlx4_0" ( )
0xf45214030067c630 "   MF0;switch-e1be74:SX6036/U1"      5   18[  ] ==(                Down/ Polling)==>             \
[  ] "" ( )
""".replace("==>  \\\n", "==>  ")


def test_a_line_for_each_link() -> None:
    fabric = read(LINE)
    (link,) = fabric.links
    assert {link.a, link.b} == {End("f452140300f55051", "1"), End("f45214030067c630", "16")}
    # FDR: 64b/66b of 14.0625 Gb/s, four lanes.
    assert link.rate_gbit_s == pytest.approx(4 * 14.0625 * 64 / 66)
    assert fabric.devices["f45214030067c630"].kind is DeviceKind.SWITCH
    assert fabric.devices["f452140300f55051"].node == "ib-test-7"


def test_ibnetdiscover_with_all_it_can_append() -> None:
    text = fat_tree(1, 2, 0).text().replace("4xHDR", "4xHDR s=4 w=2 v=4")
    assert {x.rate_gbit_s for x in read(text).links} == {200.0}


def test_ports_that_lead_nowhere_are_no_links() -> None:
    text = "SW     2 19 0x0002c9020046c588 4x SDR                                    'leaf'\n"
    fabric = read(fat_tree(1, 2, 0).ports() + text)
    assert [(p.end.port, p.state) for p in fabric.down] == [("19", "no link")]


CONF = """\
# topology.conf
SwitchName=root Switches=grp[10,11]
SwitchName=grp10 Switches=leaf[100-101]
SwitchName=grp11 Switches=leaf102  LinkSpeed=100
SwitchName=leaf100 Nodes=peta[10000-10019]
SwitchName=leaf101 Nodes=peta[10020-10039]
SwitchName=leaf102 Nodes=peta[10100-10119]
"""
"""After testsuite/python/tests/test_133_1_testcases/testcase3/topology.conf of Slurm."""

SCONTROL = """\
SwitchName=root Level=2 LinkSpeed=1 Nodes=peta[10000-10039,10100-10119] Switches=grp[10-11]
SwitchName=grp10 Level=1 LinkSpeed=1 Nodes=peta[10000-10039] Switches=leaf[100-101]
SwitchName=grp11 Level=1 LinkSpeed=1 Nodes=peta[10100-10119] Switches=leaf102
SwitchName=leaf100 Level=0 LinkSpeed=1 Nodes=peta[10000-10019]
SwitchName=leaf101 Level=0 LinkSpeed=1 Nodes=peta[10020-10039]
SwitchName=leaf102 Level=0 LinkSpeed=1 Nodes=peta[10100-10119]
"""
"""The same, as `scontrol show topology` prints it: switches above the leaves also list all nodes below them."""

YAML = """\
---
- topology: other
  flat: true
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - switch: root
        children: grp[10-11]
      - switch: grp10
        children: leaf[100-101]
      - switch: grp11
        children: leaf102
      - switch: leaf100
        nodes: peta[10000-10019]
      - switch: leaf101
        nodes: peta[10020-10039]
      - switch: leaf102
        nodes: peta[10100-10119]
"""


@pytest.mark.parametrize("text", [CONF, SCONTROL, YAML], ids=["conf", "scontrol", "yaml"])
def test_slurm(text: str) -> None:
    if text is YAML:
        pytest.importorskip("yaml")
    fabric = read(text)
    tiers = tiers_of(fabric)
    assert dict(tiers.tier) == {
        "leaf100": 0, "leaf101": 0, "leaf102": 0, "grp10": 1, "grp11": 1, "root": 2
    }  # fmt: skip
    assert {i: x.nodes for i, x in tiers.leaves.items()} == {"leaf100": 20, "leaf101": 20, "leaf102": 20}
    assert (len(fabric.links), fabric.problems) == (60 + 3 + 2, ())
    assert judge_fabric(tiers).findings == ()


def test_slurm_s_tree_is_no_view_of_cables() -> None:
    """Four leaves below one switch and a fifth below another are as somebody wrote them, not a missing uplink."""
    text = "SwitchName=a Switches=l[1-4]\nSwitchName=b Switches=l5\nSwitchName=c Switches=b\n"
    text += "".join(f"SwitchName=l{i} Nodes=n[{4 * i}-{4 * i + 3}]\n" for i in range(1, 6))
    assert judge_fabric(tiers_of(read(text))).findings == ()


def test_blocks_are_parts_that_the_file_does_not_join() -> None:
    fabric = read("BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockSizes=4,8\n")
    assert not fabric.whole
    assert judge_fabric(tiers_of(fabric)).findings == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- topology: a\n  tree: &x [*x]\n", "aliases or deep nesting are not of topology.yaml"),
        ("- topology: a\n  tree: [}\n", "no YAML"),
        ("- topology: a\n  flat: true\n", "no topology with a tree or blocks"),
        ("- topology: a\n  tree: {switches: [{nodes: a}]}\n", "an entry has no switch"),
        ("- topology: a\n  tree: !!python/object/apply:os.system ['true']\n", "no YAML"),
    ],
)
def test_yaml_of_another_kind_is_refused(text: str, message: str) -> None:
    pytest.importorskip("yaml")
    with pytest.raises(InputError, match=message):
        read(text)


LLDPCTL = {
    "lldp": {
        "interface": [
            {
                "eth0": {
                    "via": "LLDP", "rid": "1", "age": "0 day, 00:10:00",
                    "chassis": {"leaf-1": {"id": {"type": "mac", "value": "00:00:00:00:00:0A"}, "descr": "NVUE"}},
                    "port": {
                        "id": {"type": "ifname", "value": "swp1"}, "descr": "to gpu01", "ttl": "120", "mfs": "9216",
                        "auto-negotiation": {"supported": True, "enabled": True, "current": "100GbaseR4"},
                    },
                }
            },
            {
                "eth1": {
                    "via": "LLDP", "rid": "2",
                    "chassis": {"id": {"type": "mac", "value": "00:00:00:00:00:0b"}},
                    "port": {"id": {"type": "mac", "value": "00:00:00:00:00:0c"}, "descr": "Ethernet1/2"},
                }
            },
        ]
    }
}  # fmt: skip
"""Of the form that lldpd's tests/integration/test_lldpcli.py expects of `lldpcli -f json show neighbors details`."""

LLDPCTL0 = {
    "lldp": [
        {
            "interface": [
                {
                    "name": "eth0", "via": "LLDP", "rid": "1",
                    "chassis": [
                        {"id": [{"type": "mac", "value": "00:00:00:00:00:0a"}], "name": [{"value": "leaf-1"}]}
                    ],
                    "port": [
                        {
                            "id": [{"type": "ifname", "value": "swp1"}], "descr": [{"value": "to gpu01"}],
                            "mfs": [{"value": "9216"}], "auto-negotiation": [{"current": [{"value": "100GbaseR4"}]}],
                        }
                    ],
                },
                {
                    "name": "eth1", "via": "LLDP", "rid": "2",
                    "chassis": [{"id": [{"type": "mac", "value": "00:00:00:00:00:0b"}]}],
                    "port": [
                        {"id": [{"type": "mac", "value": "00:00:00:00:00:0c"}], "descr": [{"value": "Ethernet1/2"}]}
                    ],
                },
            ]
        }
    ]
}  # fmt: skip
"""The same in the form of json0."""


@pytest.mark.parametrize("tree", [LLDPCTL, LLDPCTL0], ids=["json", "json0"])
def test_lldpctl(tree: object) -> None:
    fabric = read(json.dumps(tree), "dumps/gpu01.lldp.json")
    assert (fabric.protocol, fabric.whole) == (Protocol.ETHERNET, False)
    first, second = fabric.links
    assert (first.b, first.a) == (End("gpu01/eth0", "1"), End("00:00:00:00:00:0a", "swp1"))
    assert (first.mtu, first.rate_gbit_s) == (9216, 100.0)
    assert (second.a, second.mtu, second.rate_gbit_s) == (End("00:00:00:00:00:0b", "Ethernet1/2"), None, None)
    assert fabric.devices["00:00:00:00:00:0a"].name == "leaf-1"
    assert fabric.devices["gpu01/eth0"].adapter == "eth0"


NETWORKCTL = """\
LINK   CHASSIS-ID        SYSTEM-NAME CAPS        PORT-ID PORT-DESCRIPTION
enp1s0 00:00:00:00:00:0a leaf-1      ..b........ swp7    to gpu07 port 1
enp2s0 00:00:00:00:00:0b -           ..b.r...... swp8    -

Capability Flags:
b - Bridge; r - Router

2 neighbor(s) listed.
"""
"""Columns as systemd's src/network/networkctl-lldp.c makes them (link_lldp_status)."""


def test_networkctl() -> None:
    fabric = read(NETWORKCTL, "gpu07.txt")
    assert [(x.b, x.a) for x in fabric.links] == [
        (End("gpu07/enp1s0", "1"), End("00:00:00:00:00:0a", "swp7")),
        (End("gpu07/enp2s0", "1"), End("00:00:00:00:00:0b", "swp8")),
    ]
    assert fabric.devices["00:00:00:00:00:0b"].label == "00:00:00:00:00:0b"
    older = NETWORKCTL.replace("CHASSIS-ID", "CHASSIS ID").replace("SYSTEM-NAME", "SYSTEM NAME")
    older = older.replace("PORT-ID", "PORT ID").replace("PORT-DESCRIPTION", "PORT DESCRIPTION")
    assert [x.a for x in read(older, "gpu07.txt").links] == [x.a for x in fabric.links]


def test_networkctl_json() -> None:
    neighbour = {"ChassisID": "00:00:00:00:00:0A", "PortID": "swp7", "SystemName": "leaf-1"}
    tree = {"Neighbors": [{"InterfaceIndex": 2, "InterfaceName": "enp1s0", "Neighbors": [neighbour]}]}
    (link,) = read(json.dumps(tree), "gpu07.json").links
    assert (link.b, link.a) == (End("gpu07/enp1s0", "1"), End("00:00:00:00:00:0a", "swp7"))


def test_views_of_nodes_are_put_together() -> None:
    texts = {f"gpu{i:02d}.json": json.dumps(LLDPCTL).replace("swp1", f"swp{i}") for i in range(1, 9)}
    fabric = merge([read(t, name) for name, t in texts.items()])
    tiers = tiers_of(fabric)
    assert {tiers.label(x.id): x.nodes for x in tiers.leaves.values()} == {"leaf-1": 8, "00:00:00:00:00:0b": 8}
    assert judge_fabric(tiers).findings == ()


def test_one_port_with_another_mtu_is_named() -> None:
    texts = {f"gpu{i:02d}.json": json.dumps(LLDPCTL).replace("swp1", f"swp{i}") for i in range(1, 9)}
    texts["gpu03.json"] = texts["gpu03.json"].replace("9216", "1500")
    result = judge_fabric(tiers_of(merge([read(t, name) for name, t in texts.items()])))
    (finding,) = result.findings
    assert (finding.id, finding.title) == ("fabric.mtu", "MTU 1500; 7 of 8 links have 9216")
    assert "gpu03 eth0" in finding.subject


@pytest.mark.parametrize("name", ["gpu07.json", "a/b/gpu07.lldp.json", "gpu07.networkctl.txt", "gpu07"])
def test_a_node_is_named_after_its_file(name: str) -> None:
    assert machine_of(name) == "gpu07"


SAMPLES = (NORMAL, LINE, CONF, SCONTROL, json.dumps(LLDPCTL), json.dumps(LLDPCTL0), NETWORKCTL,
           fat_tree(1, 2, 1).text(), fat_tree(1, 2, 1).ports(), fat_tree(1, 2, 1).db_csv())  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES)
def test_one_reader_alone_takes_a_text(sample: str) -> None:
    assert sum(recognise(sample) for _, recognise, _ in READERS) == 1


@pytest.mark.parametrize("unit", ["' - '", "==(", " ", '"', "[1]", "SwitchName=a "])
def test_long_lines_take_no_longer_than_they_are(unit: str) -> None:
    """Half a million characters in one line; with the square of that no reader would come back."""
    text = "CA 1 1 0x0000000000000001 4x SDR - CA 1 1 0x0000000000000002 ( '" + unit * (500_000 // len(unit))
    for _, recognise, parse_ in READERS:
        recognise(text)
        with contextlib.suppress(InputError):
            parse_(text, "dump")


@given(st.sampled_from(SAMPLES), st.integers(0, 5000), st.integers(0, 40), st.text(max_size=40))
def test_any_text_gives_a_fabric_or_one_line(sample: str, at: int, cut: int, noise: str) -> None:
    at %= len(sample) + 1
    text = sample[:at] + noise + sample[at + cut :]
    for _, recognise, parse_ in READERS:
        recognise(text)
        try:
            fabric = parse_(text, "dump")
        except InputError:
            continue
        for link in fabric.links:
            assert link.a <= link.b
            assert {link.a.device, link.b.device} <= fabric.devices.keys() | set(fabric.dangling)
