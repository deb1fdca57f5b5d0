"""Which NICs and which interface NCCL should use, and why."""

from __future__ import annotations

import ipaddress

import msgspec

from topocheck.knowledge.nccl import foreign_reader
from topocheck.knowledge.nccl_net_plugins import NetPlugin, plugin_for
from topocheck.model.base import known
from topocheck.model.names import is_nccl_word
from topocheck.model.net import NetInterface, RdmaPort
from topocheck.model.node import Node
from topocheck.topology.types import Nic, Topology


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """One setting. `value` is empty where there is nothing to suggest; `why` says why in either case."""

    name: str
    value: str
    why: tuple[str, ...]


def suggestions(node: Node, topology: Topology) -> tuple[Suggestion, ...]:
    """Return NCCL_IB_HCA with the exact list of data NICs, and NCCL_SOCKET_IFNAME.

    Nothing is suggested where a provider's profile for its own plugin is in force: its checker refuses changes.
    """
    profile = _profile(node)
    if profile is not None:
        why = f"{profile}: its image sets these names, and its checker refuses others"
        return tuple(Suggestion(name=n, value="", why=(why,)) for n in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"))
    data = data_ports(topology)
    return (_hca(topology, data), _interface(node, data))


def _profile(node: Node) -> str | None:
    """Return whose profile for an external plugin is in force; None for none."""
    readers = (foreign_reader(s.name) for s in node.settings.nccl if s.in_force)
    return next((f"settings of {r} are in force" for r in readers if r is not None and r.startswith("Google's")), None)


def _plugin_of(nic: Nic) -> NetPlugin | None:
    """Return the plugin through which NCCL reaches a NIC; None where NCCL's own transport does."""
    return plugin_for(nic.pci.driver) if nic.pci is not None and known(nic.pci.driver) else None


def data_ports(topology: Topology) -> tuple[tuple[Nic, RdmaPort], ...]:
    """Return the ports meant for the GPUs' traffic: active, on a NIC nearest to some GPU, of the fastest rate there.

    Where the nearest NICs of some GPU are not known (it is lost), ports of that rate and link layer count as well.
    """
    active = [
        (nic, port)
        for nic in topology.nics
        if nic.rdma is not None and not known(nic.rdma.physfn)
        for port in nic.rdma.ports
        if port.state == "ACTIVE"
    ]
    if not active:
        # Guests are often given nothing but virtual functions.
        active = [(n, p) for n in topology.nics if n.rdma for p in n.rdma.ports if p.state == "ACTIVE"]
    nearest = _nearest(topology)
    near = [(n, p) for n, p in active if n.address in nearest] or active
    rates = [p.rate_gbit_s for _, p in near if known(p.rate_gbit_s)]
    best = max(rates, default=0.0)
    data = [(n, p) for n, p in near if not rates or (known(p.rate_gbit_s) and p.rate_gbit_s == best)]
    if rates and any(x.untold for x in topology.nearest_nics):
        kinds = {(p.rate_gbit_s, p.link_layer) for _, p in data}
        chosen = {(n.address, p.port) for n, p in data}
        data = [(n, p) for n, p in active if (n.address, p.port) in chosen or (p.rate_gbit_s, p.link_layer) in kinds]
    return tuple(data)


def _nearest(topology: Topology) -> frozenset[str]:
    return frozenset(a for x in topology.nearest_nics for a in x.nics)


def _hca(topology: Topology, data: tuple[tuple[Nic, RdmaPort], ...]) -> Suggestion:
    name = "NCCL_IB_HCA"
    plugins = [p for n, _ in data if (p := _plugin_of(n)) is not None]
    if plugins:
        why_not = f"{plugins[0].devices} devices are reached through {plugins[0].plugin}, which does not read it"
        return Suggestion(name=name, value="", why=(why_not,))
    if not data:
        return Suggestion(name=name, value="", why=("no RDMA port is active on this node",))
    rate = data[0][1].rate_gbit_s
    speed = f", {rate:g} Gb/s" if known(rate) else ""
    nearest = _nearest(topology)
    beside = [f"{n.label}:{p.port}" for n, p in data if n.address not in nearest]
    place = f"on the NICs nearest to the GPUs{speed}" if len(beside) < len(data) else f"of the fastest rate{speed}"
    why = [f"{len(data) - len(beside) or len(data)} active ports {place}; the first = asks for exact names"]
    untold = {x.gpu: x.untold for x in topology.nearest_nics if x.untold}
    if untold and beside:
        labels = ", ".join(g.label for g in topology.gpus if g.address in untold)
        kept = f"taken as well: {', '.join(beside)}, of that rate and link layer; " if len(beside) < len(data) else ""
        why.append(f"{kept}which NICs are nearest to {labels} is not known: {next(iter(untold.values()))}")
    chosen = {(n.label, p.port) for n, p in data}
    why += _unfit([n.label for n, _ in data])
    left = [
        f"{n.label}:{p.port} ({p.state if known(p.state) else 'state unknown'}"
        f"{f', {p.rate_gbit_s:g} Gb/s' if known(p.rate_gbit_s) else ''})"
        for n in topology.nics
        if n.rdma is not None
        for p in n.rdma.ports
        if (n.label, p.port) not in chosen
    ]
    if left:
        why.append(f"left out: {', '.join(left)}")
    listed = ",".join(f"{n.label}:{p.port}" for n, p in data if is_nccl_word(n.label))
    return Suggestion(name=name, value=f"={listed}" if listed else "", why=tuple(why))


def _interface(node: Node, data: tuple[tuple[Nic, RdmaPort], ...]) -> Suggestion:
    """Choose the interface of NCCL's bootstrap: one with an address that other nodes can reach."""
    name = "NCCL_SOCKET_IFNAME"
    interfaces = node.net.interfaces if known(node.net.interfaces) else ()
    data_names = {i.name for n, _ in data for i in n.interfaces} | {
        x for n, _ in data if n.rdma for x in n.rdma.netdevs
    }
    reachable = [i for i in interfaces if _reachable(i)]
    fit = [i for i in reachable if is_nccl_word(i.name)]
    unfit = _unfit([i.name for i in reachable])
    apart = [i for i in fit if i.name not in data_names] or fit
    if not apart:
        why = ["no interface is up with an address that other nodes can reach", *unfit]
        return Suggestion(name=name, value="", why=tuple(why))
    best = min(apart, key=lambda i: (-(i.speed_mbit_s if known(i.speed_mbit_s) else 0), i.name))
    speed = f", {best.speed_mbit_s / 1000:g} Gb/s" if known(best.speed_mbit_s) else ""
    why = [f"carries the meeting of the ranks, not the data: up, with an address{speed}"]
    if best.name not in data_names:
        why[0] += ", and no NIC of the GPUs' traffic"
    others = [i.name for i in apart if i is not best]
    if others:
        why.append(f"would do as well, if all nodes reach each other there: {', '.join(others[:8])}")
    why += unfit
    return Suggestion(name=name, value=f"={best.name}", why=tuple(why))


def _unfit(names: list[str]) -> list[str]:
    """Return a sentence on the devices that cannot be written into a setting; none where all can."""
    bad = [f"{n!r:.80}" for n in dict.fromkeys(names) if not is_nccl_word(n)]
    return [f"left out, since nccl.conf cannot hold such a name: {', '.join(bad[:8])}"] if bad else []


_VIRTUAL = ("docker", "veth", "virbr", "cni", "flannel", "cali", "br-", "tun", "tap", "dummy", "kube")


def _reachable(i: NetInterface) -> bool:
    if i.name == "lo" or i.name.startswith(_VIRTUAL) or known(i.bond_master):
        return False
    if i.operstate in ("down", "lowerlayerdown", "notpresent"):
        return False
    for text in i.ip_addresses if known(i.ip_addresses) else ():
        try:
            address = ipaddress.ip_address(text.partition("/")[0].partition("%")[0])
        except ValueError:
            continue
        if not (address.is_link_local or address.is_loopback):
            return True
    return False
