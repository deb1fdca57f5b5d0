"""Ports that are more than one device, or one device that is more than one port: half ports, bonds, and their MTU."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.common import listed, quote
from topocheck.checks.shared.settings import active_nics, in_force, no_active_nic, place, quoted, read_names, values
from topocheck.checks.sources import NICS, Needs
from topocheck.model.base import Evidence, Finding, State, known
from topocheck.model.net import NetInterface
from topocheck.topology.inventory import by_mellanox
from topocheck.topology.paths import product_of
from topocheck.topology.types import Nic

_SPLIT_PRODUCT = "GB10"
"""Its board joins each QSFP port to two PCIe domains of four lanes (NVIDIA DGX Spark user guide, "Networking")."""


def halves(c: Context) -> list[tuple[Nic, ...]]:
    """Return the active NICs that share one port, where there are several: the same function in two PCIe domains.

    Two cards of one system image are the halves of one chip (Socket Direct, multi-host). On a GB10 they are known by
    the board.
    """
    split = any((p := product_of(g)) is not None and p.name == _SPLIT_PRODUCT for g in c.topology.gpus)
    groups: dict[object, list[Nic]] = {}
    for n in active_nics(c):
        if n.rdma is None or not by_mellanox(n) or known(n.rdma.physfn):
            continue
        image = n.rdma.sys_image_guid
        key = "board" if split else image if known(image) and set(image) - {"0", ":"} else n.address
        groups.setdefault((key, n.address.rsplit(".", 1)[-1]), []).append(n)
    return [tuple(v) for v in groups.values() if len({n.address.rsplit(".", 1)[0] for n in v}) > 1]


@check(
    "rdma.half-port",
    title="Half of a port is left out",
    severity=State.WARN,
    reads=(
        "NCCL_IB_HCA",
        "/sys/class/infiniband/*/sys_image_guid",
        "/sys/class/infiniband/*/ports/*/{state,gids}",
    ),
    scope=Scope.PROCESS,
    needs=Needs((*NICS, "gpu name", "settings"), ("gids", "model")),
)
def half_port(c: Context) -> Iterator[Finding]:
    """Half of a port is left out.

    Looks at:
        RDMA devices that share one physical port, each on a PCIe link of its own (DGX Spark and other GB10 boards;
        Socket Direct cards), which of them NCCL_IB_HCA leaves to NCCL, and whether each has an IPv4 address.

    Why it matters:
        One device reaches no more than its own PCIe link carries: on a GB10 about 100 of the port's 200 Gb/s.

    Fix:
        Name both devices in NCCL_IB_HCA, and give the interface of each an address in a subnet of its own.

    Does not apply:
        Where both halves have an address, and NCCL_IB_HCA leaves both or neither.
    """
    groups = halves(c)
    if not groups:
        raise not_applicable("no port here that two active RDMA devices share")
    s = in_force(c).get("NCCL_IB_HCA")
    for group in groups:
        bare = [n for n in group if _has_no_address(n)]
        if bare and len(bare) < len(group):
            yield _without_address(group, bare)
    if s is None:
        return
    names = read_names(s.value)
    for group in groups:
        used = set(names.chosen(n.label for n in group))
        left = [n for n in group if n.label not in used]
        if not used or not left:
            continue
        yield Finding(
            state=State.WARN,
            subject=place(s),
            title=f"NCCL_IB_HCA={s.value} leaves out {listed(n.label for n in left)}, the other half of the port of "
            f"{listed(sorted(used))}",
            consequence="each half has a PCIe link of its own, so traffic between nodes gets about half of the cable",
            evidence=(*quoted(s), *(_width(n) for n in group)),
            rule="all devices that share a port are used together",
            fix=f"export NCCL_IB_HCA={','.join(n.label for n in group)}, with an address on the interface of each "
            f"({listed(_interface_names(group)) or 'see ibdev2netdev'}), in subnets of their own",
        )


def _has_no_address(n: Nic) -> bool:
    """Tell whether an active Ethernet port of a NIC has a GID table, and no IPv4 address or routed one in it."""
    ports = [p for p in (n.rdma.ports if n.rdma is not None else ()) if p.state == "ACTIVE"]
    return bool(ports) and all(
        p.link_layer == "Ethernet" and known(p.gids) and all(g.gid.startswith("fe80") for g in p.gids) for p in ports
    )


def _without_address(group: tuple[Nic, ...], bare: list[Nic]) -> Finding:
    names = listed(n.label for n in bare)
    return Finding(
        state=State.WARN,
        subject=listed(f"{n.address} {n.label}" for n in bare),
        devices=tuple(n.address for n in bare),
        title=f"{names} has no IP address, and the other half of its port has one "
        f"({listed(n.label for n in group if n not in bare)})",
        consequence="NCCL cannot reach other nodes through it, so traffic gets about half of the cable",
        evidence=tuple(
            Evidence(f"{p.source}/gids", ", ".join(g.gid for g in p.gids) or "(none)")
            for n in bare
            if n.rdma is not None
            for p in n.rdma.ports
            if known(p.gids)
        ),
        rule="each device that shares a port has an address in a subnet of its own",
        fix=f"give {listed(_interface_names(tuple(bare))) or names} an address in a subnet of its own, on every node",
    )


def _width(n: Nic) -> Evidence:
    width = n.pci.current_width_lanes if n.pci is not None else "?"
    return Evidence(f"{n.address} {n.label} current_link_width", str(width))


def _interface_names(nics: tuple[Nic, ...]) -> list[str]:
    return [i.name for n in nics for i in n.interfaces]


_BALANCES = ("802.3ad", "balance-xor", "balance-rr", "balance-tlb", "balance-alb")
"""Modes in which both ports carry traffic (Documentation/networking/bonding.rst); active-backup uses one at a time."""


def _bonds(c: Context) -> Iterator[tuple[Nic, NetInterface]]:
    """Yield each active RDMA device that stands for a bond of several ports, with the bond."""
    every = c.node.net.interfaces
    bonds = (
        {name: i for i in every if len(i.bond_slaves) > 1 for name in (i.name, *i.bond_slaves)} if known(every) else {}
    )
    for n in active_nics(c):
        bond = next((bonds[d] for d in n.rdma.netdevs if d in bonds), None) if n.rdma is not None else None
        if bond is not None:
            yield n, bond


@check(
    "rdma.bond-one-connection",
    title="NCCL uses one port of a bond per connection",
    severity=State.NOTE,
    reads=(
        "NCCL_IB_QPS_PER_CONNECTION",
        "/sys/class/net/*/bonding/{mode,slaves,xmit_hash_policy}",
        "/sys/class/infiniband/*/device/net",
    ),
    scope=Scope.PROCESS,
    needs=Needs(("rdma", "interfaces", "settings")),
)
def bond_one_connection(c: Context) -> Iterator[Finding]:
    """NCCL uses one port of a bond per connection.

    Looks at:
        Active RDMA devices that stand for a bond of two ports which both carry traffic (LACP and the other balancing
        modes), and NCCL_IB_QPS_PER_CONNECTION.

    Why it matters:
        NCCL opens one queue pair per connection, and a queue pair stays on one port: half of the bond is idle.

    Fix:
        NCCL_IB_QPS_PER_CONNECTION=2 with NCCL_IB_SPLIT_DATA_ON_QPS=0, and the bond's hash over layers 3 and 4, so that
        the two go over different ports. Measure both.

    Does not apply:
        To bonds with one active port (active-backup), and where more queue pairs are set already.
    """
    if not active_nics(c):
        raise not_applicable(no_active_nic(c))
    found = [(n, b) for n, b in _bonds(c) if not known(b.bond_mode) or b.bond_mode in _BALANCES]
    if not found:
        raise not_applicable("no active RDMA device of a bond")
    if values(c).integer("NCCL_IB_QPS_PER_CONNECTION", 1) > 1:
        return
    s = in_force(c).get("NCCL_IB_QPS_PER_CONNECTION")
    for n, b in found:
        policy = b.bond_hash_policy
        weak = f", xmit_hash_policy {policy}" if known(policy) and policy not in ("layer3+4", "encap3+4") else ""
        yield Finding(
            state=State.NOTE,
            subject=f"{n.address} {n.label}",
            devices=(n.address,),
            title=f"{n.label} is the bond {b.name} of {listed(b.bond_slaves)} ({b.bond_mode}{weak}), and NCCL opens "
            "one queue pair per connection",
            consequence="a connection uses one port of the bond, half of its rate",
            evidence=(
                *quote(b, "bonding/mode", b.bond_mode),
                *quote(b, "bonding/slaves", " ".join(b.bond_slaves)),
                *quote(b, "bonding/xmit_hash_policy", policy),
                *(quoted(s) if s is not None else (Evidence("NCCL_IB_QPS_PER_CONNECTION", "(not set: 1)"),)),
            ),
            rule="as many queue pairs per connection as the bond has ports",
            fix=f"export NCCL_IB_QPS_PER_CONNECTION={len(b.bond_slaves)} NCCL_IB_SPLIT_DATA_ON_QPS=0"
            + (f", and echo layer3+4 > /sys/class/net/{b.name}/bonding/xmit_hash_policy (root)" if weak else "")
            + "; measure both",
        )


_SMALL_MTU, _FAST_GBIT_S = 1500, 100.0


@check(
    "rdma.small-mtu",
    title="A fast RoCE port has the MTU of office networks",
    severity=State.NOTE,
    reads=("/sys/class/net/*/mtu", "/sys/class/infiniband/*/ports/*/{link_layer,rate}"),
    needs=Needs(("rdma", "interfaces"), ("rate",)),
)
def small_mtu(c: Context) -> Iterator[Finding]:
    """A fast RoCE port has the MTU of office networks.

    Looks at:
        The MTU of the interfaces of active RoCE ports of 100 Gb/s and more.

    Why it matters:
        RDMA packets must fit into the interface's MTU: with 1500 they carry 1024 bytes, with 4200 and more 4096, at
        less cost per byte for NIC and switch. Both ends and every switch port between must have the same.

    Fix:
        `ip link set dev IF mtu 9000` on all nodes, after the switch ports have been set.

    Does not apply:
        To InfiniBand, slower ports, and larger MTUs.
    """
    small: list[tuple[Nic, NetInterface]] = []
    judged = False
    for n in active_nics(c):
        for p in n.rdma.ports if n.rdma is not None else ():
            fast = known(p.rate_gbit_s) and p.rate_gbit_s >= _FAST_GBIT_S
            if p.state != "ACTIVE" or p.link_layer != "Ethernet" or not fast or not by_mellanox(n):
                continue
            judged = True
            small += [(n, i) for i in n.interfaces if known(i.mtu_bytes) and i.mtu_bytes <= _SMALL_MTU]
    if not judged:
        raise not_applicable("no active RoCE port of 100 Gb/s or more")
    if small:
        names = list(dict.fromkeys(n.label for n, _ in small))
        yield Finding(
            state=State.NOTE,
            subject="node",
            title=f"the MTU of {listed(names)} is {small[0][1].mtu_bytes}, so RDMA packets carry 1024 bytes",
            consequence="somewhat lower bandwidth; and a job fails if other nodes have a larger MTU on this network",
            evidence=tuple(e for _, i in small[:4] for e in quote(i, "mtu", i.mtu_bytes)),
            rule="MTU 4200 or more on a RoCE network of 100 Gb/s or more, the same at both ends",
            fix=f"ip link set dev {small[0][1].name} mtu 9000, likewise on every node and switch port of this network",
        )
