"""Theoretical rates of the paths on a node, for planning and judging."""

from __future__ import annotations

from topocheck.model.base import Missing
from topocheck.topology.types import Hop, HopKind, Topology


def host_hop(topology: Topology, address: str) -> Hop | None:
    """Return the narrowest hop between a GPU and its host's memory; None where no rate on the path is known."""
    path = topology.host_paths.get(address)
    return None if path is None else path.narrowest


def pair_rate(topology: Topology, a: str, b: str) -> float | None:
    """Return the rate of the narrowest hop between two GPUs, GB/s one way."""
    path = topology.find_path(a, b)
    if path is None or isinstance(path.theoretical_gb_s, Missing):
        return None
    return path.theoretical_gb_s


def rate(hop: Hop) -> float | None:
    """Return the rate a hop has under load: what both ends can do where the link rests now, else what it negotiated."""
    value = hop.working_gb_s
    return None if isinstance(value, Missing) else value


def efficiency_key(hop: Hop, path_class: str | None = None) -> tuple[str, str]:
    """Return (kind, variant) of the efficiency table for one-way copies over a path whose narrowest hop this is.

    `path_class` is the PCIe class between two GPUs; None for a path to the host.
    """
    if hop.kind is HopKind.C2C:
        return "host_copy", "c2c"
    if path_class is None:
        number = hop.generation if hop.kind is HopKind.PCIE else None
        return "host_copy", f"pcie{number}" if number in (3, 4, 5) else "other"
    if hop.kind is HopKind.NVLINK:
        return "p2p", f"nvlink{hop.generation}"
    return "p2p", "pcie_switch" if path_class in ("PIX", "PXB") else "pcie_cpu"
