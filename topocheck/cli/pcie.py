"""`topocheck pcie`: what a PCIe link of a generation and width carries."""

from __future__ import annotations

from typing import Annotated

import typer

from topocheck.cli import common


def pcie(
    generation: Annotated[str, typer.Argument(metavar="GEN", help="PCIe generation, 1 to 7 (gen4).")],
    width: Annotated[str, typer.Argument(metavar="WIDTH", help="Lanes: 1, 2, 4, 8, 12, 16 or 32 (x16).")],
    max_payload: Annotated[int, typer.Option("--max-payload", help="Maximum payload size in bytes.")] = 256,
) -> None:
    """Compute what a PCIe link carries: GT/s x encoding x lanes, and what the packets leave of it."""
    from topocheck.knowledge.rates import pcie_throughput
    from topocheck.model.base import InputError, small_number
    from topocheck.render.pcie import pcie_text

    gen = small_number(generation.lower().removeprefix("gen").strip())
    lanes = small_number(width.lower().removeprefix("x"))
    if gen is None or lanes is None:
        raise InputError(f"{generation[:20]} {width[:20]}: expected a generation and lanes, such as 5 16 or gen5 x16")
    try:
        result = pcie_throughput(gen, lanes, max_payload)
    except ValueError as e:
        raise InputError(str(e)) from e
    common.emit(pcie_text(result))
