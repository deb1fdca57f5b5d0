"""Links of NCCL's graph beside the PCI tree: NVLink, C2C, switches in two levels, links between CPUs."""

from __future__ import annotations

import functools
import re

from topocheck.knowledge.products import SwitchKind, switches
from topocheck.nccl.rules import versions
from topocheck.nccl.topofile.graph_types import Graph, GraphNode, Link, connect, connect_all, integer, kind_of_class
from topocheck.nccl.topofile.xml import Element


def add_nvlinks(graph: Graph, elements: list[tuple[GraphNode, Element, int]]) -> None:
    """Add the links of each GPU to its peers, to the NVSwitch, or to its CPU."""
    by_address: dict[str, list[GraphNode]] = {}
    for n in graph.nodes["GPU"]:
        by_address.setdefault(n.address, []).append(n)
    for node, e, shares in elements:
        sm = graph.gpus[node.index].sm
        for link in e.having("nvlink"):
            gb_s = integer(link.get("count")) * versions.nvlink_gb_s(sm, graph.version) / shares
            kind = kind_of_class(link.get("tclass"))
            if kind == "GPU":
                target = (link.get("target") or "").lower()
                peers = [n for n in by_address.get(target, ()) if n is not node]
                for peer in peers:
                    connect(node, peer, "NVL", gb_s / len(peers))
                continue
            if kind == "CPU":
                remote = _cpu_above(node)
            else:
                remote = graph.nodes["NVS"][0] if graph.nodes["NVS"] else graph.add("NVS", "0")
            if remote is not None:
                connect(node, remote, "NVL", gb_s)
                connect(remote, node, "NVL", gb_s)


def add_c2c(graph: Graph, elements: list[tuple[GraphNode, Element, int]], kind: str) -> None:
    """Add the chip-to-chip links between GPUs and their CPUs, as links of a kind (NVL before NCCL had one for them)."""
    for node, e, shares in elements:
        for link in e.having("c2c"):
            cpu = _cpu_above(node)
            gb_s = integer(link.get("count")) * integer(link.get("bw")) / 1000 / shares
            if cpu is not None and gb_s:
                connect(node, cpu, kind, gb_s)
                connect(cpu, node, kind, gb_s)


def _cpu_above(node: GraphNode) -> GraphNode | None:
    up = node.up
    while up is not None and up.kind != "CPU":
        up = up.up
    return up


@functools.lru_cache(maxsize=256)
def _level(switch_id: tuple[str, str, str, str]) -> tuple[SwitchKind, str | None] | None:
    """Return (kind of the row, generation key) of a switch that shows itself in two levels, or None."""
    for r in switches():
        if r.kind == "emulated" or switch_id[:2] != (r.vendor, r.device):
            continue
        if r.subsystem_vendor not in (None, switch_id[2]):
            continue
        if r.subsystem_device is None or re.fullmatch(r.subsystem_device.replace(".", "[0-9a-f]"), switch_id[3]):
            return r.kind, r.device
    return None


def flatten_switches(graph: Graph) -> None:
    """Fuse the two levels that Broadcom switches show (ncclTopoFlattenBcmSwitches)."""
    fused: set[GraphNode] = set()
    for outer in graph.nodes["PCI"]:
        level = _level(outer.switch_id)
        if level is None or level[0] == "two_level_inner" or outer in fused:
            continue
        if level[0] == "two_level_outer" and not versions.has("fuses_pex890xx", graph.version):
            continue
        inner_ones = []
        for inner in [x.to for x in outer.links if x.to.kind == "PCI" and x.to.up is outer]:
            other = _level(inner.switch_id)
            if other is not None and other[1] == level[1] and other[0] != "two_level_outer":
                inner_ones.append(inner)
        for inner in inner_ones:
            fused.add(inner)
            for link in inner.links:
                if link.to is outer:
                    continue
                outer.links.append(Link(link.to, link.kind, link.gb_s))
                for back in link.to.links:
                    if back.to is inner:
                        back.to = outer
                if link.to.up is inner:
                    link.to.up = outer
        outer.links = [x for x in outer.links if x.to not in fused]
    graph.nodes["PCI"] = [n for n in graph.nodes["PCI"] if n not in fused]
    for i, node in enumerate(graph.nodes["PCI"]):
        node.index = i


def add_switch_links(graph: Graph, root: Element) -> None:
    """Add links between Broadcom switches (`pcilink`)."""
    by_address = {n.address: n for n in graph.nodes["PCI"]}
    for e in root.walk():
        for link in e.having("pcilink"):
            a, b = by_address.get((e.get("busid") or "").lower()), by_address.get((link.get("target") or "").lower())
            if a is not None and b is not None:
                connect(a, b, "LOC", versions.local_gb_s(graph.version))


def connect_cpus(graph: Graph) -> None:
    """Join all CPU nodes with one another."""
    for a, cpu in zip(graph.nodes["CPU"], graph.cpus, strict=True):
        others = (b for b in graph.nodes["CPU"] if b is not a)
        connect_all(a, others, "SYS", versions.cpu_gb_s(cpu, graph.version))


def uplinks_last(graph: Graph) -> None:
    """Put the link upwards behind the others, as NCCL sorts them before it searches."""
    for kind in ("PCI", "GPU", "NIC"):
        for node in graph.nodes[kind]:
            up = [x for x in node.links if x.to is node.up and x.kind == "PCI"]
            node.links = [x for x in node.links if not (x.to is node.up and x.kind == "PCI")] + up
