"""The keys that ranks set for each other, and who waits for which. Pure: knows nothing of connections."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from time import monotonic

from topocheck.tests_live.launch.frames import (
    Absent,
    Add,
    Delete,
    Exchange,
    Failed,
    Get,
    Missing,
    Put,
    Reply,
    Request,
    Size,
    Sum,
    Value,
)

RANK_BYTES = 64 << 20
RANK_KEYS = 1 << 16
"""The most that one rank may store."""
RANK_WAITS = 256
"""Requests of one caller that may wait at one time."""
TOTAL_BYTES = 2 << 30
LARGEST = 1 << 61
Answers = list[tuple[Hashable, Reply]]


class _Wait:
    """A request that waits until no key of `left` is missing."""

    def __init__(self, whom: Hashable, request: Get | Missing, left: set[str]) -> None:
        self.whom, self.request, self.left = whom, request, left
        self.deadline = monotonic() + request.wait_s


class Keys:
    """All keys, and the requests that wait. Callers are whatever can be distinguished."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._owner: dict[str, tuple[int, int]] = {}
        self._used: dict[int, tuple[int, int]] = {}
        self._total = 0
        self._for: dict[str, set[_Wait]] = {}
        self._waits: dict[tuple[Hashable, int], _Wait] = {}
        self._waiting: dict[Hashable, int] = {}
        self._heap: list[tuple[float, int, _Wait]] = []
        self._count = 0

    def take(self, whom: Hashable, rank: int, asked: Request) -> Answers:
        """Do what a rank asks; returns who is answered by it, and how. A request that waits gives no answer yet."""
        if isinstance(asked, Get | Missing):
            return self._wait(whom, asked)
        if isinstance(asked, Put):
            return self._set(rank, asked.key, asked.value, whom, Sum(id=asked.id, number=0))
        if isinstance(asked, Add):
            try:
                number = int(self._values.get(asked.key, b"0")) + asked.amount
            except ValueError:
                return [(whom, Failed(id=asked.id, why="the key holds no number"))]
            if abs(number) > LARGEST:
                return [(whom, Failed(id=asked.id, why="the sum is too large"))]
            return self._set(rank, asked.key, b"%d" % number, whom, Sum(id=asked.id, number=number))
        if isinstance(asked, Exchange):
            return self._exchange(whom, rank, asked)
        if isinstance(asked, Delete):
            there = self._values.pop(asked.key, None) is not None
            self._account(asked.key, None)
            return [(whom, Sum(id=asked.id, number=int(there)))]
        return [(whom, Sum(id=asked.id, number=self._size(asked)))]

    def deadline(self) -> float | None:
        """Return when the next request has waited long enough (monotonic seconds); None where none waits."""
        while self._heap and not self._is_due(self._heap[0][2]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def over(self) -> Answers:
        """Return the answers to requests that have waited long enough."""
        out: Answers = []
        while (at := self.deadline()) is not None and at <= monotonic():
            wait = heappop(self._heap)[2]
            self._end(wait)
            out.append((wait.whom, self._answer(wait)))
        return out

    def forget(self, whom: Hashable) -> None:
        """Answer a caller no longer."""
        for wait in [w for (who, _), w in self._waits.items() if who == whom] if whom in self._waiting else ():
            self._end(wait)

    def _size(self, asked: Size) -> int:
        return sum(1 for k in self._values if k.startswith(asked.prefix))

    def _exchange(self, whom: Hashable, rank: int, asked: Exchange) -> Answers:
        """Do as torch's compare_set: an absent key equals nothing but the empty text."""
        now = self._values.get(asked.key)
        if now == asked.expected or (now is None and not asked.expected):
            return self._set(rank, asked.key, asked.desired, whom, Value(id=asked.id, value=asked.desired))
        return [(whom, Value(id=asked.id, value=asked.expected if now is None else now))]

    def _set(self, rank: int, key: str, value: bytes, whom: Hashable, reply: Reply) -> Answers:
        number, size = self._used.get(rank, (0, 0))
        if size + len(value) > RANK_BYTES or number >= RANK_KEYS or self._total + len(value) > TOTAL_BYTES:
            return [
                (whom, Failed(id=reply.id, why=f"rank {rank} stores more than {RANK_BYTES >> 20} MiB or too many keys"))
            ]
        self._account(key, (rank, len(value)))
        self._values[key] = value
        out: Answers = [(whom, reply)]
        for wait in self._for.pop(key, ()):
            wait.left.discard(key)
            if not wait.left:
                self._end(wait)
                out.append((wait.whom, self._answer(wait)))
        return out

    def _account(self, key: str, owner: tuple[int, int] | None) -> None:
        """Count a key and its bytes for the rank that set it last."""
        for (rank, size), sign in ((self._owner.pop(key, (0, -1)), -1), (owner or (0, -1), 1)):
            if size >= 0:
                number, used = self._used.get(rank, (0, 0))
                self._used[rank] = (number + sign, used + sign * size)
                self._total += sign * size
        if owner is not None:
            self._owner[key] = owner

    def _wait(self, whom: Hashable, asked: Get | Missing) -> Answers:
        keys = (asked.key,) if isinstance(asked, Get) else asked.keys
        wait = _Wait(whom, asked, {k for k in keys if k not in self._values})
        if not wait.left or not asked.wait_s:
            return [(whom, self._answer(wait))]
        if (whom, asked.id) in self._waits or self._waiting.get(whom, 0) >= RANK_WAITS:
            return [(whom, Failed(id=asked.id, why="too many requests at one time"))]
        self._waits[whom, asked.id] = wait
        self._waiting[whom] = self._waiting.get(whom, 0) + 1
        for key in wait.left:
            self._for.setdefault(key, set()).add(wait)
        self._count += 1
        heappush(self._heap, (wait.deadline, self._count, wait))
        if len(self._heap) > 2 * len(self._waits) + 64:
            self._heap = [h for h in self._heap if self._is_due(h[2])]
            heapify(self._heap)
        return []

    def _is_due(self, wait: _Wait) -> bool:
        return self._waits.get((wait.whom, wait.request.id)) is wait

    def _end(self, wait: _Wait) -> None:
        del self._waits[wait.whom, wait.request.id]
        self._waiting[wait.whom] -= 1
        if not self._waiting[wait.whom]:
            del self._waiting[wait.whom]
        for key in wait.left:
            others = self._for.get(key)
            if others is not None:
                others.discard(wait)
                if not others:
                    del self._for[key]

    def _answer(self, wait: _Wait) -> Reply:
        asked = wait.request
        if isinstance(asked, Get):
            return Value(id=asked.id, value=self._values.get(asked.key))
        return Absent(id=asked.id, keys=tuple(k for k in asked.keys if k in wait.left))
