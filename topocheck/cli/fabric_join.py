"""A dump of the fabric beside recordings of its nodes: `fleet --fabric`, `report --cluster --fabric`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from topocheck.checks.fabric.run import JudgedFabric
    from topocheck.compare.store import Collection, Entry
    from topocheck.fabric.join import NodePort
    from topocheck.policy.types import Policy

FabricFiles = Annotated[
    Optional[list[Path]],  # noqa: UP045 - typer reads it at run time
    typer.Option(
        "--fabric",
        metavar="FILE",
        help="Dump of the fabric (as for network fabric; may be repeated): names the switch port of each NIC.",
    ),
]


def judged(files: Sequence[Path] | None, collection: Collection, policy: Policy | None = None) -> JudgedFabric | None:
    """Return the fabric in dumps, joined with nodes by GUIDs and names; None without a dump.

    Raises:
        InputError: a dump cannot be read.
    """
    if not files:
        return None
    from topocheck.checks.fabric.run import judge_joined
    from topocheck.cli.fabric import read_fabric
    from topocheck.fabric.join import NodeBond

    nodes = [(n, e) for n, e in zip(collection.names(), collection.entries, strict=True) if not e.renamed]
    bonds = [
        NodeBond(node=n, name=name, mode=mode, members=tuple(members))
        for n, e in nodes
        for name, (mode, *members) in e.bonds.items()
    ]
    domains = {n: e.nvlink_domain for n, e in nodes if e.nvlink_domain}
    ports = (p for n, e in nodes for p in node_ports(n, e))
    return judge_joined(read_fabric(files), ports, policy, bonds, domains)


def node_ports(name: str, node: Entry) -> Iterator[NodePort]:
    """Yield the RDMA ports of a node. Replaced identifiers join nothing."""
    from topocheck.fabric.join import NodePort
    from topocheck.model.fabric import Protocol

    protocols = {"InfiniBand": Protocol.INFINIBAND, "Ethernet": Protocol.ETHERNET}
    for r in node.rails if not node.renamed else ():
        guid = node.identifiers.get(r.nic, "").replace(":", "").lower()
        yield NodePort(
            node=name,
            adapter=r.label,
            port=r.port,
            guids=tuple(dict.fromkeys(g for g in (guid, r.guid) if len(g) == 16 and g.strip("0"))),
            interfaces=r.interfaces,
            protocol=protocols.get(r.layer),
        )
