"""NCCL's own graph of a node, made from its topology XML as NCCL makes it (src/graph/topo.cc).

Nodes are GPUs, PCI switches, one NVSwitch, CPUs (one per NUMA id), NICs and NETs. There is no root complex: all
host bridges of a NUMA id hang under one CPU.
"""

from __future__ import annotations

from topocheck.knowledge.nccl import Version
from topocheck.nccl.predict.graph_links import (
    add_c2c,
    add_nvlinks,
    add_switch_links,
    connect_cpus,
    flatten_switches,
    uplinks_last,
)
from topocheck.nccl.rules import versions
from topocheck.nccl.rules.versions import Cpu
from topocheck.nccl.topofile.graph_types import (
    GpuInfo,
    Graph,
    GraphNode,
    NetInfo,
    connect,
    flag,
    integer,
    kind_of_class,
)
from topocheck.nccl.topofile.xml import Element


def build_graph(root: Element, version: Version, gpus: tuple[str, ...] | None = None) -> Graph:
    """Return the graph that NCCL builds from a topology, for a version.

    Raises:
        GraphError: the topology has more nodes of a kind than a graph holds.

    `gpus` are the addresses of those in the communicator: NCCL drops the others. None keeps all.

    GPUs without a rank get one in the order of the file; a PCI element of a GPU's class without a `gpu` in it
    (the restricted files of VMs) becomes a GPU marked `assumed`.
    """
    graph = Graph(version)
    graph.wanted = None if gpus is None else frozenset(gpus)
    elements: list[tuple[GraphNode, Element, int]] = []
    for cpu in root.having("cpu"):
        _add_cpu(graph, cpu, elements)
    if not graph.nodes["CPU"]:
        graph.add("CPU", "0")
        graph.cpus.append(Cpu())
        graph.numa.append("0")
        graph.notes.append("no CPU in the file: NCCL makes one, numaid 0")
    add_nvlinks(graph, elements)
    if versions.has("c2c_links", version):
        add_c2c(graph, elements, "C2C" if versions.has("c2c", version) else "NVL")
    flatten_switches(graph)
    add_switch_links(graph, root)
    connect_cpus(graph)
    uplinks_last(graph)
    return graph


def _add_cpu(graph: Graph, e: Element, elements: list[tuple[GraphNode, Element, int]]) -> None:
    numa = e.get("numaid") or "0"
    node = graph.add("CPU", numa)
    graph.numa.append(numa)
    graph.cpus.append(
        Cpu(
            arch=e.get("arch") or "",
            vendor=e.get("vendor") or "",
            family=integer(e.get("familyid")) if e.get("familyid") else None,
            model=integer(e.get("modelid")) if e.get("modelid") else None,
        )
    )
    for child in e.children:
        if child.name == "pci":
            _add_pci(graph, child, node, elements)
        elif child.name == "nic":
            nic = next((x.to for x in node.links if x.to.kind == "NIC" and not x.to.address), None)
            if nic is None:
                nic = graph.add("NIC", f"cpu{numa}")
                _join(nic, node, "PCI", versions.local_gb_s(graph.version))
            _add_nets(graph, child, nic)


def _join(child: GraphNode, parent: GraphNode, kind: str, gb_s: float) -> None:
    connect(child, parent, kind, gb_s)
    connect(parent, child, kind, gb_s)
    child.up = parent


def _add_pci(graph: Graph, e: Element, parent: GraphNode, elements: list[tuple[GraphNode, Element, int]]) -> None:
    kind = kind_of_class(e.get("class"))
    address = (e.get("busid") or "").lower()
    gb_s = versions.pcie_gb_s(e.get("link_speed"), integer(e.get("link_width")), graph.version)
    gpus = list(e.having("gpu"))
    nics = list(e.having("nic"))
    if (gpus or kind == "GPU") and graph.wanted is not None and address not in graph.wanted:
        return
    if gpus:
        _add_gpus(graph, e, gpus, parent, gb_s, elements)
    elif nics:
        node = graph.nics.get(address)
        if node is None:
            node = graph.add("NIC", address, address)
            _join(node, parent, "PCI", gb_s)
            if address:
                graph.nics[address] = node
        for nic in nics:
            _add_nets(graph, nic, node)
    elif kind == "GPU":
        node = graph.add("GPU", address, address)
        n = len(graph.gpus)
        graph.gpus.append(GpuInfo(address=address, dev=n, sm=0, rank=n, gdr=None, assumed=True))
        _join(node, parent, "PCI", gb_s)
    elif kind == "PCI" and (e.children or e.get("class")):
        node = graph.add("PCI", address, address)
        node.switch_id = (
            (e.get("vendor") or "").removeprefix("0x"),
            (e.get("device") or "").removeprefix("0x"),
            (e.get("subsystem_vendor") or "").removeprefix("0x"),
            (e.get("subsystem_device") or "").removeprefix("0x"),
        )
        _join(node, parent, "PCI", gb_s)
        for child in e.having("pci"):
            _add_pci(graph, child, node, elements)


def _add_gpus(
    graph: Graph,
    e: Element,
    gpus: list[Element],
    parent: GraphNode,
    gb_s: float,
    elements: list[tuple[GraphNode, Element, int]],
) -> None:
    address = (e.get("busid") or "").lower()
    siblings: list[GraphNode] = []
    for g in gpus:
        n = len(graph.gpus)
        node = graph.add("GPU", address, address)
        graph.gpus.append(
            GpuInfo(
                address=address,
                dev=integer(g.get("dev"), n),
                sm=integer(g.get("sm")),
                rank=integer(g.get("rank"), n),
                gdr=flag(g.get("gdr")),
                mlopart=integer(g.get("mlopart"), -1) if integer(g.get("mlopart"), -1) >= 0 else None,
            )
        )
        _join(node, parent, "PCI", gb_s)
        for other in siblings:
            connect(node, other, "LOC", versions.mlopart_gb_s(graph.version))
            connect(other, node, "LOC", versions.mlopart_gb_s(graph.version))
        siblings.append(node)
        elements.append((node, g, len(gpus)))


def _add_nets(graph: Graph, nic: Element, node: GraphNode) -> None:
    for e in nic.having("net"):
        if e.get("net") is not None and integer(e.get("net"), 1) == 0:
            continue
        dev = integer(e.get("dev"), len(graph.nets))
        net = graph.add("NET", e.get("name") or f"net{dev}", node.address)
        info = NetInfo(
            name=e.get("name") or f"net{dev}",
            dev=dev,
            gb_s=versions.nic_gb_s(integer(e.get("speed"))),
            gdr=flag(e.get("gdr")),
            port=integer(e.get("port")),
            guid=e.get("guid") or "",
            address=node.address,
        )
        graph.nets.append(info)
        connect(node, net, "NET", info.gb_s)
        connect(net, node, "NET", info.gb_s)
