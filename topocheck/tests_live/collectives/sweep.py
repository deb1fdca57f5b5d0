"""One sweep of one collective by one rank.

Timing follows nccl-tests: warm up, meet, queue n calls, wait for the last; the time of a call is the mean over ranks of
elapsed / n. NCCL is called directly for what shows NCCL itself (nccl_timing.py), and through torch.distributed for what
a program that waits for each call sees.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from time import monotonic, perf_counter
from typing import Any, Protocol

import msgspec

from topocheck.bandwidth.cases import CollectiveRow
from topocheck.bandwidth.costs import busbw_factor
from topocheck.bandwidth.stats import is_stable, median, spread
from topocheck.model.measurement import CallMode, Measurement
from topocheck.model.units import size_text
from topocheck.tests_live.collectives.nccl import ISSUED_BY, NcclError
from topocheck.tests_live.collectives.nccl_timing import CALLS_IN_GRAPH, DIRECT_MODES, GRAPH_LAUNCHES, DirectNccl
from topocheck.tests_live.collectives.ops import Op, make, variants

GRAPH_UP_TO = 1 << 20
WARM_UPS = 5

DIRECTLY, THROUGH_TORCH = "NCCL called directly", "torch.distributed"
"""Who issues the calls of a measurement."""


class Events(Protocol):
    """Where a rank says what it does."""

    def send(self, event: str, **fields: Any) -> None:
        """Send one event."""

    def at(self, row: str, call: str) -> None:
        """Say which call comes next."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one size: seconds per call, mean over ranks and slowest rank."""

    means: tuple[float, ...]
    slowest: tuple[float, ...]
    calls: int
    stop_reason: str


class Sweep:
    """One row's sizes, as member `rank` of `group`; `control` is the Gloo group of the same members.

    `direct` is NCCL itself over the same members; None where there is none, or with `no_direct`, where it cannot be
    called and all modes go through torch.
    """

    def __init__(
        self,
        *,
        torch: Any,
        row: CollectiveRow,
        rank: int,
        group: Any,
        control: Any,
        device: Any,
        events: Events,
        direct: DirectNccl | None = None,
        no_direct: str = "",
    ) -> None:
        self.direct, self.no_direct = direct, no_direct
        self._now: DirectNccl | None = None
        self.torch, self.row, self.rank, self.events = torch, row, rank, events
        self.group, self.control, self.device = group, control, device
        self.allocator = "torch caching (cudaMalloc)" if row.backend == "nccl" else "torch, host memory"
        self._pool: Any = self._nccl_pool() if row.allocator == "nccl" else None

    def run(self, modes: tuple[CallMode, ...]) -> None:
        """Run every size in these modes; rank 0 sends what is measured."""
        row = self.row
        gc.disable()
        for size in row.sizes_bytes:
            if modes == ("graph",) and size > GRAPH_UP_TO:
                continue
            for in_place in variants(row.collective):
                self._at(f"{row.collective} {size_text(size)}: buffers")
                try:
                    with self._buffers():
                        op = make(
                            self.torch,
                            row.collective,
                            size,
                            row.dtype,
                            self.group,
                            ranks=row.ranks,
                            me=self.rank,
                            device=self.device,
                            in_place=in_place,
                        )
                except ValueError as e:
                    self._say("unsupported", reason=str(e), id=f"{row.id}:{size}")
                    continue
                self._one_size(op, size, modes)
                del op
        gc.enable()

    def _nccl_pool(self) -> Any:
        """Return a pool of memory from ncclMemAlloc; None, and torch's own memory, where this torch has none."""
        try:
            pool = self.torch.cuda.MemPool(self.group._get_backend(self.device).mem_allocator)
        except (AttributeError, RuntimeError, TypeError) as e:
            self.allocator += f"; ncclMemAlloc is not to be had: {str(e).splitlines()[0][:80]}"
            return None
        self.allocator = "ncclMemAlloc (torch's NCCL pool)"
        return pool

    def _buffers(self) -> Any:
        return contextlib.nullcontext() if self._pool is None else self.torch.cuda.use_mem_pool(self._pool)

    def _one_size(self, op: Op, size: int, modes: tuple[CallMode, ...]) -> None:
        name = f"{self.row.collective} {size_text(op.size_bytes)}"
        try:
            for mode in modes:
                begun = monotonic()
                direct = self._now = self.direct if mode in DIRECT_MODES else None
                call = op.call if direct is None else direct.call_of(op, self.row.collective, self.row.dtype)
                # Where NCCL is called directly the call is named: a rank that does not come back is in it.
                what = f"{name}, {mode}" + ("" if direct is None else f", {ISSUED_BY[self.row.collective]}")
                self._at(f"{what}: first call")
                wrong = self._checked(op, call)
                self._at(f"{what}: warm up")
                run, calls = self._runner(call, op, mode)
                timing = self._timed(run, calls, what)
                self._at(f"{what}: compare")
                wrong += self._checked(op, call)
                self._report(op, size, mode, timing, wrong, monotonic() - begun)
                del run  # a communicator cannot be freed while a graph holds its calls
        except NcclError:
            raise
        except (NotImplementedError, RuntimeError, ValueError) as e:
            text = str(e).splitlines()[0][:200] if str(e) else type(e).__name__
            if not any(w in text.lower() for w in ("support", "not implemented", "unimplemented")):
                raise
            self._say("unsupported", reason=f"{self.row.backend}: {text}", id=f"{self.row.id}:{size}")

    def _checked(self, op: Op, call: Callable[[], Any]) -> int:
        """Run one call from fresh buffers and return how many elements are wrong on all ranks together."""
        dist = self.torch.distributed
        op.reset()
        # NCCL called directly runs on a stream of its own, which knows nothing of the fill.
        self._finish()
        dist.barrier(group=self.control)
        call()
        self._finish()
        wrong = self.torch.tensor([op.wrong()], dtype=self.torch.int64)
        dist.all_reduce(wrong, group=self.control)
        op.reset()
        self._finish()
        return int(wrong[0])

    def _runner(self, call: Callable[[], Any], op: Op, mode: CallMode) -> tuple[Callable[[], float], int]:
        """Return a function that runs one sample and gives seconds per call, and the calls in a sample."""
        for _ in range(WARM_UPS):
            call()
        self._finish()
        if mode == "graph":
            return self._graph(call) if self._now is None else self._now.graph(call)
        start = perf_counter()
        call()
        self._finish()
        once = max(perf_counter() - start, 1e-6)
        # Ranks must make the same number of calls: the smallest of their wishes.
        wish = self.torch.tensor([0.5 / once], dtype=self.torch.float64)
        self.torch.distributed.all_reduce(wish, op=self.torch.distributed.ReduceOp.MIN, group=self.control)
        calls = min(200 if op.size_bytes <= 1 << 16 else 20, max(4, int(wish[0])))

        def back_to_back() -> float:
            start = perf_counter()
            for _ in range(calls):
                call()
            self._finish()
            return (perf_counter() - start) / calls

        def one_at_a_time() -> float:
            times = []
            for _ in range(calls):
                start = perf_counter()
                call()
                self._finish()
                times.append(perf_counter() - start)
            return median(times)

        if self._now is not None:
            return self._now.back_to_back(call, calls), calls
        return (back_to_back if mode == "back_to_back" else one_at_a_time), calls

    def _graph(self, call: Callable[[], Any]) -> tuple[Callable[[], float], int]:
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        # Only this thread's calls belong to the capture: the process group's watchdog may look at its events.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(CALLS_IN_GRAPH):
                call()
        graph.replay()
        self._finish()

        def replay() -> float:
            start = perf_counter()
            for _ in range(GRAPH_LAUNCHES):
                graph.replay()
            self._finish()
            return (perf_counter() - start) / (GRAPH_LAUNCHES * CALLS_IN_GRAPH)

        return replay, GRAPH_LAUNCHES * CALLS_IN_GRAPH

    def _timed(self, run: Callable[[], float], calls: int, name: str) -> Timing:
        """Sample until stable; rank 0's clock says when the budget is used, so that all stop together."""
        torch, row = self.torch, self.row
        means: list[float] = []
        slowest: list[float] = []
        begun = monotonic()
        window = max(min(5, row.samples_max), row.samples_min)
        while True:
            self._at(f"{name}: sample {len(means) + 1}")
            torch.distributed.barrier(group=self.control)
            mine = torch.tensor([run(), float(monotonic() - begun > row.budget_s)], dtype=torch.float64)
            every = [torch.empty(2, dtype=torch.float64) for _ in range(row.ranks)]
            torch.distributed.all_gather(every, mine, group=self.control)
            times = [float(e[0]) for e in every]
            means.append(sum(times) / len(times))
            slowest.append(max(times))
            why = ""
            if len(means) >= row.samples_min:
                if is_stable(means, row.tolerance, window):
                    why = "stable"
                elif len(means) >= row.samples_max:
                    why = "samples"
                elif float(every[0][1]):
                    why = "budget"
            if why:
                return Timing(means=tuple(means), slowest=tuple(slowest), calls=calls, stop_reason=why)

    def _finish(self) -> None:
        if self._now is not None:
            self._now.finish()
        if self.row.backend == "nccl":
            self.torch.cuda.synchronize(self.device)

    def _report(self, op: Op, size: int, mode: CallMode, timing: Timing, wrong: int, wall_s: float) -> None:
        if self.rank:
            return
        row = self.row
        samples = tuple(t * 1e6 for t in timing.means)
        mid = median(samples)
        algbw = op.size_bytes / mid / 1e3
        placed = "in" if op.in_place else "out"
        notes = []
        issuer = None
        if row.backend == "nccl":
            issuer = THROUGH_TORCH if self._now is None else DIRECTLY
            if self.no_direct and mode in DIRECT_MODES:
                notes.append(f"through torch.distributed, which adds microseconds to a call: {self.no_direct}")
        lag = median(timing.slowest) * 1e6 / mid
        if lag > 1.1:
            notes.append(f"the slowest rank took {lag:.2f} times the mean")
        measurement = Measurement(
            id=f"{row.id}:{size}:{placed}:{mode}",
            kind="collective",
            members=row.members,
            collective=row.collective,
            backend=row.backend,
            ranks=row.ranks,
            direction="collective",
            issuer=issuer,
            engine="torch",
            allocator=self.allocator,
            dtype=row.dtype,
            in_place=op.in_place,
            mode=mode,
            size_bytes=op.size_bytes,
            iterations=timing.calls,
            samples=samples,
            median=mid,
            min=min(samples),
            max=max(samples),
            spread=spread(samples),
            unit="us",
            algbw_gb_s=algbw,
            busbw_gb_s=algbw * busbw_factor(row.collective, row.ranks),
            time_us=mid,
            verified=wrong == 0,
            wrong=f"{wrong} wrong elements on all ranks together" if wrong else "",
            stop_reason=timing.stop_reason,
            wall_s=round(wall_s, 4),
            notes=tuple(notes),
        )
        self.events.send("measured", row=row.id, measurement=measurement)

    def _at(self, call: str) -> None:
        self.events.at(self.row.id, call)

    def _say(self, event: str, **fields: Any) -> None:
        if self.rank == 0:
            self.events.send(event, row=self.row.id, **fields)
