"""Text of `ip addr` and `ip link` (iproute2), and of `ethtool NAME`."""

from __future__ import annotations

import ipaddress
import re

from topocheck.readers.base import Answers, Reader, numbered

_CLASS = "/sys/class/net"
_LINK = re.compile(r"([0-9]{1,6}): ([\w.\-]{1,32})(?:@[\w.\-]{1,32})?: <([A-Z_,0-9\-]*)> mtu ([0-9]{1,9})(.*)")
_ETHTOOL = re.compile(r"Settings for ([\w.\-]{1,32}):\s*$")
_FLAGS = {"UP": 0x1, "BROADCAST": 0x2, "LOOPBACK": 0x8, "POINTOPOINT": 0x10, "NOARP": 0x80, "PROMISC": 0x100,
          "ALLMULTI": 0x200, "MASTER": 0x400, "SLAVE": 0x800, "MULTICAST": 0x1000}  # fmt: skip
"""IFF_* of Linux include/uapi/linux/if.h, by the words of ip; those that sysfs shows."""
MAX_INTERFACES = 1 << 12


def recognise(text: str) -> bool:
    """Tell whether the first line of an interface, or of ethtool, stands in the text."""
    return re.search(rf"^(?:{_LINK.pattern}|Settings for [\w.\-]{{1,32}}:)", text, re.M) is not None


def read(text: str) -> Answers:
    """Return interfaces with flags, MTU, state and addresses; speeds from ethtool."""
    found = Answers()
    names: list[str] = []
    addresses: dict[str, list[list[str]]] = {}
    name = settings = ""
    for at, line in numbered(text):
        if (m := _LINK.match(line)) and len(names) < MAX_INTERFACES:
            name, settings = m[2], ""
            names.append(name)
            addresses.setdefault(name, [])
            flags = sum(bit for word, bit in _FLAGS.items() if word in m[3].split(","))
            found.file(at, f"{_CLASS}/{name}/flags", f"0x{flags:x}")
            found.file(at, f"{_CLASS}/{name}/mtu", m[4])
            if state := re.search(r" state ([A-Z]+)", m[5]):
                found.file(at, f"{_CLASS}/{name}/operstate", state[1].lower())
            if master := re.search(r" master ([\w.\-]{1,32})", m[5]):
                found.put(at, f"../{master[1]}", "readlink", f"{_CLASS}/{name}/master")
        elif m := _ETHTOOL.match(line):
            settings, name = m[1], ""
        elif name and (m := re.match(r"\s+(inet6?) ([0-9a-fA-F.:]{2,45})(?:/([0-9]{1,3}))?", line)):
            addresses[name].append([m[1], m[2], _netmask(m[1], m[3])])
        elif settings and (m := re.match(r"\s+Speed: (?:([0-9]{1,9})Mb/s|Unknown!)", line)):
            found.file(at, f"{_CLASS}/{settings}/speed", m[1] or "-1")
        elif settings and line.strip() and not line[:1].isspace():
            settings = ""
    if names:
        found.names(1, _CLASS, names, whole=True)
        if any(addresses.values()):
            found.put(1, addresses, "psutil", "net_netmasks")
    return found


def _netmask(family: str, length: str | None) -> str:
    """Return `255.255.255.0` of 24, as psutil does; empty where ip gives no length, or one that cannot be."""
    try:
        any_address = "::" if family == "inet6" else "0.0.0.0"
        return str(ipaddress.ip_network(f"{any_address}/{length}").netmask)
    except ValueError:
        return ""


READER = Reader(
    name="ip addr, ethtool", tells="network interfaces, their addresses and speeds", recognise=recognise, read=read
)
