"""LLDP as switches and lldpd show it: tables, plain text, keyvalue; and the same cable seen from both its ends."""

from __future__ import annotations

import json

import pytest

from tests.fabric.test_formats import NETWORKCTL
from topocheck.fabric.merge import merge
from topocheck.fabric.read import parse
from topocheck.fabric.tiers import tiers_of
from topocheck.model.fabric import DeviceKind, Fabric

EOS = """\
Last table change time   : 0:04:05 ago
Number of table inserts  : 7

Port          Neighbor Device ID       Neighbor Port ID    TTL
---------- ------------------------ ---------------------- ---
Et1           spine-1.dc               Ethernet1           120
Et2           a-spine-with-a-long-name.dc.example Ethernet2           120
Et3           gpu03                    aac1.abfd.151a      120
Et4           gpu04                    enp1s0f0            120
Ma0           gpu01                    Management0         120
"""
NXOS = """\
Capability codes:
  (R) Router, (B) Bridge, (T) Telephone, (C) DOCSIS Cable Device
  (W) WLAN Access Point, (P) Repeater, (S) Station, (O) Other
Device ID            Local Intf      Hold-time  Capability  Port ID
spine-1.dc           Eth1/49         120        BR          Eth3/1
A-SPINE-WITH-A-LONG-NAME
                     Eth1/50         120        BR          Eth4/1
gpu03                Eth1/3          120                    eth0
gpu04                Eth1/4          120        S           ens1f0
mgmt-switch          mgmt0           120        BR          47

Total entries displayed: 5
"""
SONIC = """\
Capability codes: (R) Router, (B) Bridge, (O) Other
LocalPort    RemoteDevice    RemotePortID       Capability    RemotePortDescr
-----------  --------------  -----------------  ------------  -----------------
Ethernet0    spine-1         etp1               BR            Ethernet0
Ethernet4    spine-2         etp1               BR            Ethernet0
Ethernet8    gpu03           00:00:00:00:00:11  BR            enp1s0f0
Ethernet12   gpu04           00:00:00:00:00:12                enp1s0f0
eth0         oob             00:00:00:00:00:13  BO            WAN PORT
--------------------------------------------------
Total entries displayed:  5
"""
CUMULUS = """\
LocalPort  Speed  Mode        RemoteHost                RemotePort
---------  -----  ----------  ------------------------  -----------------
eth0       1G     Mgmt        oob-mgmt-switch           swp10
swp1       25G    BondMember  gpu03                     ens3
swp2       25G    Default     gpu04.cluster.example     1c:34:da:67:8c:6c
swp51      100G   Default     spine-1                   swp1
swp52      100G   Default     spine-2                   swp1
"""
NVUE = """\
Interface  State  Speed  MTU    Type      Remote Host      Remote Port  Summary
---------  -----  -----  -----  --------  ---------------  -----------  ----------------------------------------
eth0       up     1G     1500   eth       oob-mgmt-switch  swp10        IP Address:            192.168.200.11/24
                                                                        IP Address:  fe80::4638:39ff:fe22:17a/64
lo         up            65536  loopback                                IP Address:                  127.0.0.1/8
swp1       up     25G    9216   swp       gpu03            ens3
swp2       up     25G    9216   swp       gpu04            ens3
swp51      up     100G   9216   swp       spine-1          swp1
swp52      up     100G   9216   swp       spine-2          swp1
"""
LLDPCTL = """\
-------------------------------------------------------------------------------
LLDP neighbors:
-------------------------------------------------------------------------------
Interface:    swp51, via: LLDP, RID: 1, Time: 0 day, 14:07:31
  Chassis:
    ChassisID:    mac 52:54:00:2D:FA:DE
    SysName:      spine-1
    SysDescr:     Cumulus Linux
    Capability:   Bridge, off
    Capability:   Router, on
  Port:
    PortID:       ifname swp1
    PortDescr:    swp1
    TTL:          120
    MFS:          9216
      MAU oper type: 100GbaseR4
-------------------------------------------------------------------------------
Interface:    swp52, via: LLDP, RID: 2, Time: 0 day, 14:07:31
  Chassis:
    ChassisID:    mac 52:54:00:2d:fa:df
    SysName:      spine-2
  Port:
    PortID:       ifname swp1
-------------------------------------------------------------------------------
Interface:    swp1, via: LLDP, RID: 3, Time: 0 day, 14:07:31
  Chassis:
    ChassisID:    mac 00:00:00:00:00:11
    SysName:      gpu03
    Capability:   Bridge, on
  Port:
    PortID:       mac 00:00:00:00:00:11
    PortDescr:    ens3
-------------------------------------------------------------------------------
Interface:    swp2, via: LLDP, RID: 4, Time: 0 day, 14:07:31
  Chassis:
    ChassisID:    mac 00:00:00:00:00:12
    SysName:      gpu04
  Port:
    PortID:       mac 00:00:00:00:00:12
    PortDescr:    ens3
-------------------------------------------------------------------------------
Interface:    eth0, via: LLDP, RID: 5, Time: 0 day, 14:07:31
  Chassis:
    ChassisID:    mac 00:00:00:00:00:13
    SysName:      oob
  Port:
    PortID:       ifname swp9
"""
KEYVALUE = "".join(
    f"lldp.{i}.via=LLDP\nlldp.{i}.rid=1\nlldp.{i}.chassis.mac={chassis}\nlldp.{i}.chassis.name={name}\n"
    f"lldp.{i}.chassis.Bridge.enabled=on\nlldp.{i}.port.{kind}={port}\nlldp.{i}.port.descr={descr}\n"
    for i, chassis, name, kind, port, descr in (
        ("swp51", "52:54:00:2d:fa:de", "spine-1", "ifname", "swp1", "swp1"),
        ("swp52", "52:54:00:2d:fa:df", "spine-2", "ifname", "swp1", "swp1"),
        ("swp1", "00:00:00:00:00:11", "gpu03", "mac", "00:00:00:00:00:11", "ens3"),
        ("swp2", "00:00:00:00:00:12", "gpu04", "mac", "00:00:00:00:00:12", "ens3"),
        ("eth0", "00:00:00:00:00:13", "oob", "ifname", "swp9", "swp9"),
    )
)
"""Of the forms that Arista, Cisco, SONiC and Cumulus document and public configurations show; lldpd's by display.c."""
ALL = {"eos": EOS, "nxos": NXOS, "sonic": SONIC, "cumulus": CUMULUS, "nvue": NVUE, "lldpctl": LLDPCTL, "kv": KEYVALUE}


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
