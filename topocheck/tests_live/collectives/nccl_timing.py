"""Times NCCL called directly: a communicator for a group of ranks, and samples on its stream.

A sample is one untimed call, an event, n calls and an event. The ranks leave the untimed call together, so that how far
apart their clocks and processes start is no part of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from topocheck.tests_live.collectives.nccl import (
    ISSUED_BY,
    UNIQUE_ID_BYTES,
    Communicator,
    NcclError,
    NcclMissingError,
    load,
    places,
    unique_id,
)
from topocheck.tests_live.collectives.ops import Op

DIRECT_MODES = ("back_to_back", "graph")
"""Modes that show what NCCL takes; a program that waits for each call (`one_at_a_time`) goes through torch."""

CALLS_IN_GRAPH = 20
"""Calls in one CUDA graph: nccl-tests' `-n 20`."""
GRAPH_LAUNCHES = 20
"""Launches of it in one sample: nccl-tests' `-G 20`."""

WHY_BYTES = 400
"""Bytes in which a member says why it cannot call NCCL directly."""
LOOK_EVERY = 1000
"""Looks at the stream between two looks at NCCL's own state, which takes a lock."""


class DirectNccl:
    """A communicator of one rank with the stream it is measured on."""

    def __init__(self, torch: Any, communicator: Communicator, stream: Any, limit_s: float) -> None:
        self.torch, self.communicator, self.stream, self._limit_s = torch, communicator, stream, limit_s
        self._doing = ""

    def call_of(self, op: Op, collective: str, dtype: str) -> Callable[[], None]:
        """Return a function that queues the collective on its buffers."""
        self._doing = ISSUED_BY[collective]
        return self.communicator.collective(
            collective,
            send=op.send.data_ptr(),
            recv=op.recv.data_ptr(),
            count=op.count,
            dtype=dtype,
            width=op.send.element_size(),
        )

    def finish(self) -> None:
        """Wait until the stream is empty.

        Raises:
            NcclError: NCCL reports that something went wrong, or the stream is not empty after the limit.
        """
        begun = monotonic()
        looks = 0
        while not self.stream.query():
            looks += 1
            if looks % LOOK_EVERY:
                continue
            self.communicator.check(self._doing)
            if monotonic() - begun > self._limit_s:
                raise NcclError(f"{self._doing} did not end within {self._limit_s:.0f} s")

    def back_to_back(self, call: Callable[[], None], calls: int) -> Callable[[], float]:
        """Return a function that runs one sample of `calls` calls and gives seconds per call."""
        return lambda: self._span(call, calls) / calls

    def graph(self, call: Callable[[], None]) -> tuple[Callable[[], float], int]:
        """Capture calls in a CUDA graph; return a function that samples it, and the calls in a sample.

        The calls must have been warmed up: what NCCL sets up at a first call cannot be captured.
        """
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        # Only this thread's calls belong to the capture: other threads (torch's watchdog) may look at their events.
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            for _ in range(CALLS_IN_GRAPH):
                call()
        with torch.cuda.stream(self.stream):
            graph.replay()
        self.finish()

        def sample() -> float:
            with torch.cuda.stream(self.stream):
                return self._span(graph.replay, GRAPH_LAUNCHES) / (GRAPH_LAUNCHES * CALLS_IN_GRAPH)

        return sample, GRAPH_LAUNCHES * CALLS_IN_GRAPH

    def _span(self, launch: Callable[[], None], times: int) -> float:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        launch()
        start.record(self.stream)
        for _ in range(times):
            launch()
        end.record(self.stream)
        self.finish()
        return float(start.elapsed_time(end)) / 1e3


def connect(
    torch: Any, control: Any, *, rank: int, size: int, device: Any, limit_s: float
) -> tuple[DirectNccl | None, str]:
    """Join the group's members in one communicator; all of them call this.

    Args:
        torch: the module.
        control: the Gloo group of the same members, over which they agree and get the id.
        rank: this member's number in the group.
        size: how many there are.
        device: this member's GPU, which must be the current one.
        limit_s: seconds after which a call that does not come back is given up; longer than the parent's own limit,
            whose verdict names the rank that is behind.

    Returns:
        What to measure with and the empty text; or None and why, alike on all members.

    Raises:
        NcclError: NCCL is there, and the members cannot meet.
    """
    why, lib, uid = "", None, b"\0" * UNIQUE_ID_BYTES
    try:
        version = torch.cuda.nccl.version()
        lib = load(places(torch.__file__), version if isinstance(version, tuple) else (0, 0, version))
        if rank == 0:
            uid = unique_id(lib)
    except (NcclMissingError, NcclError, AttributeError) as e:
        why = str(e)
    # One member that cannot sends them all through torch: they must make the same calls.
    words = _exchanged(torch, control, size, uid + why.encode()[:WHY_BYTES])
    first = next((f"rank {r}: {text}" for r, w in enumerate(words) if (text := _text(w[UNIQUE_ID_BYTES:]))), "")
    if first or lib is None:
        return None, first
    stream = torch.cuda.Stream(device)
    communicator = Communicator(
        lib, words[0][:UNIQUE_ID_BYTES], rank=rank, size=size, stream=int(stream.cuda_stream), limit_s=limit_s
    )
    return DirectNccl(torch, communicator, stream, limit_s), ""


def _exchanged(torch: Any, control: Any, size: int, mine: bytes) -> list[bytes]:
    """Return the bytes of all members, padded with zeros: as tensors, since torch would pickle objects."""
    padded = mine.ljust(UNIQUE_ID_BYTES + WHY_BYTES, b"\0")
    every = [torch.empty(len(padded), dtype=torch.uint8) for _ in range(size)]
    torch.distributed.all_gather(every, torch.frombuffer(bytearray(padded), dtype=torch.uint8), group=control)
    return [bytes(t.tolist()) for t in every]


def _text(padded: bytes) -> str:
    return "".join(c if c.isprintable() else "?" for c in padded.rstrip(b"\0").decode(errors="replace"))
