"""All GPUDirect verdicts of a node."""

from __future__ import annotations

from topocheck.gpudirect import p2p, rdma
from topocheck.gpudirect.inputs import survey
from topocheck.gpudirect.types import GpuDirect
from topocheck.model.node import Node
from topocheck.topology.types import Topology


def judge(node: Node, topology: Topology) -> GpuDirect:
    """Return P2P for every ordered pair of NVIDIA GPUs and RDMA for every GPU and NIC, in the order of the paths.

    Accelerators of other makers are reported in the topology and not judged.
    """
    g = survey(node, topology)
    gpus = {x.address: x for x in topology.gpus}
    nics = {x.label: x for x in topology.nics}
    peers, remote = [], []
    for path in topology.paths:
        gpu = gpus.get(path.from_)
        if gpu is None:
            continue
        if path.to in gpus:
            peers.append(p2p.judge_pair(g, gpu, gpus[path.to], path))
        elif path.to_label in nics:
            remote.append(rdma.judge_pair(g, gpu, nics[path.to_label], path))
    return GpuDirect(p2p=tuple(peers), rdma=tuple(remote))
