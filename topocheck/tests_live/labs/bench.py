"""Times what a rank does, alike over torch.distributed and MPI."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from topocheck.tests_live.collectives.wire import Wire
from topocheck.tests_live.launch.lab_job import LabRow

MOST_CALLS = 500
PERIOD = 251
"""A prime: a part that lands in another one's place differs."""


class Told(NamedTuple):
    """One quantity of a row: `name` ends the measurement's id; `wrong` counts wrong elements on all ranks."""

    name: str
    samples: list[float]
    unit: str = "us"
    wrong: int | None = None


class Bench:
    """One row on one rank.

    Args:
        torch: the module.
        wire: of the row's ranks.
        row: what is done.
        at: says which call comes next.
    """

    def __init__(self, torch: Any, wire: Wire, row: LabRow, at: Callable[[str], None]) -> None:
        self.torch, self.wire, self.row, self.at = torch, wire, row, at

    def values(self, count: int, rank: int) -> Any:
        """Return small whole numbers that tell ranks and places apart; sums of 2,000 ranks are exact in fp32."""
        torch = self.torch
        one = (torch.arange(PERIOD, device=self.wire.device) + 7 * rank) % PERIOD
        return one.to(torch.float32).repeat(-(-count // PERIOD))[:count]

    def summed(self, count: int) -> Any:
        """Return the sum of all ranks' values."""
        return sum((self.values(count, r) for r in range(1, self.wire.size)), self.values(count, 0))

    def elements(self, parts: int = 1) -> int:
        """Return how many fp32 elements the row's size holds, in whole parts; one of each part at least."""
        return max(1, self.row.size_bytes // 4 // parts) * parts

    def checked(self, wrong: Any) -> int:
        """Return wrong elements on all ranks together, given those here."""
        return int(self.wire.total(float(wrong)))

    def once(self, call: Callable[[], object]) -> float:
        """Return the seconds of one call, of the slowest rank."""
        self.wire.barrier()
        start = perf_counter()
        call()
        self.wire.finish()
        return self.wire.largest(perf_counter() - start)

    def sample(self, call: Callable[[], object], per_call: int = 1) -> list[float]:
        """Return microseconds per call of each sample, mean over ranks; all ranks make the same number of calls.

        Args:
            call: does the work `per_call` times.
            per_call: how often.
        """
        self.at("warm up")
        call()
        once = self.once(call)
        calls = max(1, min(MOST_CALLS, int(self.row.sample_s / max(once, 1e-6))))
        out = []
        for i in range(self.row.samples):
            self.at(f"sample {i + 1}")
            self.wire.barrier()
            start = perf_counter()
            for _ in range(calls):
                call()
            self.wire.finish()
            out.append(self.wire.total(perf_counter() - start) / self.wire.size / calls / per_call * 1e6)
        return out
