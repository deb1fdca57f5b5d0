"""The cut between GPUs and NICs, beside networkx's maximum flow and by hand."""

from __future__ import annotations

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topocheck.nccl.predict.min_cut import gpu_to_net_cut
from topocheck.nccl.topofile.graph_types import Graph, connect

LINKS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 60)).filter(lambda x: x[0] != x[1]), max_size=30
)


def graph(gpus: int, nets: int, others: int, links) -> Graph:
    g = Graph((2, 28, 9))
    nodes = [
        *(g.add("GPU", str(i)) for i in range(gpus)),
        *(g.add("NET", str(i)) for i in range(nets)),
        *(g.add("PCI", str(i)) for i in range(others)),
    ]
    for a, b, gb_s in links:
        if a < len(nodes) and b < len(nodes):
            connect(nodes[a], nodes[b], "PCI", float(gb_s))
    return g


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), LINKS)
def test_it_is_the_maximum_flow(gpus, nets, others, links):
    g = graph(gpus, nets, others, links)
    peer = networkx.DiGraph()
    peer.add_nodes_from(["source", "sink"])
    for nodes in g.nodes.values():
        for node in nodes:
            for link in node.links:
                peer.add_edge(repr(node), repr(link.to), capacity=link.gb_s)
            if node.kind == "GPU":
                peer.add_edge("source", repr(node), capacity=1e9)
            if node.kind == "NET":
                peer.add_edge(repr(node), "sink", capacity=1e9)
    gb_s, cut = gpu_to_net_cut(g)
    assert gb_s == pytest.approx(networkx.maximum_flow_value(peer, "source", "sink"))
    assert sum(link.gb_s for _, link in cut) == pytest.approx(gb_s)


def test_two_gpus_behind_one_switch():
    # GPUs 0, 1 (48 each) -- switch -- CPU (24) -- NETs 2, 3 (50 each): the switch's uplink is the cut.
    g = graph(2, 2, 2, [(0, 4, 48), (1, 4, 48), (4, 5, 24), (5, 2, 50), (5, 3, 50)])
    gb_s, cut = gpu_to_net_cut(g)
    assert gb_s == 24
    assert [(node.name, link.to.name) for node, link in cut] == [("0", "1")]


def test_nothing_joins_them():
    assert gpu_to_net_cut(graph(1, 1, 0, [])) == (0.0, ())
