"""What programs print of RDMA devices and network interfaces, written from facts."""

from __future__ import annotations

import ipaddress

from topocheck.model.base import Missing, known
from topocheck.model.net import NetFacts, NetInterface, RdmaDevice
from topocheck.model.node import Node

_WIDTHS = {400.0: (4, 100.0), 200.0: (4, 50.0), 100.0: (4, 25.0), 800.0: (4, 200.0), 56.0: (4, 14.0), 40.0: (4, 10.0)}
"""Rate in Gb/s -> lanes and the speed of one, as ibv_devinfo -v prints them."""
_IFF = {0x1: "UP", 0x2: "BROADCAST", 0x8: "LOOPBACK", 0x1000: "MULTICAST"}
"""IFF_* of Linux include/uapi/linux/if.h."""


def _devices(net: NetFacts) -> tuple[RdmaDevice, ...]:
    return net.rdma if known(net.rdma) else ()


def ibv_devinfo(net: NetFacts) -> str:
    """Return `ibv_devinfo -v`, as far as it is read."""
    out = []
    for d in _devices(net):
        out += [f"hca_id:\t{d.name}", "\ttransport:\t\t\tInfiniBand (0)"]
        out += [f"\tfw_ver:\t\t\t\t{d.firmware}"] if known(d.firmware) else []
        out += [f"\tnode_guid:\t\t\t{d.node_guid}"] if known(d.node_guid) else []
        out += [f"\tboard_id:\t\t\t{d.board_id}"] if known(d.board_id) else []
        out.append(f"\tphys_port_cnt:\t\t\t{len(d.ports)}")
        for p in d.ports:
            out += [f"\t\tport:\t{p.port}", f"\t\t\tstate:\t\t\tPORT_{p.state} (4)", f"\t\t\tport_lid:\t\t{p.lid}"]
            out.append(f"\t\t\tlink_layer:\t\t{p.link_layer}")
            if p.rate_gbit_s in _WIDTHS:
                lanes, speed = _WIDTHS[p.rate_gbit_s]  # type: ignore[index]
                out += [f"\t\t\tactive_width:\t\t{lanes}X (2)", f"\t\t\tactive_speed:\t\t{speed} Gbps (32)"]
            for g in p.gids if known(p.gids) else ():
                kind = {"IB/RoCE v1": "RoCE v1"}.get(str(g.type), str(g.type))
                # libibverbs writes those of RoCE v2 as inet_ntop does, the others in full.
                text = str(ipaddress.IPv6Address(g.gid)) if g.type == "RoCE v2" else g.gid
                out.append(f"\t\t\tGID[{g.index:3}]:\t\t{text}" + (f", {kind}" if known(g.type) else ""))
        out.append("")
    return "\n".join(out)


def ibstatus(net: NetFacts) -> str:
    """Return `ibstatus`."""
    states = {"DOWN": 1, "INIT": 2, "ARMED": 3, "ACTIVE": 4}
    out = []
    for d in _devices(net):
        for p in d.ports:
            out += [f"Infiniband device '{d.name}' port {p.port} status:", f"\tbase lid:\t 0x{p.lid:x}"]
            out += [f"\tstate:\t\t {states[str(p.state)]}: {p.state}", f"\trate:\t\t {p.rate_text}"]
            out += [f"\tlink_layer:\t {p.link_layer}", ""]
    return "\n".join(out)


def rdma_link(net: NetFacts) -> str:
    """Return `rdma link`."""
    words = {"LinkUp": "LINK_UP", "Polling": "POLLING", "Disabled": "DISABLED"}
    return "\n".join(
        f"link {d.name}/{p.port} state {p.state} physical_state {words.get(str(p.phys_state), 'SLEEP')} "
        + (f"netdev {d.netdevs[0]}" if d.netdevs else "")
        for d in _devices(net)
        for p in d.ports
    )


def ibdev2netdev(net: NetFacts) -> str:
    """Return `ibdev2netdev -v`: only devices that have an interface."""
    return "\n".join(
        f"{d.address} {d.name} ({d.hca_type} - X) card fw {d.firmware} port {p.port} ({p.state}) "
        f"==> {d.netdevs[0]} (Up)"
        for d in _devices(net)
        for p in d.ports
        if d.netdevs and known(d.address)
    )


def _interfaces(net: NetFacts) -> tuple[NetInterface, ...]:
    return net.interfaces if known(net.interfaces) else ()


def ip_addr(net: NetFacts) -> str:
    """Return `ip addr`."""
    out = []
    for n, i in enumerate(_interfaces(net), 1):
        flags = 0 if isinstance(i.flags, Missing) else i.flags
        words = ",".join(word for bit, word in _IFF.items() if flags & bit)
        state = f" state {str(i.operstate).upper()}" if known(i.operstate) else ""
        out.append(f"{n}: {i.name}: <{words}> mtu {i.mtu_bytes} qdisc mq{state} group default qlen 1000")
        addresses = i.ip_addresses if known(i.ip_addresses) else ()
        out += [f"    {'inet6' if ':' in a else 'inet'} {a}/{64 if ':' in a else 24} scope global" for a in addresses]
    return "\n".join(out)


def ethtool(net: NetFacts) -> str:
    """Return `ethtool NAME` of each interface that tells a speed."""
    return "\n".join(
        f"Settings for {i.name}:\n\tSupported ports: [ FIBRE ]\n\tSpeed: {i.speed_mbit_s}Mb/s\n\tDuplex: Full"
        for i in _interfaces(net)
        if known(i.speed_mbit_s)
    )


def show_gids(net: NetFacts) -> str:
    """Return `show_gids` of MLNX_OFED."""
    out = [
        "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV",
        "---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---",
    ]
    for d in _devices(net):
        for p in d.ports:
            for g in p.gids if known(p.gids) else ():
                v4 = ipaddress.IPv6Address(g.gid).ipv4_mapped
                version = "v2" if g.type == "RoCE v2" else "v1"
                netdev = g.netdev if known(g.netdev) else ""
                out.append(f"{d.name}\t{p.port}\t{g.index}\t{g.gid}\t{v4 or ''}  \t{version}\t{netdev}")
    return "\n".join([*out, f"n_gids_found={len(out) - 2}"])


def mst_status(node: Node) -> str:
    """Return `mst status -v` of MFT."""
    nodes = {d.address: d.numa_node for d in node.pci.devices} if known(node.pci.devices) else {}
    out = ["MST modules:", "------------", "    MST PCI module is not loaded", "PCI devices:", "------------",
           "DEVICE_TYPE             MST                      PCI       RDMA           NET            NUMA"]  # fmt: skip
    for n, d in enumerate(_devices(node.net)):
        short = str(d.address).removeprefix("0000:")
        names = ",".join(f"net-{x}" for x in d.netdevs) if known(d.netdevs) else ""
        at = nodes.get(str(d.address))
        numa = at if isinstance(at, int) else ""
        out.append(
            f"ConnectX7(rev:0)        /dev/mst/mt4129_pciconf{n}      {short}   {d.name}          {names}  {numa}  "
        )
    return "\n".join(out)
