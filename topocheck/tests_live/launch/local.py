"""Ranks of one node: children of this process that meet in a file, so that nothing listens for them.

They are forked. Where no GPU takes part they stay what they are, and have torch in place, which each would otherwise
take seconds to import. CUDA does not survive a fork, so ranks with GPUs become a new interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

from topocheck.process import together
from topocheck.process.python import child_environment, python_argv


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's place among those that are started together here."""

    rank: int
    size: int

    def environment(self) -> dict[str, str]:
        """Return the variables that tell programs of the field their rank."""
        return {"RANK": str(self.rank), "WORLD_SIZE": str(self.size), "LOCAL_RANK": str(self.rank)}


def how_it_ended(what: int | str) -> str:
    """Return an exit code, a negative signal number, or the state of a process, in words."""
    if isinstance(what, str):
        return what
    return f"exit code {what}" if what > 0 else f"signal {-what}"


class RankFailedError(Exception):
    """A rank ended with anything but 0. `failures` maps ranks to what `together.run_together` says of them."""

    def __init__(self, failures: dict[int, int | str]) -> None:
        self.failures = failures
        super().__init__("; ".join(f"rank {r}: {how_it_ended(w)}" for r, w in sorted(failures.items())))


def run_ranks(work: Callable[[Seat], None], size: int) -> None:
    """Start `size` ranks, each of which calls `work`, and wait until all have ended; none outlives this process.

    Raises:
        RankFailedError: a rank failed or was killed; the others have been ended.
    """

    def be(rank: int) -> None:
        seat = Seat(rank=rank, size=size)
        os.environ.update(seat.environment())
        work(seat)

    failures = together.run_together(be, size)
    if failures:
        raise RankFailedError(failures)


def become(module: str, *args: str) -> Callable[[Seat], None]:
    """Return work for `run_ranks`: to become a new interpreter that runs a module; see `seat_here`."""

    def work(seat: Seat) -> None:
        together.become(python_argv(module, *args), child_environment() | seat.environment())

    return work


def seat_here(environ: Mapping[str, str] = os.environ) -> Seat:
    """Return the seat of a rank that has become a new interpreter, and let it end with who started it."""
    together.end_with_starter()
    return Seat(rank=int(environ["RANK"]), size=int(environ["WORLD_SIZE"]))
