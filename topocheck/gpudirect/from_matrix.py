"""P2P verdicts of a pasted matrix: what its own tables tell of pairs of GPUs, by their labels."""

from __future__ import annotations

from topocheck.gpudirect.types import GpuDirect, Link, P2pVerdict
from topocheck.model.base import known
from topocheck.model.smi import SmiMatrix
from topocheck.topology.from_smi import p2p_codes, p2p_reasons
from topocheck.topology.types import Topology


def verdicts_of(matrix: SmiMatrix, topology: Topology) -> GpuDirect:
    """Return the verdict of each pair that a P2P table of the text tells of. `topology`: of the matrix."""
    verdicts = []
    for (a, b), codes in sorted(p2p_codes(matrix).items()):
        verdict, steps = p2p_reasons(codes)
        link: Link = "none" if verdict.value == "no" else _link(topology, matrix.kind, a, b)
        verdicts.append(P2pVerdict(from_=a, to=b, from_label=a, to_label=b, verdict=verdict, link=link, reasons=steps))
    return GpuDirect(p2p=tuple(verdicts))


def _link(topology: Topology, kind: str, a: str, b: str) -> Link:
    """Return nvlink or pcie where an -m matrix tells the path of a pair; P2P tables alone and -mp do not."""
    if kind != "m":
        return "unknown"
    path = topology.find_path(a, b)
    if path is None or not known(path.class_):
        return "unknown"
    return "nvlink" if path.nvlinks else "pcie"
