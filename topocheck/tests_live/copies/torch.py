"""Copies through torch's `copy_`: the second engine, to be compared with the first.

torch issues every copy on the source device's stream (push) and enables peer access by itself, so it can measure
neither a pull nor a staged copy. The streams are held by `torch.cuda._sleep` where this torch has it: there is no
public call that holds a stream.
"""

from __future__ import annotations

import os
from time import perf_counter
from typing import Any

import msgspec

from topocheck.bandwidth.cases import HOST, CopyRow, Transfer
from topocheck.model.measurement import EngineName
from topocheck.tests_live.copies.measure import Prepared, Progress, Sample, UnsupportedRowError
from topocheck.tests_live.copies.numa_pages import nodes_of, on_cpus, placement_text
from topocheck.tests_live.copies.pattern import Pattern

HOLD_CYCLES = 20_000_000
"""Clocks of an SM for which a stream is held: 10 ms at 1.98 GHz, far more than queueing twenty copies takes."""


class Lane(msgspec.Struct, kw_only=True):
    """One transfer: tensors, streams on each device it touches, events."""

    transfer: Transfer
    source: Any
    destination: Any
    streams: tuple[Any, ...]
    start: Any
    end: Any
    pattern: Pattern


class TorchEngine:
    """The engine of torch."""

    name: EngineName = "torch"

    def __init__(self) -> None:
        self.torch: Any = None
        self.ordinals: dict[str, int] = {}
        self.nonce = os.urandom(8).hex()

    def open(self, addresses: tuple[str, ...], progress: Progress) -> dict[str, str]:
        """Import torch and find the devices by their PCI addresses."""
        progress("import torch")
        import torch

        self.torch = torch
        progress("torch.cuda.init")
        torch.cuda.init()
        for i in range(torch.cuda.device_count()):
            p = torch.cuda.get_device_properties(i)
            self.ordinals[f"{p.pci_domain_id:04x}:{p.pci_bus_id:02x}:{p.pci_device_id:02x}.0"] = i
        return {"torch": str(torch.__version__), "torch_cuda": str(torch.version.cuda)}

    def device(self, address: str) -> Any:
        """Return the torch device at a PCI address."""
        if address not in self.ordinals:
            raise UnsupportedRowError(f"{address} is not among the devices torch sees; check CUDA_VISIBLE_DEVICES")
        return self.torch.device("cuda", self.ordinals[address])

    def prepare(self, row: CopyRow, progress: Progress) -> Prepared:
        """Get one row ready."""
        return TorchRow(self, row, progress)

    def close(self) -> None:
        """Give torch's cached memory back."""
        self.torch.cuda.empty_cache()


class TorchRow:
    """A row ready to be sampled (measure.Prepared)."""

    def __init__(self, engine: TorchEngine, row: CopyRow, progress: Progress) -> None:
        self.engine, self.row, self.progress = engine, row, progress
        self.notes: list[str] = []
        self.allocator = "torch caching"
        self.placement = ""
        self.peer_access: bool | None = None
        self.lanes = [self._lane(t) for t in row.transfers]
        self.hold = getattr(engine.torch.cuda, "_sleep", None) if not row.pageable else None
        if self.hold is None:
            self.notes.append("not held back before the start")

    def _tensor(self, place: str) -> Any:
        torch, size = self.engine.torch, self.row.size_bytes
        if place != HOST:
            return torch.empty(size, dtype=torch.uint8, device=self.engine.device(place))
        with on_cpus(self.row.host_cpus) as bound:
            tensor = torch.empty(size, dtype=torch.uint8, pin_memory=not self.row.pageable)
            if self.row.pageable:
                tensor.zero_()
        self.placement, near = placement_text(nodes_of(tensor.data_ptr(), size), self.row.host_node, bound)
        if near is False:
            self.notes.append(f"the host's pages are not where they were wanted: {self.placement}")
        return tensor

    def _lane(self, t: Transfer) -> Lane:
        torch = self.engine.torch
        if t.issuer not in (t.source, t.destination) or (t.issuer == t.destination and t.source != HOST):
            raise UnsupportedRowError("torch issues every copy from its source device")
        self.progress(f"torch.empty for {t.source} to {t.destination}")
        source, destination = self._tensor(t.source), self._tensor(t.destination)
        pattern = Pattern(self.engine.nonce, f"{t.source} {t.destination}")
        scratch = torch.empty(self.row.size_bytes, dtype=torch.uint8)
        pattern.fill(scratch.data_ptr(), self.row.size_bytes)
        source.copy_(scratch)
        places = [a for a in dict.fromkeys((t.issuer, t.source, t.destination)) if a != HOST]
        streams = tuple(torch.cuda.Stream(self.engine.device(a)) for a in places)
        with torch.cuda.device(self.engine.device(t.issuer)):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if HOST not in (t.source, t.destination) and t.source != t.destination:
            a, b = self.engine.device(t.source), self.engine.device(t.destination)
            self.peer_access = bool(torch.cuda.can_device_access_peer(a, b))
        for place in places:
            torch.cuda.synchronize(self.engine.device(place))
        return Lane(
            transfer=t, source=source, destination=destination, streams=streams, start=start, end=end, pattern=pattern
        )

    def clear(self) -> None:
        """Make every destination wrong."""
        for lane in self.lanes:
            lane.destination.fill_(0xA5)
            self._wait(lane)

    def _wait(self, lane: Lane) -> None:
        for a in (lane.transfer.source, lane.transfer.destination):
            if a != HOST:
                self.engine.torch.cuda.synchronize(self.engine.device(a))

    def _queue(self, lane: Lane, count: int) -> None:
        torch = self.engine.torch
        with _entered(torch, lane.streams):
            for _ in range(count):
                lane.destination.copy_(lane.source, non_blocking=True)

    def sample(self) -> Sample:
        """Run the row's copies once."""
        torch, first = self.engine.torch, self.lanes[0]
        self.progress("queue copies through torch")
        for lane in self.lanes:
            if self.hold is not None:
                with torch.cuda.device(lane.streams[0].device), torch.cuda.stream(lane.streams[0]):
                    self.hold(HOLD_CYCLES)
        for lane in self.lanes:
            self._queue(lane, self.row.warm_ups)
        first.start.record(first.streams[0])
        for lane in self.lanes[1:]:
            lane.streams[0].wait_event(first.start)
            lane.start.record(lane.streams[0])
        for lane in self.lanes:
            self._queue(lane, self.row.copies)
            lane.end.record(lane.streams[0])
        start = perf_counter()
        self.progress("wait for the copies of torch")
        for lane in self.lanes:
            lane.end.synchronize()
            self._wait(lane)
        wall = perf_counter() - start
        seconds = tuple(lane.start.elapsed_time(lane.end) / 1000 for lane in self.lanes)
        return Sample(seconds=seconds, window_s=max(seconds), wall_s=min(wall, max(seconds)))

    def check(self) -> str:
        """Compare every byte of every destination."""
        for lane in self.lanes:
            there = lane.destination.cpu()
            wrong = lane.pattern.describe_difference(there.data_ptr(), self.row.size_bytes)
            if wrong:
                return f"{lane.transfer.source} to {lane.transfer.destination}: {wrong}"
        return ""

    def close(self) -> None:
        """Let go of the tensors; torch's allocator keeps their memory for the next row."""
        self.lanes = []


def _entered(torch: Any, streams: tuple[Any, ...]) -> Any:
    """Return a context in which these streams are current, each on its own device, the first one's device current."""
    import contextlib

    stack = contextlib.ExitStack()
    for s in reversed(streams):
        stack.enter_context(torch.cuda.stream(s))
    return stack
