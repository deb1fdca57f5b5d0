"""Slurm's network topology of a fleet: blocks from NVLink domains, leaf switches from domains or networks."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from topocheck.model.names import natural_key

MAX_NAME = 64
"""Characters of a switch or block name (Slurm's topology.yaml(5))."""


class NodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A node as far as its place in the network is known.

    Attributes:
        name: as Slurm knows it.
        domain: cluster UUID and clique of its NVLink domain; empty where it is in none beyond the node.
        network: IPv4 address of its first RDMA port as a number, 0 where it has none.
    """

    name: str
    domain: str = ""
    ipv4: int = 0


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """A block or leaf switch, and what it was taken from."""

    name: str
    nodes: tuple[str, ...]
    source: str


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of equal standing. `sizes` are BlockSizes: the smallest block, then twice that and so on."""

    blocks: tuple[Unit, ...]
    sizes: tuple[int, ...]
    notes: tuple[str, ...] = ()


class Above(msgspec.Struct, frozen=True, kw_only=True):
    """A switch above others: names of what is below it, and what it was taken from."""

    name: str
    children: tuple[str, ...]
    source: str = ""


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """Leaf switches, and the switches above them from below upwards; none where one leaf holds all."""

    leaves: tuple[Unit, ...]
    above: tuple[Above, ...] = ()
    notes: tuple[str, ...] = ()


def blocks(nodes: Iterable[NodePlace]) -> Blocks:
    """Return a block for each NVLink domain. A node in no domain is in no block, and named in the notes."""
    listed = list(nodes)
    domains = _domains(listed)
    found = tuple(
        Unit(name=f"nvl{i}", nodes=tuple(names), source=f"NVLink domain {domain}")
        for i, (domain, names) in enumerate(_by_first(domains), 1)
    )
    notes = []
    loose = sorted(n.name for n in listed if not n.domain)
    if loose:
        notes.append(f"in no NVLink domain beyond the node, and so in no block: {', '.join(loose[:20])}")
    if not found:
        return Blocks(blocks=(), sizes=(), notes=tuple(notes))
    base = min(len(b.nodes) for b in found)
    sizes = [base]
    # Slurm plans with aggregated blocks: each further size is a power of two times the first.
    while sizes[-1] * 2 <= base * len(found):
        sizes.append(sizes[-1] * 2)
    uneven = [f"{b.name} has {len(b.nodes)}" for b in found if len(b.nodes) != base]
    if uneven:
        notes.append(f"the smallest block has {base} nodes, which is the base size; {', '.join(uneven[:10])}")
    return Blocks(blocks=found, sizes=tuple(sizes), notes=tuple(notes))


def tree(nodes: Iterable[NodePlace]) -> Tree:
    """Return leaf switches: one for each NVLink domain, else for each network of the first RDMA port, else one for all.

    Nodes cannot see the switches between them, so this is a beginning to be checked against the cabling.
    """
    listed = list(nodes)
    names = tuple(sorted((n.name for n in listed), key=natural_key))
    if not names:
        return Tree(leaves=(), notes=("no node",))
    note = "what a node cannot see: which switches are above it; check against ibnetdiscover or LLDP"
    if any(n.domain for n in listed):
        groups = [(f"NVLink domain {d}", ns) for d, ns in _by_first(_domains(listed))]
        rest = sorted(n.name for n in listed if not n.domain)
        if rest:
            groups.append(("nodes in no NVLink domain", rest))
    else:
        groups = _networks(listed)
    if len(groups) < 2:
        return Tree(
            leaves=(Unit(name="leaf1", nodes=names, source="the nodes cannot be distinguished"),), notes=(note,)
        )
    leaves = tuple(Unit(name=f"leaf{i}", nodes=tuple(ns), source=source) for i, (source, ns) in enumerate(groups, 1))
    core = Above(name="core", children=tuple(x.name for x in leaves))
    return Tree(leaves=leaves, above=(core,), notes=(note,))


def _domains(nodes: Sequence[NodePlace]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = defaultdict(list)
    for n in nodes:
        if n.domain:
            out[n.domain].append(n.name)
    return out


def _by_first(groups: Mapping[str, list[str]]) -> list[tuple[str, list[str]]]:
    named = [(key, sorted(names, key=natural_key)) for key, names in groups.items()]
    return sorted(named, key=lambda g: natural_key(g[1][0]))


def _networks(nodes: Sequence[NodePlace]) -> list[tuple[str, list[str]]]:
    """Return nodes by the /24 of their first RDMA port, where all have one and there are several of several nodes."""
    groups: dict[str, list[str]] = defaultdict(list)
    for n in nodes:
        if not n.ipv4:
            return []
        groups[f"{ipaddress.IPv4Address(n.ipv4 & 0xFFFFFF00)}/24"].append(n.name)
    if len(groups) < 2 or min(map(len, groups.values())) < 2:
        return []
    return [(f"network {net} of the first RDMA port", names) for net, names in _by_first(groups)]
