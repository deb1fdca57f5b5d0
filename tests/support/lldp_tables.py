"""A leaf with two spines and two nodes, as switches and lldpd show what it hears by LLDP."""

from __future__ import annotations

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
DETAIL = """\
Capability codes:
  (R) Router, (B) Bridge, (T) Telephone, (C) DOCSIS Cable Device
Device ID            Local Intf      Hold-time  Capability  Port ID

Chassis id: 0014.1c57.a48b
Port id: Eth3/1
Local Port id: Eth1/49
Port Description: to leaf-1
System Name: spine-1
System Description: Cisco Nexus Operating System
Time remaining: 91 seconds
System Capabilities: B, R
Enabled Capabilities: B, R
Management Address: 10.30.140.1

Chassis id: 0014.1c57.a48c
Port id: Eth3/1
Local Port id: Eth1/50
System Name: spine-2
Enabled Capabilities: B, R

Chassis id: 0014.1c57.a48d
Port id: 0014.1c57.a48d
Local Port id: Eth1/3
Port Description: enp1s0f0
System Name: gpu03
Enabled Capabilities: not advertised

Chassis id: 0014.1c57.a48e
Port id: 0014.1c57.a48e
Local Port id: Eth1/4
Port Description: enp1s0f0
System Name: gpu04

Chassis id: 0014.1c57.a48f
Port id: 47
Local Port id: mgmt0
System Name: oob
Enabled Capabilities: B
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
TABLES = {
    "eos": EOS,
    "nxos": NXOS,
    "sonic": SONIC,
    "cumulus": CUMULUS,
    "nvue": NVUE,
    "lldpctl": LLDPCTL,
    "detail": DETAIL,
    "kv": KEYVALUE,
}
