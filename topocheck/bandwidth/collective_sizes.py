"""Sizes of collectives as nccl-tests counts them."""

from __future__ import annotations

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int32": 4, "int64": 8, "uint8": 1}
DTYPES = tuple(DTYPE_BYTES)
ALIGN = 16
"""Bytes to which each rank's part is rounded down, as nccl-tests does."""
SPLIT = ("all_gather", "reduce_scatter", "all_to_all")
"""Collectives whose size is that of all ranks' parts together."""


def elements(collective: str, size_bytes: int, ranks: int, width: int) -> tuple[int, int]:
    """Return (elements of one rank's part, elements in all) of a collective of `size_bytes` as nccl-tests counts them.

    Parts are rounded down to ALIGN bytes where they are larger; 0 where not even one element fits.
    """
    split = collective in SPLIT
    part_bytes = size_bytes // ranks if split else size_bytes
    part = part_bytes // ALIGN * ALIGN // width or part_bytes // width
    return part, part * ranks if split else part
