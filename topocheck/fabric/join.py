"""Joins the ports that nodes record with the adapters of a fabric: by GUID, or by host and interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from topocheck.fabric.merge import short
from topocheck.fabric.neighbours import is_mac, mac
from topocheck.model.fabric import DeviceKind, Fabric, Protocol


class NodePort(msgspec.Struct, frozen=True, kw_only=True):
    """A port of an RDMA device, as its node records it.

    Attributes:
        node: host name.
        adapter: name of the device (`mlx5_3`).
        port: number of the port, from 1.
        guids: of the device and the port, 16 hex digits each.
        interfaces: network interfaces of the device.
        protocol: of its link, where the port is active; None where it is not.
    """

    node: str
    adapter: str
    port: int
    guids: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    protocol: Protocol | None = None


class NodeBond(msgspec.Struct, frozen=True, kw_only=True):
    """A bond of a node: its mode (`802.3ad`; empty where it is not known) and the interfaces in it."""

    node: str
    name: str
    mode: str
    members: tuple[str, ...]


class Renamed(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that announces another host name than the node that has it."""

    device: str
    announced: str
    port: NodePort


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """A fabric with the names that the nodes' own recordings give its adapters.

    Attributes:
        fabric: with these names.
        ports: how many ports of nodes were found in it.
        nodes: how many nodes have such a port.
        renamed: adapters that announce the name of another host; not those that announce none.
        missing: active ports of nodes that the fabric does not show, where it shows others of the same kind.
        unrecorded: nodes of the fabric of which there is no recording.
        bonds: of the nodes' recordings.
        domains: node -> its NVLink domain beyond the node (cluster UUID and clique), where it is in one.
    """

    fabric: Fabric
    ports: int
    nodes: int
    renamed: tuple[Renamed, ...] = ()
    missing: tuple[NodePort, ...] = ()
    unrecorded: tuple[str, ...] = ()
    bonds: tuple[NodeBond, ...] = ()
    domains: Mapping[str, str] = {}


def join(fabric: Fabric, ports: Iterable[NodePort]) -> Joined:
    """Return the fabric with its adapters named by the nodes that have them.

    A GUID that several nodes record (a copied recording, or identifiers that were replaced) joins nothing.
    """
    listed = list(ports)
    owners: dict[str, NodePort] = {}
    times = Counter((g, p.node) for p in listed for g in dict.fromkeys(p.guids))
    nodes_of = Counter(g for g, _ in times)
    by_interface = {f"{name}/{i}": p for p in listed for i in p.interfaces for name in (short(p.node), p.node)}
    for p in listed:
        for g in p.guids:
            if nodes_of[g] == 1:
                owners.setdefault(g, p)
    devices = dict(fabric.devices)
    renamed = []
    found: set[tuple[str, str]] = set()
    for i, d in fabric.devices.items():
        owner = owners.get(i) or by_interface.get(i) or by_interface.get(_interface(i)) or owners.get(_of_mac(i))
        if owner is None or d.kind is not DeviceKind.ADAPTER:
            continue
        node, adapter = owner.node, owner.adapter
        found.add((node, adapter))
        if d.node and short(d.node) != short(node):
            renamed.append(Renamed(device=i, announced=d.name, port=owner))
        if len(owner.interfaces) > 1 and d.adapter in owner.interfaces:
            # A bond is one device of several ports, which are told apart by their interfaces.
            adapter = d.adapter
        devices[i] = msgspec.structs.replace(d, node=node, adapter=adapter, name=f"{node} {adapter}")
    # Some of a fabric's devices must be known by GUID before one that is not there says anything.
    missing = [
        p
        for p in listed
        if found and fabric.whole and p.protocol is fabric.protocol and (p.node, p.adapter) not in found
    ]
    recorded = {short(p.node) for p in listed}
    shown = {d.node for d in fabric.devices.values() if d.node and d.kind is DeviceKind.ADAPTER}
    return Joined(
        fabric=msgspec.structs.replace(fabric, devices=devices),
        ports=sum((p.node, p.adapter) in found for p in listed),
        nodes=len({node for node, _ in found}),
        renamed=tuple(renamed),
        missing=tuple(missing),
        unrecorded=tuple(sorted(n for n in shown if short(n) not in recorded)),
    )


def _interface(device: str) -> str:
    """Return host and interface with the host's short name: LLDP and recordings may or may not give the domain."""
    node, _, interface = device.rpartition("/")
    return f"{short(node)}/{interface}"


def _of_mac(device: str) -> str:
    """Return the GUID of the adapter whose MAC a switch names a port by (`HOST/MAC`); the empty text where it is none.

    ConnectX adapters' firmware makes one of the other: 08c0eb2ec4d5 and 08c0eb03002ec4d5 (mlxfwmanager shows both).
    """
    _, _, name = device.rpartition("/")
    digits = mac(name).replace(":", "")
    return f"{digits[:6]}0300{digits[6:]}" if is_mac(name) else ""
