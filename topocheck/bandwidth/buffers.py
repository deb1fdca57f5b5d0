"""How large the buffers may be."""

from __future__ import annotations

from topocheck.topology.types import Gpu

MIB = 1 << 20


def free_bytes(gpus: tuple[Gpu, ...]) -> int | None:
    """Return the free memory of the GPU that has the least of it; None where that is not known of any."""
    free = [
        g.nvml.memory_total_bytes - g.nvml.memory_used_bytes
        for g in gpus
        if g.nvml and isinstance(g.nvml.memory_total_bytes, int) and isinstance(g.nvml.memory_used_bytes, int)
    ]
    return min(free, default=None)


def fit_size(size_bytes: int, gpus: tuple[Gpu, ...], host_available_bytes: int | None, buffers: int = 2) -> int:
    """Return the largest halving of `size_bytes`, down to 16 MiB, that leaves devices and host enough memory.

    At most a quarter of each GPU's free memory for its buffers, and a tenth of what the host can spare, never
    more than 1 GiB, for pinned pages.
    """

    def fits(size: int) -> bool:
        free = free_bytes(gpus)
        if free is not None and size * buffers > free // 4:
            return False
        return host_available_bytes is None or size * buffers <= min(1 << 30, host_available_bytes // 10)

    size = size_bytes
    while size > 16 * MIB and not fits(size):
        size //= 2
    return size
