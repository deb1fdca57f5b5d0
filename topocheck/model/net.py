"""RDMA devices and network interfaces."""

from __future__ import annotations

import ipaddress

import msgspec

from topocheck.model.base import ABSENT, NOT_RECORDED, Fact, Missing, Reason, known


class Gid(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a port's GID table that is not zero. `type` is `IB/RoCE v1`, `RoCE v2` or `IB`."""

    index: int
    gid: str
    type: str | Missing = ABSENT
    netdev: str | Missing = ABSENT


class RdmaPort(Fact, frozen=True, kw_only=True):
    """One port.

    Attributes:
        state: the word after the number (`ACTIVE`, `DOWN`, `INIT`, `ARMED`).
        phys_state: likewise (`LinkUp`, `Polling`, `Disabled`).
        rate_gbit_s: the port's rate as the kernel prints it, signalling (`400 Gb/sec (4X NDR)` -> 400.0). A port
            that is not ACTIVE shows a default here.
        rate_text: that text.
        counters, hw_counters: name -> value; those that could not be read stand in `counters_missing`.
    """

    port: int
    state: str | Missing = ABSENT
    phys_state: str | Missing = ABSENT
    link_layer: str | Missing = ABSENT
    rate_gbit_s: float | Missing = ABSENT
    rate_text: str | Missing = ABSENT
    lid: int | Missing = ABSENT
    sm_lid: int | Missing = ABSENT
    gids: tuple[Gid, ...] | Missing = ABSENT
    counters: dict[str, int] = msgspec.field(default_factory=dict)
    hw_counters: dict[str, int] = msgspec.field(default_factory=dict)
    counters_missing: dict[str, str] = msgspec.field(default_factory=dict)


class RdmaDevice(Fact, frozen=True, kw_only=True):
    """One device of /sys/class/infiniband. `address` is its PCI function; Missing(absent) for software RDMA."""

    name: str
    address: str | Missing = ABSENT
    netdevs: tuple[str, ...] = ()
    firmware: str | Missing = ABSENT
    board_id: str | Missing = ABSENT
    hca_type: str | Missing = ABSENT
    hw_rev: str | Missing = ABSENT
    node_type: str | Missing = ABSENT
    verbs: str | Missing = NOT_RECORDED
    """Its file under /dev/infiniband (`uverbs0`)."""
    node_guid: str | Missing = ABSENT
    sys_image_guid: str | Missing = ABSENT
    physfn: str | Missing = ABSENT
    ports: tuple[RdmaPort, ...] = ()


def port_kind(device: RdmaDevice, port: RdmaPort) -> str:
    """Return what makes two ports one kind for `nic_rates_gbit_s`: model and link layer, `MT4129 Ethernet`."""
    model = device.hca_type if known(device.hca_type) else "unknown"
    return f"{model} {port.link_layer if known(port.link_layer) else 'unknown'}"


class NetInterface(Fact, frozen=True, kw_only=True):
    """One network interface. `speed_mbit_s` is Missing where the driver gives none or -1.

    Attributes:
        bond_mode, bond_hash_policy: of a bond, the kernel's word (`802.3ad`, `layer3+4`).
        ip_netmasks: of each of `ip_addresses`, as `255.255.255.0` or `ffff:ffff::`; empty where none was given.
    """

    name: str
    address: str | Missing = ABSENT
    driver: str | Missing = ABSENT
    speed_mbit_s: int | Missing = ABSENT
    mtu_bytes: int | Missing = ABSENT
    operstate: str | Missing = ABSENT
    flags: int | Missing = ABSENT
    bond_slaves: tuple[str, ...] = ()
    bond_master: str | Missing = ABSENT
    bond_mode: str | Missing = ABSENT
    bond_hash_policy: str | Missing = ABSENT
    ip_addresses: tuple[str, ...] | Missing = ABSENT
    ip_netmasks: tuple[str, ...] | Missing = NOT_RECORDED
    is_virtual: bool | Missing = ABSENT


def ipv4_networks(i: NetInterface) -> tuple[ipaddress.IPv4Interface, ...]:
    """Return the IPv4 addresses of an interface with their networks; none where the netmasks are not known."""
    if isinstance(i.ip_addresses, Missing) or isinstance(i.ip_netmasks, Missing):
        return ()
    out = []
    for address, mask in zip(i.ip_addresses, i.ip_netmasks, strict=False):
        try:
            out.append(ipaddress.IPv4Interface(f"{address}/{mask}"))
        except ValueError:  # IPv6, or without a netmask
            continue
    return tuple(out)


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One IPv4 route of the main table: `destination` with its length, `gateway` empty where there is none."""

    interface: str
    destination: str
    gateway: str = ""
    metric: int = 0


class InterfaceFilters(Fact, frozen=True, kw_only=True):
    """What the kernel asks of packets of an interface, as it counts (Documentation/networking/ip-sysctl.rst).

    Attributes:
        rp_filter: 1 drops packets whose way back leaves by another interface; 2 if none does; 0 asks nothing.
        arp_ignore: from 1 on, an interface answers for its own addresses only.
        arp_announce: from 1 on, an interface avoids the addresses of others in its questions.
        arp_filter: 1 answers only where the way back leaves by the same interface.
    """

    name: str
    rp_filter: int | Missing = ABSENT
    arp_ignore: int | Missing = ABSENT
    arp_announce: int | Missing = ABSENT
    arp_filter: int | Missing = ABSENT


class NetFacts(Fact, frozen=True, kw_only=True):
    """All RDMA devices and interfaces; `verbs_devices` are the names under /dev/infiniband.

    Attributes:
        verbs_opens: name (`uverbs0`) -> whether this process may open it.
        routes: the main table; `other_tables`: whether there are others, so that policy routing may be in use.
        filters: of the interfaces that share a subnet; of others they decide nothing, and are not read.
    """

    rdma: tuple[RdmaDevice, ...] | Missing = ABSENT
    interfaces: tuple[NetInterface, ...] | Missing = ABSENT
    verbs_devices: tuple[str, ...] | Missing = ABSENT
    verbs_accessible: bool | Missing = ABSENT
    verbs_opens: dict[str, bool | Missing] = msgspec.field(default_factory=dict)
    routes: tuple[Route, ...] | Missing = NOT_RECORDED
    other_tables: bool | Missing = NOT_RECORDED
    filters: tuple[InterfaceFilters, ...] = ()

    def closed(self, device: RdmaDevice) -> str:
        """Return why this process cannot open an RDMA device, in words; empty where it can, or that was not read."""
        files, name = self.verbs_devices, device.verbs
        if not isinstance(name, Missing) and self.verbs_opens.get(name) is False:
            return f"this process may not open /dev/infiniband/{name}"
        there = () if isinstance(files, Missing) and files.reason is Reason.ABSENT else files
        if isinstance(there, Missing) or (isinstance(name, Missing) and any(f.startswith("uverbs") for f in there)):
            return ""
        if isinstance(name, Missing):
            return "/dev/infiniband has no uverbs device here"
        return "" if name in there else f"/dev/infiniband/{name} is not here"
