"""Interfaces that NCCL uses for TCP, in one subnet."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.settings import judged_version, values
from topocheck.checks.shared.subnets import RULE, addresses_of, shared
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.base import Finding, State
from topocheck.nccl.topofile.nic_selection import network_of, socket_interfaces


@check(
    "nccl.sockets-share-subnet",
    title="Interfaces that NCCL uses for sockets share a subnet",
    severity=State.WARN,
    reads=(
        "addresses and netmasks of the interfaces that NCCL takes",
        "/proc/sys/net/ipv4/conf/*/{rp_filter,arp_ignore,arp_announce,arp_filter}",
        "/proc/net/{route,fib_trie}",
    ),
    needs=Needs((*GPUS, "rdma", "interfaces", "addresses", "settings"), ("routes",)),
    scope=Scope.PROCESS,
)
def sockets_share_subnet(c: Context) -> Iterator[Finding]:
    """Interfaces that NCCL uses for sockets share a subnet.

    Looks at:
        Where NCCL uses TCP between nodes: the interfaces that it takes (NCCL_SOCKET_IFNAME, else its own choice) with
        addresses in one IPv4 subnet, and what the kernel asks of their packets, as `rdma.same-subnet` does.

    Why it matters:
        NCCL spreads its channels over all of them, but the kernel sends by the first and answers ARP for all by any:
        two ports carry what one can. With rp_filter 1 connections to all but the first time out.

    Fix:
        A subnet for each interface, a bond, or NCCL_SOCKET_IFNAME with one of them. Else arp_ignore=1, arp_announce=2
        and rp_filter=2 on every node.

    Does not apply:
        Where NCCL uses RDMA or a plugin, to virtual interfaces, and where ARP or policy routing keeps them apart. Only
        noted where nothing is dropped: jobs run, at the rate of one port.
    """
    if not c.topology.gpus:
        raise not_applicable("no NVIDIA GPU, so no NCCL job runs here")
    settings = values(c)
    if network_of(c.node, judged_version(c), settings) != "Socket":
        raise not_applicable("NCCL does not use TCP between nodes here")
    taken = [i for i in socket_interfaces(c.node, settings) if i.is_virtual is not True or i.bond_slaves]
    for found in shared(c, addresses_of(taken)):
        one = f"NCCL_SOCKET_IFNAME='={found.names[0]}'"
        yield Finding(
            state=State.NOTE if found.state is State.WARN and not found.strict else found.state,
            subject="node",
            title=found.title,
            consequence="connections to all but the first time out"
            if found.strict
            else "NCCL's connections over all of them share the rate of one",
            evidence=found.evidence,
            rule=RULE,
            fix=f"let NCCL use one of them ({one}); or, on the node itself, bond them, or {found.fix}",
        )
