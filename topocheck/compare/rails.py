"""Rails: which NIC of each node sits in which network.

On a rail-optimised cluster the n-th NIC of every node sits in the n-th network, so that traffic between NICs of one
rail stays below one switch. A NIC whose address belongs to the network of another place is cabled or configured
crosswise. On InfiniBand the subnet prefix tells the rails apart only where each rail has a subnet manager of its
own; LIDs are given by the subnet manager in no order, so they say nothing.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from topocheck.compare.types import RailPort

USUAL_SHARE = 0.6
CERTAIN_SHARE = 0.9
"""From this share on, a NIC in a network that is nobody's is odd; below it racks may have networks of their own."""
_LENGTHS = (8, 16, 24, *(n for n in range(9, 31) if n % 8))
"""Prefix lengths tried, the usual ones first, each time widest first: the widest holds for all racks together."""

Place = tuple[str, int]
"""Slot of a NIC and number of its port."""


class RailMap(msgspec.Struct, frozen=True, kw_only=True):
    """The networks of the places of one kind of node.

    Attributes:
        length: prefix length by which IPv4 addresses were told apart; 0 where they do not tell.
        networks: place -> its usual network, only for places told apart.
        counts: place -> nodes that have it there.
        shares: place -> part of the nodes with an address there that have it.
    """

    length: int = 0
    networks: dict[Place, str] = {}
    counts: dict[Place, int] = {}
    shares: dict[Place, float] = {}


def rail_map(nodes: Iterable[Sequence[RailPort]]) -> RailMap:
    """Return the rails of nodes of one kind.

    IPv4 networks count only where, at one prefix length, most nodes agree on the network of each place and no two
    places share one.
    """
    listed = list(nodes)
    by_prefix = _usual(listed, 0)
    if by_prefix:
        return _made(0, by_prefix, listed)
    for length in _LENGTHS:
        found = _usual(listed, length)
        if found:
            return _made(length, found, listed)
    return RailMap()


def _made(length: int, usual: dict[Place, str], nodes: Sequence[Sequence[RailPort]]) -> RailMap:
    told = Counter((p.nic, p.port) for ports in nodes for p in ports if network(p, length))
    counts = Counter(
        (p.nic, p.port) for ports in nodes for p in ports if network(p, length) == usual.get((p.nic, p.port), "-")
    )
    shares = {place: counts[place] / told[place] for place in usual}
    return RailMap(length=length, networks=usual, counts=dict(counts), shares=shares)


def network(port: RailPort, length: int) -> str:
    """Return the network of a port: its InfiniBand subnet prefix for length 0, else its IPv4 network."""
    if length == 0:
        return port.prefix
    if not port.ipv4:
        return ""
    mask = (1 << 32) - (1 << (32 - length))
    return f"{ipaddress.IPv4Address(port.ipv4 & mask)}/{length}"


def _usual(nodes: Sequence[Sequence[RailPort]], length: int) -> dict[Place, str]:
    """Return the usual network of each place, or nothing where this length does not tell the places apart."""
    votes: dict[Place, Counter[str]] = {}
    for ports in nodes:
        for p in ports:
            told = network(p, length)
            if told:
                votes.setdefault((p.nic, p.port), Counter())[told] += 1
    if len(votes) < 2 or len(nodes) < 2:
        return {}
    usual: dict[Place, str] = {}
    for place, counts in votes.items():
        top, n = min(counts.items(), key=lambda c: (-c[1], c[0]))
        if n < USUAL_SHARE * counts.total() or n < 2:
            return {}
        usual[place] = top
    return usual if len(set(usual.values())) == len(usual) else {}


def crossed(ports: Sequence[RailPort], rails: RailMap) -> list[tuple[RailPort, str, str, str]]:
    """Return (port, its network, the usual network, the place where its network is usual) of ports out of place."""
    homes = {n: place for place, n in rails.networks.items()}
    out = []
    for p in ports:
        place = p.nic, p.port
        usual = rails.networks.get(place)
        mine = network(p, rails.length)
        if not usual or not mine or mine == usual:
            continue
        home = homes.get(mine)
        if home is not None or rails.shares[place] >= CERTAIN_SHARE:
            out.append((p, mine, usual, home[0] if home else ""))
    return out
