"""`topocheck pcie`: what a PCIe link of a generation and width carries."""

from __future__ import annotations

from typing import Annotated

import typer

from topocheck.cli import common


def pcie(
    generation: Annotated[int, typer.Argument(metavar="GEN", help="PCIe generation, 1 to 7.")],
    width: Annotated[int, typer.Argument(metavar="WIDTH", help="Lanes: 1, 2, 4, 8, 12, 16 or 32.")],
    max_payload: Annotated[int, typer.Option("--max-payload", help="Maximum payload size in bytes.")] = 256,
) -> None:
    """Compute what a PCIe link carries: GT/s x encoding x lanes, and what the packets leave of it."""
    from topocheck.knowledge.rates import pcie_throughput
    from topocheck.model.base import InputError
    from topocheck.render.pcie import pcie_text

    try:
        result = pcie_throughput(generation, width, max_payload)
    except ValueError as e:
        raise InputError(str(e)) from e
    common.emit(pcie_text(result))
