"""Network interfaces from /sys/class/net (Linux: Documentation/ABI/testing/sysfs-class-net)."""

from __future__ import annotations

import re

from topocheck.host.base import Host, HostError
from topocheck.model.base import ABSENT, NOT_RECORDED, Missing, Reason, is_digits, known, unparsable
from topocheck.model.names import natural_key
from topocheck.model.net import NetInterface
from topocheck.probes.rdma import address_in_path, device_address
from topocheck.probes.sysfs_reader import Folder, list_or_missing

CLASS = "/sys/class/net"

# SPEED_UNKNOWN of ethtool, which sysfs prints as -1, or as an unsigned number in kernels before 3.13.
_SPEED_UNKNOWN = frozenset({"-1", "4294967295", "65535", "0"})

MAX_INTERFACES = 1 << 12
"""Interfaces of one network namespace; a host of containers has one or two for each."""

Addresses = dict[str, tuple[tuple[str, str], ...]]
"""Interface -> its IP addresses, each with its netmask; empty where the answer has none."""


def parse_speed(text: str) -> int | Missing:
    """Return an interface's speed in 10^6 bits a second; Missing(unsupported) where the driver knows none."""
    text = text.strip()
    if text in _SPEED_UNKNOWN:
        return Missing(Reason.UNSUPPORTED, f"the driver gives no speed ({text})")
    return int(text) if is_digits(text, 9) else unparsable(text)


def parse_flags(text: str) -> int | Missing:
    """Return the interface's flags from their hexadecimal text (`0x1003`)."""
    m = re.fullmatch(r"0x([0-9a-fA-F]{1,8})", text.strip())
    return int(m[1], 16) if m else unparsable(text)


def parse_mtu(text: str) -> int | Missing:
    """Return the MTU in bytes."""
    text = text.strip()
    return int(text) if is_digits(text, 9) else unparsable(text)


def parse_addresses(answer: object) -> Addresses:
    """Return what psutil answered, addresses without their scope; entries of other forms are left out."""
    out: Addresses = {}
    if not isinstance(answer, dict):
        return out
    for name, entries in answer.items():
        pairs = [e for e in entries if isinstance(e, list | tuple) and len(e) >= 2] if isinstance(entries, list) else []
        out[str(name)] = tuple(
            (str(e[1]).partition("%")[0], str(e[2]) if len(e) > 2 else "")
            for e in pairs
            if str(e[0]) in ("inet", "inet6")
        )
    return out


def _addresses(host: Host) -> tuple[Addresses | Missing, bool]:
    """Return the addresses, and whether their netmasks were asked for: older recordings have none."""
    try:
        return parse_addresses(host.psutil("net_netmasks")), True
    except HostError as e:
        if e.reason is not Reason.NOT_RECORDED:
            return e.missing(), True
    try:
        return parse_addresses(host.psutil("net_addresses")), False
    except HostError as e:
        return e.missing(), False


def _place(host: Host, path: str) -> tuple[str | Missing, bool | Missing]:
    """Return (address of the PCI function, whether the interface is virtual).

    A virtual interface (bond, bridge, VLAN, veth, loopback) hangs below /sys/devices/virtual.
    """
    try:
        real = host.realpath(path)
    except HostError as e:
        return e.missing(), e.missing()
    if "/devices/virtual/" in real:
        return ABSENT, True
    address = address_in_path(real)
    return (address, False) if address else (device_address(host, path), False)


_IFF_MASTER = 0x400
"""Master of a bond (include/uapi/linux/if.h), where the namespace shows no list of bonds."""


def _first_word(text: str) -> str | Missing:
    """Return `802.3ad` of `802.3ad 4`."""
    words = text.split()
    return words[0] if words else ABSENT


def _interface(
    host: Host, name: str, bonds: frozenset[str], addresses: Addresses | Missing, masks: bool
) -> NetInterface:
    path = f"{CLASS}/{name}"
    folder = Folder(host, path)
    address, virtual = _place(host, path)
    master: str | Missing = ABSENT
    if bonds and name not in bonds:
        master = folder.link("master")
        master = master if isinstance(master, Missing) or master in bonds else ABSENT  # a bridge is no bond
    flags = folder.value("flags", parse_flags)
    is_bond = name in bonds or (virtual is True and isinstance(flags, int) and bool(flags & _IFF_MASTER))
    slaves = folder.text("bonding/slaves") if is_bond else ""
    own = addresses.get(name, ()) if known(addresses) else addresses
    return NetInterface(
        source=path,
        raw=folder.raw,
        name=name,
        address=address,
        driver=ABSENT if virtual is True else folder.link("device/driver"),
        speed_mbit_s=ABSENT if virtual is True and not is_bond else folder.value("speed", parse_speed),
        mtu_bytes=folder.value("mtu", parse_mtu),
        operstate=folder.text("operstate"),
        flags=flags,
        bond_slaves=tuple(slaves.split()) if isinstance(slaves, str) else (),
        bond_master=master,
        bond_mode=folder.value("bonding/mode", _first_word) if is_bond else ABSENT,
        bond_hash_policy=folder.value("bonding/xmit_hash_policy", _first_word) if is_bond else ABSENT,
        ip_addresses=tuple(a for a, _ in own) if known(own) else own,
        ip_netmasks=tuple(m for _, m in own) if masks and known(own) else NOT_RECORDED,
        is_virtual=virtual,
    )


def read_interfaces(host: Host) -> tuple[NetInterface, ...] | Missing:
    """Read all interfaces of this network namespace."""
    names = list_or_missing(host, CLASS)
    if isinstance(names, Missing):
        return names
    masters = Folder(host, CLASS).text("bonding_masters") if "bonding_masters" in names else ""
    bonds = frozenset(masters.split()) if isinstance(masters, str) else frozenset[str]()
    addresses, masks = _addresses(host)
    listed = sorted((n for n in names if n != "bonding_masters"), key=natural_key)
    listed = host.at_most(listed, MAX_INTERFACES, "network interfaces")
    return tuple(_interface(host, n, bonds, addresses, masks) for n in listed)
