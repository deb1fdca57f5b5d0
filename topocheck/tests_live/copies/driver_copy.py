"""One row of the driver's engine: streams, gate, events, and the comparison of what arrived."""

from __future__ import annotations

import threading
from time import perf_counter
from typing import Any

import msgspec

from topocheck.bandwidth.cases import HOST, CopyRow, Transfer
from topocheck.bandwidth.stats import median
from topocheck.tests_live.copies.driver_calls import DriverError
from topocheck.tests_live.copies.driver_resources import DriverResources
from topocheck.tests_live.copies.measure import Progress, Sample, UnsupportedRowError
from topocheck.tests_live.copies.pattern import Pattern, wipe

CLEARED = 0xA5
GATE_GIVES_UP_S = 10.0
WAIT_GEQ = 0
"""CU_STREAM_WAIT_VALUE_GEQ of cuda.h."""


class Lane(msgspec.Struct, kw_only=True):
    """One transfer with all it needs."""

    transfer: Transfer
    stream: Any
    start: Any
    end: Any
    source: Any
    destination: Any
    pattern: Pattern
    peer: bool
    """Whether both ends are in one address space for the copy engine (peer access, host, or one device)."""


class DriverRow:
    """A row ready to be sampled (measure.Prepared)."""

    def __init__(self, engine: DriverResources, row: CopyRow, progress: Progress) -> None:
        self.engine = engine
        self.row = row
        self.progress = progress
        self.notes: list[str] = []
        self.allocator = "cuMemAlloc"
        self.placement = ""
        self.peer_access: bool | None = None
        self.lanes = [self._lane(t, n) for n, t in enumerate(row.transfers)]
        engine.current(row.transfers[0].issuer)
        self.all_end = engine.driver.call("cuEventCreate", 0, about=row.transfers[0].issuer)
        # Pageable copies wait inside the driver for its staging buffers, and staged ones may; a gate before them
        # could wait for itself.
        self.gated = not row.pageable and all(lane.peer for lane in self.lanes) and row.kind != "latency_host"
        if not self.gated and row.kind != "latency_host":
            self.notes.append("not held back before the start: the driver stages this copy itself")

    def _lane(self, t: Transfer, number: int) -> Lane:
        engine, row, size = self.engine, self.row, self.row.size_bytes
        call = engine.driver.call
        where = f"{t.source} to {t.destination}"
        self.progress(f"allocate for {where}")
        peer = True
        if HOST not in (t.source, t.destination) and t.source != t.destination:
            other = t.destination if t.issuer == t.source else t.source
            self.progress(f"cuCtxEnablePeerAccess {t.issuer} to {other}")
            why = engine.peer_access(t.issuer, other)
            peer = not why
            self.peer_access = peer
            if why and row.peer_access:
                self.notes.append(f"copied without peer access: {why}")
        if t.source != HOST:
            source, pattern = engine.fill(t.source, size, row)
        if t.destination != HOST:
            destination: Any = engine.device_memory(t.destination, "destination", size)
        if HOST in (t.source, t.destination):
            memory = engine.host_memory(row, number)
            self._host_side(memory)
            if t.source == HOST:
                source, pattern = memory.pointer, engine.pattern(f"host to {t.destination}")
                pattern.fill(source, size)
            else:
                destination = memory.pointer
        self.progress(f"cuStreamCreate, cuEventCreate on {t.issuer}")
        stream = engine.stream(t.issuer, number)
        engine.current(t.issuer)
        start, end = call("cuEventCreate", 0, about=t.issuer), call("cuEventCreate", 0, about=t.issuer)
        return Lane(
            transfer=t,
            stream=stream,
            start=start,
            end=end,
            source=source,
            destination=destination,
            pattern=pattern,
            peer=peer,
        )

    def _host_side(self, memory: Any) -> None:
        self.allocator = f"cuMemAlloc, {memory.allocator}"
        self.placement = memory.placement
        if memory.near is False:
            self.notes.append(f"the host's pages are not where they were wanted: {memory.placement}")

    def clear(self) -> None:
        """Make every destination wrong and see that it is done before anything is timed."""
        call = self.engine.driver.call
        for lane in self.lanes:
            if lane.transfer.destination == HOST:
                wipe(lane.destination, CLEARED, self.row.size_bytes)
            else:
                self.engine.current(lane.transfer.destination)
                call("cuMemsetD8", lane.destination, CLEARED, self.row.size_bytes, about=lane.transfer.destination)
                call("cuCtxSynchronize")

    def _copy(self, lane: Lane) -> None:
        """Queue one copy; the context of the issuer is current."""
        call, size, t = self.engine.driver.call, self.row.size_bytes, lane.transfer
        where = f"{t.source} to {t.destination}"
        if not lane.peer:
            contexts = self.engine.contexts
            call(
                "cuMemcpyPeerAsync",
                lane.destination,
                contexts[t.destination],
                lane.source,
                contexts[t.source],
                size,
                lane.stream,
                about=where,
            )
        elif self.row.pageable and t.source == HOST:
            call("cuMemcpyHtoDAsync", lane.destination, lane.source, size, lane.stream, about=where)
        elif self.row.pageable:
            call("cuMemcpyDtoHAsync", lane.destination, lane.source, size, lane.stream, about=where)
        else:
            call("cuMemcpyAsync", lane.destination, lane.source, size, lane.stream, about=where)

    def _queue(self, lane: Lane, count: int) -> None:
        self.engine.current(lane.transfer.issuer)
        for _ in range(count):
            self._copy(lane)

    def sample(self) -> Sample:
        """Run the row's copies once."""
        if self.row.kind == "latency_host":
            return self._one_by_one()
        call, row, gate = self.engine.driver.call, self.row, self.engine.gate
        first = self.lanes[0]
        names = ", ".join(f"{lane.transfer.source} to {lane.transfer.destination}" for lane in self.lanes)
        self.progress(f"queue {row.copies} copies, {names}")
        held = threading.Event()

        def give_up() -> None:
            held.set()
            gate.release()

        guard = threading.Timer(GATE_GIVES_UP_S, give_up)
        guard.daemon = True
        if self.gated:
            turn = gate.next_turn()
            guard.start()
            try:
                for lane in self.lanes:
                    self.engine.current(lane.transfer.issuer)
                    call("cuStreamWaitValue32", lane.stream, gate.device_pointer, turn, WAIT_GEQ)
            except DriverError as e:
                # Old drivers, or a device that cannot wait for memory: go on without, and say so.
                gate.release()
                self.gated = False
                self.notes.append(f"not held back before the start: {e}")
        try:
            for lane in self.lanes:
                self._queue(lane, row.warm_ups)
                call("cuEventRecord", lane.end, lane.stream)
            self.engine.current(first.transfer.issuer)
            # The start is common: after every lane's warm-ups.
            for lane in self.lanes[1:]:
                call("cuStreamWaitEvent", first.stream, lane.end, 0)
            call("cuEventRecord", first.start, first.stream)
            for lane in self.lanes[1:]:
                self.engine.current(lane.transfer.issuer)
                call("cuStreamWaitEvent", lane.stream, first.start, 0)
                call("cuEventRecord", lane.start, lane.stream)
            for lane in self.lanes:
                self._queue(lane, row.copies)
                call("cuEventRecord", lane.end, lane.stream)
            self.engine.current(first.transfer.issuer)
            for lane in self.lanes[1:]:
                call("cuStreamWaitEvent", first.stream, lane.end, 0)
            call("cuEventRecord", self.all_end, first.stream)
            released = perf_counter()
        finally:
            gate.release()
            guard.cancel()
        self.progress(f"wait for the copies, {names}")
        for lane in self.lanes:
            self.engine.current(lane.transfer.issuer)
            call("cuStreamSynchronize", lane.stream, about=f"{lane.transfer.source} to {lane.transfer.destination}")
        wall = perf_counter() - released
        if held.is_set():
            raise UnsupportedRowError("queueing the copies took ten seconds; the gate was opened before it was done")
        return self._read_clocks(wall)

    def _read_clocks(self, wall: float) -> Sample:
        seconds = tuple(self._elapsed(lane, lane.end) for lane in self.lanes)
        # The wall clock also saw the warm-ups, which take their share of the copies.
        share = self.row.copies / (self.row.copies + self.row.warm_ups)
        window = self._elapsed(self.lanes[0], self.all_end)
        return Sample(seconds=seconds, window_s=window, wall_s=wall * share if self.gated else 0.0)

    def _elapsed(self, lane: Lane, end: Any) -> float:
        self.engine.current(lane.transfer.issuer)
        ms = float(self.engine.driver.call("cuEventElapsedTime", lane.start, end, about=lane.transfer.issuer))
        if ms <= 0:
            raise DriverError("cuEventElapsedTime", f"{ms} ms, which is no time")
        return ms / 1000

    def _one_by_one(self) -> Sample:
        """One copy, wait, next: what a program sees. The sample is the median of the copies."""
        call, lane = self.engine.driver.call, self.lanes[0]
        self._queue(lane, self.row.warm_ups)
        call("cuStreamSynchronize", lane.stream)
        times = []
        for _ in range(self.row.copies):
            start = perf_counter()
            self._copy(lane)
            call("cuStreamSynchronize", lane.stream)
            times.append(perf_counter() - start)
        total = median(times) * self.row.copies
        return Sample(seconds=(total,), window_s=total)

    def check(self) -> str:
        """Compare every byte of every destination, read back by the destination's own device."""
        call, size = self.engine.driver.call, self.row.size_bytes
        for lane in self.lanes:
            t = lane.transfer
            where = f"{t.source} to {t.destination}"
            self.progress(f"compare, {where}")
            pointer = lane.destination
            if t.destination != HOST:
                # What came from the host is read back over its own source, which is wiped before: so it is the
                # device's copy that is compared, and no second buffer need be pinned.
                from_host = t.source == HOST and not self.row.pageable
                pointer = lane.source if from_host else self.engine.scratch(self.row, size, self._in_use())
                self.engine.current(t.destination)
                wipe(pointer, 0, size)
                call("cuMemcpyDtoH", pointer, lane.destination, size, about=f"read back from {t.destination}")
            wrong = lane.pattern.describe_difference(pointer, size)
            if wrong and t.source == HOST:
                lane.pattern.fill(lane.source, size)
            if wrong:
                return f"{where}: {wrong}"
        return ""

    def _in_use(self) -> tuple[int, ...]:
        """Return the host buffers that are an end of one of this row's transfers."""
        ends = [lane.source for lane in self.lanes if lane.transfer.source == HOST]
        return tuple(ends + [lane.destination for lane in self.lanes if lane.transfer.destination == HOST])

    def close(self) -> None:
        """Give the events back; memory and streams are kept for the next row."""
        for lane in self.lanes:
            self.engine.current(lane.transfer.issuer)
            for event in (lane.start, lane.end):
                self.engine.driver.call("cuEventDestroy", event)
        self.engine.current(self.lanes[0].transfer.issuer)
        self.engine.driver.call("cuEventDestroy", self.all_end)
