"""The roads that data takes on a node, for planning and judging: between two GPUs, and between a GPU and its host."""

from __future__ import annotations

import re

from topocheck.model.base import Missing
from topocheck.model.pci import PciDevice
from topocheck.topology.classes import Surroundings
from topocheck.topology.paths import Map, c2c_hop, joined_to_cpu, upward
from topocheck.topology.tree import chains
from topocheck.topology.types import Gpu, Hop, HopKind, Path, Topology


class Roads:
    """Roads of one topology; `devices` are the node's PCI functions, without which only a GPU's own link is known."""

    def __init__(self, topology: Topology, devices: tuple[PciDevice, ...] = ()) -> None:
        self.topology = topology
        known = devices or tuple(g.pci for g in topology.gpus if g.pci is not None)
        self._map = Map(
            devices={d.address: d for d in known},
            places=chains(known),
            tree=topology.tree,
            bundles={},
            ancestors={},
            around=Surroundings(1, topology.flat_tree),
            flat=topology.flat_tree,
        )

    def gpu(self, address: str) -> Gpu | None:
        """Return the GPU at an address."""
        return next((g for g in self.topology.gpus if g.address == address), None)

    def label(self, end: str) -> str:
        """Return `GPU0` for the address of GPU 0, and anything else as it is."""
        g = self.gpu(end)
        return g.label if g else end

    def pair(self, a: str, b: str) -> Path | None:
        """Return the path of an ordered pair of GPUs."""
        return next((p for p in self.topology.paths if p.from_ == a and p.to == b), None)

    def host(self, address: str) -> Hop | None:
        """Return the narrowest hop between a GPU and its host's memory; None where no rate on the way is known.

        A GPU joined to its CPU by a chip-to-chip link takes that, and its PCIe link says nothing about the road.
        """
        gpu = self.gpu(address)
        if gpu is None:
            return None
        hops = [c2c_hop(gpu)] if joined_to_cpu(gpu) else [h for h in upward(gpu, 0, self._map) if not h.formal]
        rated = [(rate(h), h) for h in hops]
        found = [(r, h) for r, h in rated if r is not None]
        return min(found, key=lambda x: x[0])[1] if found else None

    def pair_rate(self, a: str, b: str) -> float | None:
        """Return the rate of the narrowest hop between two GPUs, GB/s one way."""
        path = self.pair(a, b)
        if path is None or isinstance(path.theoretical_gb_s, Missing):
            return None
        return path.theoretical_gb_s


def rate(hop: Hop) -> float | None:
    """Return the rate a hop has under load: what both ends can do where the link rests now, else what it negotiated."""
    value = hop.working_gb_s
    return None if isinstance(value, Missing) else value


def generation(hop: Hop) -> int | None:
    """Return the PCIe generation or NVLink version that a hop's text names (`gen 4 x16`, `18 x NVLink 4`)."""
    m = re.search(r"(?:gen|NVLink) (\d+)", hop.text)
    return int(m[1]) if m else None


def efficiency_key(hop: Hop, path_class: str | None = None) -> tuple[str, str]:
    """Return (kind, variant) of the efficiency table for one-way copies over a road whose narrowest hop this is.

    `path_class` is the PCIe class between two GPUs; None for a road to the host.
    """
    number = generation(hop)
    if hop.kind is HopKind.NVLINK:
        return "p2p", f"nvlink{number}"
    if hop.kind is HopKind.C2C:
        return "host_copy", "c2c"
    if path_class is not None:
        return "p2p", "pcie_switch" if path_class in ("PIX", "PXB") else "pcie_cpu"
    return "host_copy", f"pcie{number}" if number in (3, 4, 5) else "other"
