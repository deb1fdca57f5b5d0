"""The way between a GPU and the memory of its host, as the narrowest link on it."""

from __future__ import annotations

from topocheck.model.base import ABSENT, Missing
from topocheck.topology.types import Gpu, Hop, HopKind, Topology

PCIE_GB_S_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s per lane and direction after encoding: GT/s x 8/10 (1, 2), 128/130 (3 to 5), 242/256 (6), over 8
(PCI Express Base Specification 6.0, 4.2)."""

_GT_S = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def pcie_hop(address: str, generation: int, lanes: int, upper: str | None = None) -> Hop:
    """Return the hop of one PCIe link; `generation` beyond the table gives a Missing rate."""
    per_lane = PCIE_GB_S_PER_LANE.get(generation)
    rate: float | Missing = ABSENT if per_lane is None else per_lane * lanes
    return Hop(kind=HopKind.PCIE, address=address, upper=upper, gb_s=rate, text=f"gen {generation} x{lanes}")


def host_path(topology: Topology, gpu: Gpu) -> Hop | None:
    """Return the narrowest link between a GPU and its root complex at what it negotiated; None where none is known.

    A coherent machine's GPU reaches its host over C2C, and its PCIe link says nothing about that road.
    """
    nvml = gpu.nvml
    if nvml is not None and isinstance(nvml.c2c_links, int) and nvml.c2c_links > 0:
        rate: float | Missing = ABSENT
        if isinstance(nvml.c2c_link_mb_s, int):
            rate = nvml.c2c_links * nvml.c2c_link_mb_s / 1000
        return Hop(kind=HopKind.C2C, address=gpu.address, gb_s=rate, text=f"{nvml.c2c_links} x C2C")
    links = [h for h in (_own_link(gpu), *_links_above(topology, gpu.address)) if isinstance(h.gb_s, float)]
    return min(links, key=lambda h: h.gb_s if isinstance(h.gb_s, float) else 0.0) if links else None


def _own_link(gpu: Gpu) -> Hop:
    nvml, pci = gpu.nvml, gpu.pci
    attainable: float | Missing = ABSENT
    hop = Hop(kind=HopKind.PCIE, address=gpu.address)
    if nvml is not None:
        hop = _nvml_link(gpu, hop)
        g, w = nvml.pcie_gen_max, nvml.pcie_width_max
        if isinstance(g, int) and isinstance(w, int) and g in PCIE_GB_S_PER_LANE:
            attainable = PCIE_GB_S_PER_LANE[g] * w
    if isinstance(hop.gb_s, Missing) and pci is not None:
        speed, lanes = pci.current_speed_gt_s, pci.current_width_lanes
        if isinstance(speed, float) and isinstance(lanes, int) and lanes > 0 and speed in _GT_S:
            hop = pcie_hop(gpu.address, _GT_S[speed], lanes)
    return Hop(kind=hop.kind, address=hop.address, gb_s=hop.gb_s, attainable_gb_s=attainable, text=hop.text)


def _nvml_link(gpu: Gpu, default: Hop) -> Hop:
    nvml = gpu.nvml
    if nvml is None or not isinstance(nvml.pcie_gen_current, int) or not isinstance(nvml.pcie_width_current, int):
        return default
    if nvml.pcie_width_current < 1:
        return default
    return pcie_hop(gpu.address, nvml.pcie_gen_current, nvml.pcie_width_current)


def _links_above(topology: Topology, address: str) -> list[Hop]:
    """Return the links of the ports above a function, as the tree knows their rates."""
    out: list[Hop] = []
    seen: set[str] = set()
    at = topology.tree.get(address)
    while at is not None and at.parent is not None and at.parent not in seen:
        seen.add(at.parent)
        at = topology.tree.get(at.parent)
        # An upstream port's link is the wire above a switch; the rate of a port's own downstream side is that of
        # the device below, which is counted there.
        if at is not None and at.role in ("upstream_port", "bridge") and isinstance(at.link_gb_s, float):
            out.append(Hop(kind=HopKind.PCIE, address=at.id, gb_s=at.link_gb_s, text=f"{at.link_gb_s:.1f} GB/s"))
    return out
