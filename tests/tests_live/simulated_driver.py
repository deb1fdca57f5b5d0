"""A driver that obeys the CUDA driver API's rules for the calls the engine makes, over host memory and a made clock.

Streams are queues. Nothing in one runs before the value it waits for is there; copies really move bytes; events take
the stream's made time, at which a copy of n bytes costs n over the rate of its pair. What the API forbids raises, as
the driver would: a context that is not current, an event of another context, peer copies without peer access, a
stream that waits for ever.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import msgspec

from topocheck.tests_live.copies.driver_calls import DriverError

LATENCY_S = 2e-6


class Stream(msgspec.Struct, kw_only=True):
    context: str
    queue: list[Callable[[], bool]] = msgspec.field(default_factory=list)
    clock: float = 0.0


class Event(msgspec.Struct, kw_only=True):
    """Each record is a time of its own: a wait is for the record that was the latest when the wait was queued."""

    context: str
    times: list[float | None] = msgspec.field(default_factory=list)

    @property
    def time(self) -> float | None:
        return self.times[-1] if self.times else None


class SimulatedDriver:
    """`rates` maps (source, destination) to bytes per second; ends are addresses or `host`."""

    def __init__(
        self,
        addresses: list[str],
        rates: dict[tuple[str, str], float],
        *,
        peers: bool = True,
        can_wait: bool = True,
        corrupt: tuple[str, str, int] | None = None,
        free_bytes: int = 8 << 30,
    ) -> None:
        self.addresses, self.rates, self.peers, self.can_wait = addresses, rates, peers, can_wait
        self.corrupt, self.free_bytes = corrupt, free_bytes
        self.current = ""
        self.streams: list[Stream] = []
        self.memory: dict[int, tuple[str, Any]] = {}
        self.enabled: set[tuple[str, str]] = set()
        self.calls: list[str] = []
        self.seen: list[tuple[str, str, str]] = []

    def call(self, name: str, *args: Any, about: str = "") -> Any:
        self.calls.append(name)
        return getattr(self, f"_{name}")(*args)

    def _fail(self, call: str, result: str) -> None:
        raise DriverError(call, result)

    def _cuInit(self, flags: int) -> None:
        pass

    def _cuDriverGetVersion(self) -> int:
        return 13000

    def _cuDeviceGetByPCIBusId(self, address: bytes) -> str:
        if address.decode() not in self.addresses:
            self._fail("cuDeviceGetByPCIBusId", "CUDA_ERROR_INVALID_DEVICE")
        return address.decode()

    def _cuDevicePrimaryCtxRetain(self, device: str) -> str:
        return device

    def _cuDevicePrimaryCtxRelease(self, device: str) -> None:
        pass

    def _cuCtxSetCurrent(self, context: str) -> None:
        self.current = context

    def _cuCtxSynchronize(self) -> None:
        for s in self.streams:
            if s.context == self.current:
                self._cuStreamSynchronize(s)

    def _cuStreamCreate(self, flags: int) -> Stream:
        assert flags == 1, "a blocking stream would wait for the default stream"
        self.streams.append(Stream(context=self.current))
        return self.streams[-1]

    def _cuEventCreate(self, flags: int) -> Event:
        return Event(context=self.current)

    def _cuEventDestroy(self, event: Event) -> None:
        pass

    def _allocate(self, place: str, size: int) -> int:
        buffer = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(buffer)] = (place, buffer)
        return ctypes.addressof(buffer)

    def _cuMemGetInfo(self) -> tuple[int, int]:
        return self.free_bytes, 80 << 30

    def _cuMemAlloc(self, size: int) -> int:
        return self._allocate(self.current, size)

    def _cuMemFree(self, pointer: int) -> None:
        del self.memory[pointer]

    def _cuMemHostAlloc(self, size: int, flags: int) -> int:
        assert flags == 3, "portable and mapped"
        return self._allocate("host", size)

    _cuMemFreeHost = _cuMemFree

    def _cuMemHostGetDevicePointer(self, pointer: int, flags: int) -> int:
        return pointer

    def _cuDeviceCanAccessPeer(self, a: str, b: str) -> int:
        return int(self.peers)

    def _cuCtxEnablePeerAccess(self, context: str, flags: int) -> None:
        self.enabled.add((self.current, context))

    def _place(self, pointer: int) -> str:
        return self.memory[pointer][0] if pointer in self.memory else "host"

    def _cuMemcpyHtoD(self, to: int, from_: int, size: int) -> None:
        assert self._place(to) == self.current
        ctypes.memmove(to, from_, size)

    def _cuMemcpyDtoH(self, to: int, from_: int, size: int) -> None:
        assert self._place(from_) == self.current
        ctypes.memmove(to, from_, size)

    def _cuMemsetD8(self, pointer: int, value: int, size: int) -> None:
        assert self._place(pointer) == self.current
        ctypes.memset(pointer, value, size)

    def _mine(self, stream: Stream, call: str) -> None:
        if stream.context != self.current:
            self._fail(call, "CUDA_ERROR_INVALID_CONTEXT")

    def _cuStreamWaitValue32(self, stream: Stream, pointer: int, value: int, flags: int) -> None:
        if not self.can_wait:
            self._fail("cuStreamWaitValue32", "CUDA_ERROR_NOT_SUPPORTED")
        self._mine(stream, "cuStreamWaitValue32")
        assert flags == 0
        stream.queue.append(lambda: ctypes.c_uint32.from_address(pointer).value >= value)

    def _cuEventRecord(self, event: Event, stream: Stream) -> None:
        self._mine(stream, "cuEventRecord")
        if event.context != stream.context:
            self._fail("cuEventRecord", "CUDA_ERROR_INVALID_HANDLE")
        number = len(event.times)
        event.times.append(None)

        def run() -> bool:
            event.times[number] = stream.clock
            return True

        stream.queue.append(run)

    def _cuStreamWaitEvent(self, stream: Stream, event: Event, flags: int) -> None:
        number = len(event.times) - 1

        def run() -> bool:
            time = event.times[number] if number >= 0 else 0.0
            if time is None:
                return False
            stream.clock = max(stream.clock, time)
            return True

        stream.queue.append(run)

    def _copy(self, to: int, from_: int, size: int, stream: Stream, call: str) -> None:
        self._mine(stream, call)
        source, target = self._place(from_), self._place(to)
        self.seen.append((source, target, stream.context))

        def run() -> bool:
            ctypes.memmove(to, from_, size)
            if self.corrupt and (source, target) == self.corrupt[:2]:
                at = to + self.corrupt[2]
                ctypes.memset(at, ctypes.string_at(at, 1)[0] ^ 1, 1)
            stream.clock += LATENCY_S + size / self.rates.get((source, target), 1e9)
            return True

        stream.queue.append(run)

    def _cuMemcpyAsync(self, to: int, from_: int, size: int, stream: Stream) -> None:
        ends = {self._place(to), self._place(from_)} - {"host", stream.context}
        for other in ends:
            if (stream.context, other) not in self.enabled:
                self._fail("cuMemcpyAsync", "CUDA_ERROR_INVALID_VALUE")
        self._copy(to, from_, size, stream, "cuMemcpyAsync")

    def _cuMemcpyHtoDAsync(self, to: int, from_: int, size: int, stream: Stream) -> None:
        self._copy(to, from_, size, stream, "cuMemcpyHtoDAsync")

    def _cuMemcpyDtoHAsync(self, to: int, from_: int, size: int, stream: Stream) -> None:
        self._copy(to, from_, size, stream, "cuMemcpyDtoHAsync")

    def _cuMemcpyPeerAsync(
        self, to: int, to_context: str, from_: int, from_context: str, size: int, stream: Stream
    ) -> None:
        assert self._place(to) == to_context
        assert self._place(from_) == from_context
        self._copy(to, from_, size, stream, "cuMemcpyPeerAsync")

    def _cuStreamSynchronize(self, stream: Stream) -> None:
        while stream.queue:
            moved = False
            for s in self.streams:
                while s.queue and s.queue[0]():
                    s.queue.pop(0)
                    moved = True
            if not moved:
                raise AssertionError("a stream waits for something that never comes")

    def _cuEventElapsedTime(self, start: Event, end: Event) -> float:
        if start.context != end.context or start.context != self.current:
            self._fail("cuEventElapsedTime", "CUDA_ERROR_INVALID_HANDLE")
        if start.time is None or end.time is None:
            self._fail("cuEventElapsedTime", "CUDA_ERROR_NOT_READY")
        return ((end.time or 0) - (start.time or 0)) * 1000
