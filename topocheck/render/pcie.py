"""The arithmetic of a PCIe link, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topocheck.knowledge.rates import PcieThroughput


def pcie_text(p: PcieThroughput) -> str:
    """Return what a link carries, with the calculation and its source."""
    lines = [f"PCIe gen {p.generation} x{p.width_lanes}: {p.gb_s:.3f} GB/s per direction ({p.coding})"]
    lines += [f"  {step}" for step in p.arithmetic]
    lines.append(f"source: {p.source}")
    return "\n".join(lines) + "\n"
