"""RDMA devices and network interfaces."""

from __future__ import annotations

import msgspec

from topocheck.model.base import ABSENT, NOT_RECORDED, Fact, Missing, known


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
    is_virtual: bool | Missing = ABSENT


class NetFacts(Fact, frozen=True, kw_only=True):
    """All RDMA devices and interfaces; `verbs_devices` are the names under /dev/infiniband.

    `verbs_opens`: name (`uverbs0`) -> whether this process may open it.
    """

    rdma: tuple[RdmaDevice, ...] | Missing = ABSENT
    interfaces: tuple[NetInterface, ...] | Missing = ABSENT
    verbs_devices: tuple[str, ...] | Missing = ABSENT
    verbs_accessible: bool | Missing = ABSENT
    verbs_opens: dict[str, bool | Missing] = msgspec.field(default_factory=dict)
