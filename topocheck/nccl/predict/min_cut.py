"""What the GPUs of a host and its NICs can exchange at once: the narrowest cut between them in NCCL's graph.

A NIC's own path says too much where NICs share links: ten NICs that one GPU reaches through its one PCIe link carry
together what that link does. By the max-flow min-cut theorem (Ford and Fulkerson, 1956) the largest flow equals the
narrowest set of links whose loss would part the GPUs from the NICs; paths are found breadth first (Edmonds and Karp,
1972).
"""

from __future__ import annotations

from collections import deque

from topocheck.nccl.topofile.graph_types import Graph, GraphNode, Link

Cut = tuple[float, tuple[tuple[GraphNode, Link], ...]]
"""Bandwidth in GB/s of one direction, and the links of the cut with the nodes they leave."""

Left = dict[GraphNode, dict[GraphNode, float]]
"""Node -> neighbour -> bandwidth that is not yet used, GB/s."""
_NEGLIGIBLE = 1e-9


def gpu_to_net_cut(graph: Graph) -> Cut:
    """Return the narrowest cut from all GPUs of a graph to all its NETs; 0 and no links where nothing joins them."""
    left: Left = {node: {} for nodes in graph.nodes.values() for node in nodes}
    for node, beside in left.items():
        for link in node.links:
            beside[link.to] = beside.get(link.to, 0.0) + link.gb_s
    total = 0.0
    while path := _augmenting(graph, left):
        rate = min(left[a][b] for a, b in path)
        for a, b in path:
            left[a][b] -= rate
            left[b][a] = left[b].get(a, 0.0) + rate
        total += rate
    near = _reached(graph, left)
    cut = [(node, link) for node in near for link in node.links if link.to not in near and link.gb_s > 0]
    return total, tuple(cut)


def _reached(graph: Graph, left: Left) -> dict[GraphNode, GraphNode | None]:
    """Return the nodes that what is left of the links still reaches from the GPUs, each with the node before it."""
    found: dict[GraphNode, GraphNode | None] = dict.fromkeys(graph.nodes["GPU"])
    queue = deque(found)
    while queue:
        node = queue.popleft()
        for other, gb_s in left[node].items():
            if other not in found and gb_s > _NEGLIGIBLE:
                found[other] = node
                queue.append(other)
    return found


def _augmenting(graph: Graph, left: Left) -> list[tuple[GraphNode, GraphNode]] | None:
    """Return the hops of a shortest path from a GPU to a NET with bandwidth left on every link, or None."""
    before = _reached(graph, left)
    end: GraphNode | None = next((n for n in graph.nodes["NET"] if n in before), None)
    if end is None:
        return None
    hops = []
    while (previous := before[end]) is not None:
        hops.append((previous, end))
        end = previous
    return hops
