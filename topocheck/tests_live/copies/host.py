"""Copies within the host's memory by memmove: what a node without GPUs can measure, and the plainest engine."""

from __future__ import annotations

import ctypes
import mmap
from time import perf_counter

from topocheck.bandwidth.cases import CopyRow
from topocheck.model.measurement import EngineName
from topocheck.tests_live.copies.measure import Prepared, Progress, Sample
from topocheck.tests_live.copies.numa_pages import nodes_of, on_cpus, placement_text
from topocheck.tests_live.copies.pattern import Pattern


class HostBuffer:
    """Anonymous memory whose pages are placed by the thread that makes it."""

    def __init__(self, size_bytes: int) -> None:
        self._map = mmap.mmap(-1, size_bytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._view = ctypes.c_char.from_buffer(self._map)
        self.pointer = ctypes.addressof(self._view)
        self.size_bytes = size_bytes
        ctypes.memset(self.pointer, 0, size_bytes)

    def close(self) -> None:
        """Give the memory back."""
        del self._view
        self._map.close()


class HostRow:
    """A row of the host's own memory."""

    def __init__(self, row: CopyRow, progress: Progress) -> None:
        self.row = row
        self.allocator = "mmap"
        self.peer_access: bool | None = None
        self.notes: list[str] = []
        with on_cpus(row.host_cpus) as bound:
            progress("mmap")
            self.source, self.target = HostBuffer(row.size_bytes), HostBuffer(row.size_bytes)
        self.placement, _ = placement_text(nodes_of(self.target.pointer, row.size_bytes), row.host_node, bound)
        self.pattern = Pattern(row.id)
        self.pattern.fill(self.source.pointer, row.size_bytes)

    def clear(self) -> None:
        """Make the destination wrong."""
        ctypes.memset(self.target.pointer, 0xA5, self.row.size_bytes)

    def copy(self) -> None:
        """Move the buffer once."""
        ctypes.memmove(self.target.pointer, self.source.pointer, self.row.size_bytes)

    def sample(self) -> Sample:
        """Run the copies once."""
        for _ in range(self.row.warm_ups):
            self.copy()
        start = perf_counter()
        for _ in range(self.row.copies):
            self.copy()
        seconds = perf_counter() - start
        return Sample(seconds=(seconds,), window_s=seconds)

    def check(self) -> str:
        """Compare every byte."""
        return self.pattern.describe_difference(self.target.pointer, self.row.size_bytes)

    def close(self) -> None:
        """Give the buffers back."""
        self.source.close()
        self.target.close()


class HostEngine:
    """The engine of the host's own memory."""

    name: EngineName = "host"

    def open(self, addresses: tuple[str, ...], progress: Progress) -> dict[str, str]:
        """Nothing to get ready."""
        return {}

    def prepare(self, row: CopyRow, progress: Progress) -> Prepared:
        """Get one row ready."""
        return HostRow(row, progress)

    def close(self) -> None:
        """Nothing to give back."""
