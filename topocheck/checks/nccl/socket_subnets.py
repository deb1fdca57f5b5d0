"""Interfaces that NCCL uses for TCP, in one subnet."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.needs import unless_lost
from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.settings import judged_version, values
from topocheck.checks.shared.subnets import RULE, addresses_of, shared
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.base import Evidence, Finding, Missing, State
from topocheck.nccl.rules.settings import Settings
from topocheck.nccl.topofile.nic_selection import socket_interfaces, tcp_asked, tcp_between_nodes


def _undecided(c: Context, used: bool | Missing, settings: Settings) -> str:
    """Return why it is not known whether NCCL uses TCP; empty where it is."""
    if isinstance(used, Missing):
        return str(used)
    lost = not tcp_asked(settings) and unless_lost(c, State.WARN, "rdma") is State.UNKNOWN
    return "which RDMA ports are up is not known" if lost else ""


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
        noted where nothing is dropped: jobs run, at the rate of one port. Unknown where the network that NCCL uses is.
    """
    if not c.topology.gpus:
        raise not_applicable("no NVIDIA GPU, so no NCCL job runs here")
    settings = values(c)
    used = tcp_between_nodes(c.node, judged_version(c), settings)
    if used is False:
        raise not_applicable("NCCL does not use TCP between nodes here")
    undecided = _undecided(c, used, settings)
    taken = [i for i in socket_interfaces(c.node, settings) if i.is_virtual is not True or i.bond_slaves]
    for found in shared(c, addresses_of(taken)):
        if undecided:
            yield Finding(
                state=State.UNKNOWN,
                subject="node",
                title=f"{found.title}; whether NCCL uses TCP over them cannot be determined",
                evidence=(*found.evidence, Evidence("network that NCCL uses", undecided)),
            )
            continue
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
