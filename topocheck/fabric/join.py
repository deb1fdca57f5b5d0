"""Joins the ports that nodes record with the adapters of a fabric: by GUID, or by host and interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

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
    """

    fabric: Fabric
    ports: int
    nodes: int
    renamed: tuple[Renamed, ...] = ()
    missing: tuple[NodePort, ...] = ()
    unrecorded: tuple[str, ...] = ()


def join(fabric: Fabric, ports: Iterable[NodePort]) -> Joined:
    """Return the fabric with its adapters named by the nodes that have them.

    A GUID that several nodes record (a copied recording, or identifiers that were replaced) joins nothing.
    """
    listed = list(ports)
    owners: dict[str, NodePort] = {}
    times = Counter((g, p.node) for p in listed for g in dict.fromkeys(p.guids))
    nodes_of = Counter(g for g, _ in times)
    by_interface = {f"{p.node}/{i}": p for p in listed for i in p.interfaces}
    for p in listed:
        for g in p.guids:
            if nodes_of[g] == 1:
                owners.setdefault(g, p)
    devices = dict(fabric.devices)
    renamed = []
    found: set[tuple[str, str]] = set()
    for i, d in fabric.devices.items():
        owner = owners.get(i) or by_interface.get(i)
        if owner is None or d.kind is not DeviceKind.ADAPTER:
            continue
        node, adapter = owner.node, owner.adapter
        found.add((node, adapter))
        if d.node and _short(d.node) != _short(node):
            renamed.append(Renamed(device=i, announced=d.name, port=owner))
        devices[i] = msgspec.structs.replace(d, node=node, adapter=adapter, name=f"{node} {adapter}")
    # Some of a fabric's devices must be known by GUID before one that is not there says anything.
    missing = [
        p
        for p in listed
        if found and fabric.whole and p.protocol is fabric.protocol and (p.node, p.adapter) not in found
    ]
    recorded = {_short(p.node) for p in listed}
    shown = {d.node for d in fabric.devices.values() if d.node and d.kind is DeviceKind.ADAPTER}
    return Joined(
        fabric=msgspec.structs.replace(fabric, devices=devices),
        ports=sum((p.node, p.adapter) in found for p in listed),
        nodes=len({node for node, _ in found}),
        renamed=tuple(renamed),
        missing=tuple(missing),
        unrecorded=tuple(sorted(n for n in shown if _short(n) not in recorded)),
    )


def _short(host: str) -> str:
    """Return a host name without its domain: one side may give it, the other not."""
    return host.partition(".")[0].lower()
