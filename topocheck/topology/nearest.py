"""The NICs nearest to each GPU."""

from __future__ import annotations

from collections.abc import Iterable

from topocheck.model.base import Missing, Reason, known
from topocheck.topology.classes import ORDER
from topocheck.topology.types import Gpu, NearestNics, Nic, Path


def nearest_nics(gpus: Iterable[Gpu], nics: Iterable[Nic], paths: Iterable[Path]) -> tuple[NearestNics, ...]:
    """Return for each GPU the addresses of all NICs of its best PCIe class.

    Among NICs that are equally far, those on the GPU's own NUMA node are nearer.
    """
    by_address = {n.address: n for n in nics}
    found: dict[str, list[Path]] = {}
    for p in paths:
        if p.to in by_address:
            found.setdefault(p.from_, []).append(p)
    out = []
    for gpu in gpus:
        ways = found.get(gpu.address, [])
        placed = [(p.pcie_class, p.to) for p in ways if not isinstance(p.pcie_class, Missing)]
        if not placed:
            why = next((p.pcie_class for p in ways), Missing(Reason.ABSENT, "no RDMA NIC on this node"))
            out.append(NearestNics(gpu=gpu.address, nics=(), class_=why))
            continue
        best = min((c for c, _ in placed), key=lambda c: ORDER.get(c, len(ORDER)))
        nearest = list(dict.fromkeys(a for c, a in placed if c == best))
        beside = [a for a in nearest if known(gpu.cpu_node) and by_address[a].cpu_node == gpu.cpu_node]
        out.append(NearestNics(gpu=gpu.address, nics=tuple(beside or nearest), class_=best))
    return tuple(out)
