"""What the CUDA driver engine's rows use: contexts, streams, device and host memory, and the start gate."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import msgspec

from topocheck.bandwidth.cases import CopyRow
from topocheck.tests_live.copies.driver_calls import Driver, DriverError
from topocheck.tests_live.copies.host import HostBuffer
from topocheck.tests_live.copies.measure import UnsupportedRowError
from topocheck.tests_live.copies.numa_pages import nodes_of, on_cpus, placement_text
from topocheck.tests_live.copies.pattern import Pattern

STREAM_NON_BLOCKING = 1
HOST_PORTABLE, HOST_DEVICEMAP = 1, 2
"""CU_STREAM_NON_BLOCKING, CU_MEMHOSTALLOC_PORTABLE and CU_MEMHOSTALLOC_DEVICEMAP of cuda.h."""


class HostMemory(msgspec.Struct, kw_only=True):
    """A buffer of the host: pinned by the driver, or pageable (`backing` holds it)."""

    pointer: int
    size_bytes: int
    placement: str
    near: bool | None
    allocator: str
    backing: HostBuffer | None = None


class DriverResources:
    """Contexts, streams and buffers, kept from row to row; `peers` False never gives a pair peer access."""

    def __init__(self, *, peers: bool = True) -> None:
        self.peers = peers
        self.driver = Driver()
        self.devices: dict[str, Any] = {}
        self.contexts: dict[str, Any] = {}
        self._streams: dict[tuple[str, int], Any] = {}
        self._device_memory: dict[tuple[str, str], tuple[Any, int]] = {}
        self._host_memory: dict[tuple[str, int, bool], HostMemory] = {}
        self._peer: dict[tuple[str, str], str] = {}
        self._filled: dict[tuple[str, str], int] = {}
        self._patterns: dict[str, Pattern] = {}
        self.nonce = os.urandom(8).hex()
        self.gate: Any = None

    def current(self, address: str) -> None:
        """Make the context of a device current in this thread."""
        self.driver.call("cuCtxSetCurrent", self.contexts[address], about=address)

    def stream(self, address: str, number: int) -> Any:
        """Return the `number`-th stream of a device."""
        if (address, number) not in self._streams:
            self.current(address)
            self._streams[address, number] = self.driver.call("cuStreamCreate", STREAM_NON_BLOCKING, about=address)
        return self._streams[address, number]

    def device_memory(self, address: str, role: str, size_bytes: int) -> Any:
        """Return device memory of at least this size, kept from row to row."""
        kept = self._device_memory.get((address, role))
        if kept and kept[1] >= size_bytes:
            return kept[0]
        self.current(address)
        if kept:
            self.driver.call("cuMemFree", kept[0])
        self._filled.pop((address, role), None)
        free, _ = self.driver.call("cuMemGetInfo", about=address)
        if size_bytes > free // 2:
            raise UnsupportedRowError(
                f"not enough free memory on {address}: {free >> 20} MiB free, {size_bytes >> 20} MiB wanted"
            )
        pointer = self.driver.call("cuMemAlloc", size_bytes, about=f"{size_bytes} bytes on {address}")
        self._device_memory[address, role] = (pointer, size_bytes)
        return pointer

    def host_memory(self, row: CopyRow, number: int, size_bytes: int | None = None) -> HostMemory:
        """Return the `number`-th buffer of the host near the row's CPUs, kept from row to row."""
        size = size_bytes or row.size_bytes
        key = (row.host_cpus, number, row.pageable)
        kept = self._host_memory.get(key)
        if kept and kept.size_bytes >= size:
            return kept
        if kept:
            self._free_host(kept)
        with on_cpus(row.host_cpus) as bound:
            if row.pageable:
                backing = HostBuffer(size)
                pointer, allocator = backing.pointer, "mmap, pageable"
            else:
                backing, allocator = None, "cuMemHostAlloc"
                flags = HOST_PORTABLE | HOST_DEVICEMAP
                pointer = int(self.driver.call("cuMemHostAlloc", size, flags, about=f"{size} bytes of the host"))
        text, near = placement_text(nodes_of(pointer, size), row.host_node, bound)
        kept = HostMemory(
            pointer=pointer, size_bytes=size, placement=text, near=near, allocator=allocator, backing=backing
        )
        self._host_memory[key] = kept
        return kept

    def _free_host(self, memory: HostMemory) -> None:
        if memory.backing is not None:
            memory.backing.close()
        else:
            self.driver.call("cuMemFreeHost", memory.pointer)

    def peer_access(self, issuer: str, other: str) -> str:
        """Let `issuer` reach `other`'s memory; return the empty text, or why it cannot."""
        if not self.peers:
            return "peer access is left off in this process"
        if (issuer, other) not in self._peer:
            able = self.driver.call("cuDeviceCanAccessPeer", self.devices[issuer], self.devices[other])
            why = "" if int(able) else "cuDeviceCanAccessPeer says 0"
            if not why:
                self.current(issuer)
                try:
                    self.driver.call("cuCtxEnablePeerAccess", self.contexts[other], 0, about=f"{issuer} to {other}")
                except DriverError as e:
                    if e.result != "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED":
                        why = str(e)
            self._peer[issuer, other] = why
        return self._peer[issuer, other]

    def pattern(self, name: str) -> Pattern:
        """Return the pattern of this run for one source."""
        if name not in self._patterns:
            self._patterns[name] = Pattern(self.nonce, name)
        return self._patterns[name]

    def scratch(self, row: CopyRow, size_bytes: int, avoid: tuple[int, ...] = ()) -> int:
        """Return the address of pinned memory that this row does not use, an old buffer where one is big enough."""
        for (_, _, pageable), memory in self._host_memory.items():
            if not pageable and memory.size_bytes >= size_bytes and memory.pointer not in avoid:
                return memory.pointer
        plain = msgspec.structs.replace(row, pageable=False)
        return self.host_memory(plain, len(row.transfers), size_bytes).pointer

    def fill(self, address: str, size_bytes: int, row: CopyRow) -> tuple[Any, Pattern]:
        """Return a device's source buffer, holding its pattern, and the pattern."""
        pattern = self.pattern(address)
        pointer = self.device_memory(address, "source", size_bytes)
        if self._filled.get((address, "source"), 0) < size_bytes:
            scratch = self.scratch(row, size_bytes)
            pattern.fill(scratch, size_bytes)
            self.current(address)
            self.driver.call("cuMemcpyHtoD", pointer, scratch, size_bytes, about=f"pattern to {address}")
            self._filled[address, "source"] = size_bytes
        return pointer, pattern


class StartGate:
    """The number in the host's memory that streams wait for."""

    def __init__(self, driver: Driver) -> None:
        self.pointer = int(driver.call("cuMemHostAlloc", 4096, HOST_PORTABLE | HOST_DEVICEMAP, about="the gate's flag"))
        self.device_pointer = int(driver.call("cuMemHostGetDevicePointer", self.pointer, 0))
        self._value = ctypes.c_uint32.from_address(self.pointer)
        self._value.value = 0
        self.turn = 0

    def next_turn(self) -> int:
        """Return the number the next gate waits for."""
        self.turn += 1
        return self.turn

    def release(self) -> None:
        """Open every gate there has been."""
        self._value.value = self.turn
