"""Upper bounds of an AllReduce's bus bandwidth on NCCL's graph, with the link that sets them.

Ring: the narrowest hop, summed over the channels that run at once; between nodes what GPUs and NICs of a node can
exchange at once. Tree over several nodes (double binary between them, a chain inside): who is inner node of one tree is
leaf of the other and sends 2 S for S bytes, which gives B (n-1)/n; with two nodes, or two GPUs in a node, there is no
inner node and each sends S: 2 B (n-1)/n. NVLS in one node: 2 B (n-1)/(n+1), as the switch reduces and multicasts and a
GPU sends and receives about (n+1)/n of the data. B is what is sent at once, n the number of GPUs.
"""

from __future__ import annotations

import itertools

from topocheck.nccl.predict.algorithms import gpus_of_nodes
from topocheck.nccl.predict.min_cut import gpu_to_net_cut
from topocheck.nccl.predict.pair_tests import HostView
from topocheck.nccl.predict.paths import Path
from topocheck.nccl.predict.types import Bound
from topocheck.nccl.rules import versions
from topocheck.nccl.topofile.graph_types import GraphNode, Link

_SEARCH_UP_TO = 7


def _usable(view: HostView, i: int, j: int) -> float:
    """Return what a hop between two GPUs can carry: P2P through an Intel host bridge costs more than its rate."""
    path = view.path("GPU", i, "GPU", j)
    if path.type == "NET":
        return min(_best_nic(view, i)[0], _best_nic(view, j)[0])
    through_cpu = path.type == "PHB" and path.through("CPU")
    if through_cpu and view.graph.cpu.vendor == "GenuineIntel" and view.graph.cpu.arch == "x86_64":
        return path.gb_s / versions.intel_overhead(view.version)
    return path.gb_s


def _best_nic(view: HostView, gpu: int) -> tuple[float, str]:
    """Return the rate of the best NIC of a GPU and its name; 10 Gb/s, what NCCL takes for unknown, without one."""
    rates = [(view.path("GPU", gpu, "NET", k).gb_s, n.name) for k, n in enumerate(view.graph.nets)]
    return max(rates, default=(versions.nic_gb_s(0), "a TCP interface"))


def link_words(path: Path) -> str:
    """Return the narrowest link of a path in words: kind, its two ends, bandwidth."""
    narrowest = path.narrowest()
    if narrowest is None:
        return "no link between them"
    return _link(*narrowest)


def _link(node: GraphNode, link: Link) -> str:
    kinds = {"NVL": "NVLink", "PCI": "PCIe link", "SYS": "link between CPUs", "NET": "NIC", "C2C": "C2C link"}
    if link.kind == "NET":
        return f"NIC {link.to.name}, {link.gb_s:.2f} GB/s"
    ends = " and ".join(x.address or f"{x.kind} {x.name}" for x in (node, link.to))
    return f"{kinds.get(link.kind, link.kind)} of {ends}, {link.gb_s:.1f} GB/s"


def _nvlink_width(view: HostView, gpu: int) -> float:
    peers = range(len(view.graph.gpus))
    wanted = {("GPU", p) for p in peers} | {("NVS", 0)}
    links = view.graph.nodes["GPU"][gpu].links
    return sum(x.gb_s for x in links if x.kind == "NVL" and (x.to.kind, x.to.index) in wanted)


def _order(view: HostView) -> tuple[int, ...]:
    """Return the ring whose narrowest hop is widest: tried out for few GPUs, else in the order of the tree."""
    n = len(view.graph.gpus)
    if n > _SEARCH_UP_TO:
        return tuple(range(n))

    def narrowest(order: tuple[int, ...]) -> float:
        return min(_usable(view, a, b) for a, b in zip(order, (*order[1:], order[0]), strict=True))

    return max(((0, *rest) for rest in itertools.permutations(range(1, n))), key=narrowest)


def _peers(view: HostView, gpu: int) -> set[int]:
    """Return the GPUs at the other ends of a GPU's NVLinks."""
    links = view.graph.nodes["GPU"][gpu].links
    return {x.to.index for x in links if x.kind == "NVL" and x.to.kind == "GPU"}


def _groups(view: HostView) -> list[set[int]]:
    """Return the GPUs in groups that NVLink joins, each GPU in one."""
    out: list[set[int]] = []
    left = set(range(len(view.graph.gpus)))
    while left:
        group, reached = set(), {min(left)}
        while reached:
            gpu = reached.pop()
            group.add(gpu)
            reached |= _peers(view, gpu) - group
        left -= group
        out.append(group)
    return out


def _partly_joined(view: HostView) -> tuple[float, str]:
    """Return the bound where NVLink joins some pairs only.

    Channels run different rings, so no single order limits them all. But each ring leaves every GPU, and every group
    of GPUs, at least once: all channels together get no more than what leads out of it.
    """
    # POWER9 and Grace reach their CPU by NVLink or C2C, next to PCIe.
    out = [[x for x in node.links if x.to.kind not in ("GPU", "NVS")] for node in view.graph.nodes["GPU"]]
    up = [sum(x.gb_s for x in links) for links in out]
    outward = "the PCIe" if all(x.kind == "PCI" for links in out for x in links) else "the PCIe and CPU"
    one = [(_nvlink_width(view, i) + rate, f"all links of {view.graph.gpus[i].address}") for i, rate in enumerate(up)]
    groups = _groups(view)
    several = [
        (sum(up[i] for i in g), f"{outward} links of {', '.join(view.graph.gpus[i].address for i in sorted(g))}")
        for g in groups
        if len(groups) > 1
    ]
    gb_s, words = min((*one, *several), key=lambda x: x[0])
    return gb_s, f"{words} together, {gb_s:.1f} GB/s"


def ring_inside(view: HostView) -> tuple[float, str]:
    """Return the bound of a ring inside one host, GB/s, and the link that sets it."""
    n = len(view.graph.gpus)
    if n < 2:
        return 0.0, "a single GPU"
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    if all(versions.rank(view.path("GPU", i, "GPU", j).type) <= versions.rank("NVB") for i, j in pairs):
        # Up to 2.25 NCCL also takes C2C for NVLink, by which a ring may run through the CPU.
        cpu = [sum(x.gb_s for x in g.links if (x.kind, x.to.kind) == ("NVL", "CPU")) for g in view.graph.nodes["GPU"]]
        widths = [(_nvlink_width(view, i) + cpu[i], i) for i in range(n)]
        gb_s, gpu = min(widths)
        return gb_s, f"all NVLinks of {view.graph.gpus[gpu].address} together, {gb_s:.1f} GB/s"
    if view.graph.nodes["GPU"] and any(_peers(view, i) for i in range(n)):
        return _partly_joined(view)
    order = _order(view)
    hops = list(zip(order, (*order[1:], order[0]), strict=True))
    i, j = min(hops, key=lambda h: _usable(view, *h))
    path = view.path("GPU", i, "GPU", j)
    usable = _usable(view, i, j)
    if path.type == "NET":
        gb_s, name = min(_best_nic(view, i), _best_nic(view, j))
        return gb_s, f"NIC {name}, {gb_s:.2f} GB/s"
    words = link_words(path)
    if usable < path.gb_s:
        words += f", of which an Intel host bridge leaves {usable:.1f}"
    return usable, words


def _to_nics(view: HostView) -> tuple[float, str]:
    """Return what all GPUs of a host and its NICs can exchange at once, and words for the links that limit it."""
    if not view.graph.nets:
        return _best_nic(view, 0)[0], f"a TCP interface of {view.host.name}, whose rate NCCL assumes to be 10 Gb/s"
    gb_s, cut = gpu_to_net_cut(view.graph)
    if len(cut) == 1:
        node, link = cut[0]
        return gb_s, f"{_link(node, link)}, on the way to the NICs of {view.host.name}"
    kinds = {link.kind for _, link in cut}
    counted = f"{len(cut)} NICs" if kinds == {"NET"} else f"{len(cut)} links between GPUs and NICs"
    return gb_s, f"the {counted} of {view.host.name}, {gb_s:.1f} GB/s together"


def bounds(views: list[HostView], ranks: int, *, nvls: bool, one_domain: bool = False) -> tuple[Bound, ...]:
    """Return the bounds of ring, tree (several hosts) and NVLS (one host or NVLink domain, where it is used).

    Args:
        views: the hosts.
        ranks: number of GPUs.
        nvls: whether NVLink SHARP is used.
        one_domain: whether NVLink joins all hosts, which NCCL then takes as one.
    """
    if ranks < 2 or not views:
        return ()
    if one_domain:
        return _of_nvlink(views, ranks, nvls=nvls)
    inside = [(*ring_inside(v), len(v.graph.gpus)) for v in views if len(v.graph.gpus) > 1]
    between = [(*_to_nics(v), len(views)) for v in views] if len(views) > 1 else []
    parts = [*inside, *between]
    if not parts:
        return ()
    gb_s, words, _ = min(parts, key=lambda p: p[0])
    out = [Bound(algorithm="Ring", busbw_gb_s=gb_s, limited_by=words, formula="narrowest hop, all channels together")]
    if len(views) > 1:
        rate, words, sides = min(parts, key=lambda p: p[0] * _tree_factor(p[2]))
        factor = _tree_factor(sides)
        text = f"{'2 B' if factor == 2 else 'B'} (n-1)/n, n = {ranks}"
        out.append(
            Bound(algorithm="Tree", busbw_gb_s=factor * rate * (ranks - 1) / ranks, limited_by=words, formula=text)
        )
    elif nvls and len(gpus_of_nodes(views[0])) == 1:  # over several nodes of NCCL's it is NVLSTree
        out += [b for b in _of_nvlink(views, ranks, nvls=True) if b.algorithm == "NVLS"]
    return tuple(out)


def _of_nvlink(views: list[HostView], n: int, *, nvls: bool) -> tuple[Bound, ...]:
    """Return the bounds of n GPUs that an NVSwitch joins: what the one with the narrowest NVLinks sends at once."""
    width, view, gpu = min(
        ((_nvlink_width(v, i), v, i) for v in views for i in range(len(v.graph.gpus))), key=lambda x: x[0]
    )
    where = view.graph.gpus[gpu].address + (f" of {view.host.name}" if len(views) > 1 else "")
    words = f"all NVLinks of {where} together, {width:.1f} GB/s"
    if not width:
        return ()
    out = [Bound(algorithm="Ring", busbw_gb_s=width, limited_by=words, formula="narrowest hop, all channels together")]
    if nvls:
        formula = f"2 B (n-1)/(n+1), n = {n}"
        out.append(Bound(algorithm="NVLS", busbw_gb_s=2 * width * (n - 1) / (n + 1), limited_by=words, formula=formula))
    return tuple(out)


def _tree_factor(sides: int) -> int:
    """Return 2 where a tree of so many nodes, or a chain of so many GPUs, has no inner node; else 1."""
    return 2 if sides == 2 else 1
