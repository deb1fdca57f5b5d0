"""How packets leave: IPv4 routes, other routing tables, and what the kernel asks of interfaces that share a subnet.

/proc/net/route holds the main table (Linux: net/ipv4/fib_trie.c, fib_route_seq_show). Policy routing uses others; those
that exist are named in /proc/net/fib_trie, and the rules that choose between them are not in /proc.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from topocheck.host.base import Host, HostError
from topocheck.model.base import Missing, known
from topocheck.model.net import InterfaceFilters, NetInterface, Route, ipv4_networks
from topocheck.probes.sysfs_reader import Folder

FILE = "/proc/net/route"
TABLES = "/proc/net/fib_trie"
CONF = "/proc/sys/net/ipv4/conf"
FILTERS = ("rp_filter", "arp_ignore", "arp_announce", "arp_filter")
LIMIT = 1 << 18
"""Bytes of the routing table that are read: two thousand routes."""
_UP = 0x1
"""RTF_UP (Linux: include/uapi/linux/route.h)."""


def dotted(text: str) -> str | None:
    """Return `10.1.0.0` of `0000010A`, as the kernel prints a 32-bit address of a little-endian machine.

    None for other text, and on big-endian machines (s390x), where the digits stand the other way round.
    """
    if not re.fullmatch("[0-9A-Fa-f]{8}", text):
        return None
    return ".".join(str(x) for x in reversed(bytes.fromhex(text)))


def prefix_length(mask: str) -> int | None:
    """Return 24 of `255.255.255.0`; None where the ones are not in front."""
    bits = "".join(f"{int(x):08b}" for x in mask.split("."))
    ones = bits.rstrip("0")
    return None if "0" in ones else len(ones)


def parse_routes(text: str) -> tuple[Route, ...]:
    """Return the routes of the main table that are up; lines of another form are left out."""
    out = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) < 8 or not re.fullmatch("[0-9A-Fa-f]{1,4}", words[3]) or not int(words[3], 16) & _UP:
            continue
        destination, gateway, mask = dotted(words[1]), dotted(words[2]), dotted(words[7])
        length = prefix_length(mask) if mask else None
        if destination is None or gateway is None or length is None:
            continue
        metric = int(words[6]) if re.fullmatch("[0-9]{1,10}", words[6]) else 0
        out.append(
            Route(
                interface=words[0],
                destination=f"{destination}/{length}",
                gateway="" if gateway == "0.0.0.0" else gateway,
                metric=metric,
            )
        )
    return tuple(out)


def read_routes(host: Host) -> tuple[Route, ...] | Missing:
    """Read the main table."""
    try:
        return parse_routes(host.read_text(FILE, LIMIT))
    except HostError as e:
        return e.missing()


def read_other_tables(host: Host) -> bool | Missing:
    """Return whether there are routing tables besides the main and the local one: policy routing may be in use."""
    try:
        return bool(host.read_lines(TABLES, "Id "))
    except HostError as e:
        return e.missing()


def _of(host: Host, name: str) -> InterfaceFilters:
    """Return the settings as they count: the larger of an interface's value and that of all (ip-sysctl.rst)."""
    every, own = Folder(host, f"{CONF}/all"), Folder(host, f"{CONF}/{name}")

    def value(file: str) -> int | Missing:
        both = [f.value(file, _number) for f in (every, own)]
        lost = next((x for x in both if isinstance(x, Missing)), None)
        return lost if lost is not None else max(x for x in both if known(x))

    rp_filter, arp_ignore, arp_announce, arp_filter = (value(f) for f in FILTERS)
    return InterfaceFilters(
        source=f"{CONF}/{name}",
        raw={**{f"../all/{k}": v for k, v in every.raw.items()}, **own.raw},
        name=name,
        rp_filter=rp_filter,
        arp_ignore=arp_ignore,
        arp_announce=arp_announce,
        arp_filter=arp_filter,
    )


def _number(text: str) -> int:
    return int(text) if re.fullmatch("[0-9]{1,3}", text.strip()) else 0


def shared_subnets(interfaces: Iterable[NetInterface]) -> dict[str, list[str]]:
    """Return subnet -> the interfaces with hardware of their own, or bonds, that have an address in it: two or more."""
    found: dict[str, list[str]] = {}
    for i in interfaces:
        if i.is_virtual is True and not i.bond_slaves:
            continue
        for network in dict.fromkeys(n.network for n in ipv4_networks(i)):
            if network.prefixlen < 32:
                found.setdefault(str(network), []).append(i.name)
    return {k: v for k, v in found.items() if len(v) > 1}


def read_filters(host: Host, interfaces: tuple[NetInterface, ...] | Missing) -> tuple[InterfaceFilters, ...]:
    """Read what the kernel asks of the interfaces that share a subnet; elsewhere these settings decide nothing."""
    if isinstance(interfaces, Missing):
        return ()
    names = dict.fromkeys(n for names in shared_subnets(interfaces).values() for n in names)
    return tuple(_of(host, n) for n in host.at_most(list(names), 64, "interfaces that share a subnet"))
