"""IPv4 addresses of RoCE ports: several ports in one subnet, and ports from which no route leads to other nodes."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from topocheck.checks.registry import Context, check, not_applicable, once
from topocheck.checks.shared.common import listed
from topocheck.checks.shared.fixes import on_node
from topocheck.checks.shared.settings import active_nics, no_active_nic
from topocheck.checks.shared.subnets import RULE, address_of, addresses_of, shared
from topocheck.checks.sources import Needs
from topocheck.model.base import Evidence, Finding, Missing, State, known
from topocheck.model.net import NetInterface
from topocheck.topology.types import Nic

Port = tuple[Nic, NetInterface, ipaddress.IPv4Interface]
"""A NIC, its interface, and an address of that."""
_PAIR_LENGTH = 30
"""From this length of a prefix on, a subnet has two hosts: the port and its switch (RFC 3021 for 31)."""


@once
def _ports(c: Context) -> tuple[Port, ...]:
    """Return the IPv4 addresses of active RoCE ports; link-local ones reach nobody beyond a switch."""
    out: list[Port] = []
    for n in active_nics(c):
        layers = {p.link_layer for p in (n.rdma.ports if n.rdma is not None else ()) if p.state == "ACTIVE"}
        if "Ethernet" in layers:
            out += [(n, i, a) for i, a in addresses_of(n.interfaces)]
    return tuple(out)


def _judged(c: Context) -> tuple[Port, ...]:
    if not active_nics(c):
        raise not_applicable(no_active_nic(c))
    found = _ports(c)
    if not found:
        raise not_applicable("no active RoCE port with an IPv4 address and a netmask that are known")
    return found


@check(
    "rdma.same-subnet",
    title="RoCE ports share a subnet, and the kernel mixes them up",
    severity=State.WARN,
    reads=(
        "addresses and netmasks of the interfaces of RoCE ports",
        "/proc/sys/net/ipv4/conf/*/{rp_filter,arp_ignore,arp_announce,arp_filter}",
        "/proc/net/{route,fib_trie}",
    ),
    needs=Needs(("rdma", "interfaces", "addresses"), ("routes",)),
)
def same_subnet(c: Context) -> Iterator[Finding]:
    """RoCE ports share a subnet, and the kernel mixes them up.

    Looks at:
        Active RoCE ports with addresses in one IPv4 subnet, what the kernel asks of their packets (rp_filter), whose
        addresses they answer for (arp_ignore, arp_announce, arp_filter), and whether there are routing tables besides
        the main one.

    Why it matters:
        With the kernel's defaults each port answers ARP for the addresses of the others, so packets for one arrive at
        another, whose hardware drops them: connections time out, or all traffic shares one port. With rp_filter 1 the
        questions that come in at any port but the first are dropped.

    Fix:
        A subnet for each port is the simplest. Else arp_ignore=1, arp_announce=2 and rp_filter=2 on every node, or
        policy routing: a table and a rule for each port's address.

    Does not apply:
        To InfiniBand, to ports in subnets of their own, and where ARP is set up for it already.
    """
    for found in shared(c, [(i, a) for _, i, a in _judged(c)]):
        yield Finding(
            state=found.state,
            subject="node",
            title=found.title,
            consequence="packets for one port arrive at another: RoCE connections time out (work completion with "
            "status 12), or all traffic shares one port",
            evidence=found.evidence,
            rule=RULE,
            fix=on_node(c, found.fix),
        )


@check(
    "rdma.no-route",
    title="No route leads from a RoCE port to other nodes",
    severity=State.WARN,
    reads=("addresses and netmasks of the interfaces of RoCE ports", "/proc/net/{route,fib_trie}"),
    needs=Needs(("rdma", "interfaces", "addresses"), ("routes",)),
)
def no_route(c: Context) -> Iterator[Finding]:
    """No route leads from a RoCE port to other nodes.

    Looks at:
        Active RoCE ports whose subnet holds nobody but the port and its switch (/30, /31, /32), as on routed fabrics,
        and the routes of the main table that leave by them.

    Why it matters:
        Without a route over that switch, packets for other nodes leave by the default route, over a management
        network, or not at all: connections time out or are unreachable.

    Fix:
        A route to the networks of the other nodes by each port (`ip route add NETWORK via SWITCH dev IF`), or the
        fabric's routing daemon.

    Does not apply:
        To InfiniBand, to subnets that hold other nodes, and where other routing tables exist, whose rules topocheck
        does not read.
    """
    narrow = [p for p in _judged(c) if p[2].network.prefixlen >= _PAIR_LENGTH]
    net = c.node.net
    if not narrow:
        raise not_applicable("the subnets of the RoCE ports hold other nodes")
    if net.other_tables is True:
        raise not_applicable("other routing tables exist, which policy routing may use")
    if isinstance(net.routes, Missing) or not known(net.other_tables):
        why = net.routes if isinstance(net.routes, Missing) else net.other_tables
        yield Finding(
            state=State.UNKNOWN,
            subject="node",
            title=f"the routes cannot be read: {why}",
            rule="a port alone with its switch needs a route by a gateway",
        )
        return
    onward = {r.interface for r in net.routes if r.gateway}
    without = [p for p in narrow if p[1].name not in onward]
    if not without:
        return
    default = next((r for r in sorted(net.routes, key=lambda r: r.metric) if r.destination == "0.0.0.0/0"), None)
    leaves = f"leave by {default.interface}, the default route" if default else "have no route"
    names = listed(dict.fromkeys(f"{i.name} ({a})" for _, i, a in without))
    yield Finding(
        state=State.WARN,
        subject="node",
        title=f"no route to other nodes leaves by {names}, whose subnet holds only the port and its switch",
        consequence=f"packets of these ports for other nodes {leaves}: RoCE connections fail or time out",
        evidence=(
            *(address_of(i, a) for _, i, a in without[:4]),
            Evidence("/proc/net/route", listed((f"{r.destination} dev {r.interface}" for r in net.routes), 4)),
        ),
        rule="a port alone with its switch needs a route by a gateway",
        fix=f"ip route add NETWORK via SWITCH dev {without[0][1].name} (root) for the networks of the other nodes' "
        "ports, likewise for each port; or start the fabric's routing daemon",
    )
