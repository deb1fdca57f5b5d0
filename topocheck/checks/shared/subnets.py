"""Interfaces of one node in one subnet: whether the kernel keeps their packets apart."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from topocheck.checks.registry import Context
from topocheck.checks.shared.common import listed
from topocheck.model.base import Evidence, Missing, State, known
from topocheck.model.net import NetInterface, ipv4_networks

RAW = ("rp_filter", "arp_ignore", "arp_announce", "../all/rp_filter", "../all/arp_ignore", "../all/arp_announce")
Address = tuple[NetInterface, ipaddress.IPv4Interface]


class Shared(NamedTuple):
    """Interfaces that share a subnet.

    Attributes:
        state: unknown, warn, or note where policy routing may keep them apart.
        what: what the kernel does with their packets.
        strict: whether it drops what comes in at all but the first of them.
    """

    network: str
    names: tuple[str, ...]
    members: tuple[Address, ...]
    state: State
    what: str
    strict: bool
    evidence: tuple[Evidence, ...]

    @property
    def title(self) -> str:
        """The names, their subnet, and what the kernel does."""
        return f"{listed(self.names)} are in one subnet ({self.network}), and {self.what}"

    @property
    def fix(self) -> str:
        """The commands that keep their packets apart."""
        return (
            "give each port a subnet of its own, on every node; or as root on every node sysctl -w "
            "net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2, and net.ipv4.conf.IF.rp_filter=2 "
            f"for IF in {listed(self.names)} (for good: a file in /etc/sysctl.d)"
        )


RULE = "a subnet for each port; or arp_ignore 1 and arp_announce 1 or 2, without rp_filter 1"


def address_of(i: NetInterface, a: ipaddress.IPv4Interface) -> Evidence:
    """Return an address as evidence."""
    return Evidence(f"address of {i.name}", str(a))


def addresses_of(interfaces: Iterable[NetInterface]) -> list[Address]:
    """Return the IPv4 addresses of interfaces; link-local ones reach nobody beyond a switch."""
    return [(i, a) for i in interfaces for a in ipv4_networks(i) if not a.ip.is_link_local]


def shared(c: Context, addresses: Iterable[Address]) -> Iterator[Shared]:
    """Yield the subnets that several of the interfaces are in, where nothing keeps their packets apart."""
    subnets: dict[ipaddress.IPv4Network, list[Address]] = {}
    for address in addresses:
        if address[1].network.prefixlen < 32:
            subnets.setdefault(address[1].network, []).append(address)
    for network, members in subnets.items():
        names = tuple(dict.fromkeys(i.name for i, _ in members))
        if len(names) > 1 and (found := _judged(c, str(network), names, tuple(members))) is not None:
            yield found


def _least(values: list[int | Missing]) -> int | None:
    """Return the least value of a setting among some interfaces; None where one is not known."""
    found = [v for v in values if known(v)]
    return None if len(found) < len(values) else min(found, default=None)


def _judged(c: Context, network: str, names: tuple[str, ...], members: tuple[Address, ...]) -> Shared | None:
    filters = [f for f in c.node.net.filters if f.name in names]
    ignore, announce = _least([f.arp_ignore for f in filters]), _least([f.arp_announce for f in filters])
    per_route = _least([f.arp_filter for f in filters])
    tables = c.node.net.other_tables
    strict = any(f.rp_filter == 1 for f in filters) and tables is not True
    if ignore is None or announce is None or not filters:
        state, what = State.UNKNOWN, "whether ARP is set up for that cannot be read"
    elif strict:
        state, what = State.WARN, "the kernel drops what comes in at all but the first of them (rp_filter 1)"
    elif (ignore and announce) or (per_route and tables is True):
        return None
    else:
        state = State.NOTE if tables is True else State.WARN
        what = "each answers ARP for the others' addresses (arp_ignore 0)"
        if ignore:
            what = "each asks in the others' names (arp_announce 0)"
    evidence = (
        *(address_of(i, a) for i, a in members[:4]),
        *(e for f in filters[:1] for e in f.evidence(*RAW)),
        *((Evidence("/proc/net/fib_trie", "tables besides the main one"),) if tables is True else ()),
    )
    return Shared(network, names, members, state, what, strict, evidence)
