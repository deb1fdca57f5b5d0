"""Ranks as threads of one process, joined by queues: what is written for any wire runs without processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Queue
from typing import Any

from tests.support.waiting import PATIENCE_S


class Board:
    """What all ranks of a world see: a queue for each pair, one for any sender, and a place to put down numbers."""

    def __init__(self, size: int) -> None:
        self.pairs: dict[tuple[int, int], Queue[Any]] = {(a, b): Queue() for a in range(size) for b in range(size)}
        self.arrivals: dict[int, Queue[int]] = {r: Queue() for r in range(size)}
        self.slots: dict[tuple[int, ...], list[Any]] = {}
        self.barriers: dict[tuple[int, ...], threading.Barrier] = {}
        self.lock = threading.Lock()


class ThreadWire:
    """See topocheck.tests_live.collectives.wire.Wire. A send waits until it is received, as large messages do."""

    any_source = True
    sums_halves = True

    def __init__(self, torch: Any, board: Board, members: tuple[int, ...], world_rank: int) -> None:
        self.torch, self.board, self.members, self.me = torch, board, members, world_rank
        self.rank, self.size, self.device = members.index(world_rank), len(members), torch.device("cpu")
        with board.lock:
            board.slots.setdefault(members, [None] * self.size)
            board.barriers.setdefault(members, threading.Barrier(self.size))

    def send(self, out: Any, to: int) -> None:
        self.swap([(out, to)], [])

    def recv(self, into: Any, source: int) -> None:
        self._take(into, self.members[source])

    def _take(self, into: Any, source: int) -> None:
        sent, received = self.board.pairs[source, self.me].get(timeout=PATIENCE_S)
        into.copy_(sent)
        received.set()

    def recv_any(self, into: Any) -> int:
        who = self.board.arrivals[self.me].get(timeout=PATIENCE_S)
        self._take(into, who)
        return self.members.index(who)

    def swap(self, sends: Sequence[tuple[Any, int]], receives: Sequence[tuple[Any, int]]) -> None:
        """As a backend does it: receives are there for whoever sends first, in whatever order."""
        done = []
        for t, to in sends:
            received = threading.Event()
            self.board.pairs[self.me, self.members[to]].put((t.clone(), received))
            self.board.arrivals[self.members[to]].put(self.me)
            done.append(received)
        takers = [threading.Thread(target=self.recv, args=r, daemon=True) for r in receives]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join(PATIENCE_S)
        assert not any(taker.is_alive() for taker in takers), "a message did not come"
        assert all(received.wait(PATIENCE_S) for received in done), "a message was not received"

    def every(self, mine: Any) -> list[Any]:
        slots, barrier = self.board.slots[self.members], self.board.barriers[self.members]
        slots[self.rank] = mine
        barrier.wait(PATIENCE_S)
        out = list(slots)
        barrier.wait(PATIENCE_S)
        return out

    def all_reduce(self, buffer: Any) -> None:
        buffer.copy_(sum(self.every(buffer.clone())))

    def all_gather(self, out: Any, part: Any) -> None:
        out.copy_(self.torch.cat(self.every(part.clone())))

    def reduce_scatter(self, part: Any, given: Any) -> None:
        part.copy_(sum(self.every(given.clone())).chunk(self.size)[self.rank])

    def broadcast(self, buffer: Any) -> None:
        buffer.copy_(self.every(buffer.clone())[0])

    def gather(self, out: Any | None, part: Any) -> None:
        parts = self.every(part.clone())
        if out is not None:
            out.copy_(self.torch.cat(parts))

    def scatter(self, part: Any, given: Any | None) -> None:
        part.copy_(self.every(given)[0].chunk(self.size)[self.rank])

    def sub(self, members: tuple[int, ...]) -> ThreadWire:
        return ThreadWire(self.torch, self.board, tuple(self.members[m] for m in members), self.me)

    def finish(self) -> None:
        """Nothing is left to do."""

    def barrier(self) -> None:
        self.every(None)

    def total(self, value: float) -> float:
        return float(sum(self.every(value)))

    def largest(self, value: float) -> float:
        return float(max(self.every(value)))


def on_ranks(torch: Any, size: int, work: Callable[[ThreadWire], Any]) -> list[Any]:
    """Run work on every rank at once, and return what each returned; the first error of a rank is raised."""
    board, out, errors = Board(size), [None] * size, []

    def be(rank: int) -> None:
        try:
            out[rank] = work(ThreadWire(torch, board, tuple(range(size)), rank))
        except BaseException as e:  # noqa: BLE001 - whatever a rank raises is the test's
            errors.append(e)
            for barrier in board.barriers.values():
                barrier.abort()

    threads = [threading.Thread(target=be, args=(r,), daemon=True) for r in range(size)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE_S)
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return out
