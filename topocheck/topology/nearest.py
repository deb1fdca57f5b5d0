"""The NICs nearest to each GPU."""

from __future__ import annotations

from collections.abc import Iterable

from topocheck.model.base import Missing, Reason
from topocheck.topology.classes import ORDER
from topocheck.topology.types import Gpu, NearestNics, Nic, Path, PathClass


def nearest_nics(gpus: Iterable[Gpu], nics: Iterable[Nic], paths: Iterable[Path]) -> tuple[NearestNics, ...]:
    """Return for each GPU the addresses of all NICs of its best PCIe class.

    Where that is SYS, and it is not known whether some of these NICs are on the GPU's NUMA node, none is called the
    nearest.
    """
    addresses = {n.address for n in nics}
    found: dict[str, list[Path]] = {}
    for p in paths:
        if p.to in addresses:
            found.setdefault(p.from_, []).append(p)
    out = []
    for gpu in gpus:
        ways = found.get(gpu.address, [])
        placed = [(p.pcie_class, p.to) for p in ways if not isinstance(p.pcie_class, Missing)]
        if not placed:
            gap = next((p.pcie_class for p in ways), Missing(Reason.ABSENT, "no RDMA NIC on this node"))
            out.append(NearestNics(gpu=gpu.address, nics=(), class_=gap))
            continue
        best = min((c for c, _ in placed), key=lambda c: ORDER.get(c, len(ORDER)))
        why = next((p.crosses_nodes for p in ways if isinstance(p.crosses_nodes, Missing)), None)
        if best == PathClass.SYS and why is not None:
            out.append(NearestNics(gpu=gpu.address, nics=(), class_=why))
            continue
        nearest = list(dict.fromkeys(a for c, a in placed if c == best))
        out.append(NearestNics(gpu=gpu.address, nics=tuple(nearest), class_=best))
    return tuple(out)
