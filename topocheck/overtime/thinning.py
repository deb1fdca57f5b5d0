"""What is kept of a run that goes on for weeks: the newest samples, where something changed, and each n-th."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")
KEPT = 2048
"""Samples that are judged and drawn; of a longer run each second one is dropped, again and again."""
NEWEST = 128
"""The newest samples are all kept: a full sample, with all counters, is among them (10 s, at 0.1 s an interval)."""


class Kept(Generic[T]):
    """The first sample, the newest ones, those where a state or an error counter changed, and each n-th other.

    Where there are too many changes for that, each second of them goes too.
    """

    def __init__(self, limit: int = KEPT, newest: int = NEWEST) -> None:
        self._limit = limit
        self._newest = newest
        self._old: list[tuple[int, bool, T]] = []
        self._tail: deque[tuple[int, bool, T]] = deque()
        self._number = 0
        self._every = self._every_change = 1

    def add(self, item: T, *, changed: bool) -> None:
        """Add the next sample; `changed`: a state or an error counter is another than in the sample before."""
        self._tail.append((self._number, changed, item))
        self._number += 1
        if len(self._tail) > self._newest:
            oldest = self._tail.popleft()
            if self._stays(oldest):
                self._old.append(oldest)
        if len(self._old) > self._limit:
            changes = sum(c for _, c, _ in self._old)
            if changes > self._limit // 2:
                self._every_change *= 2
            self._every *= 2
            self._old = [x for x in self._old if self._stays(x)]

    def _stays(self, entry: tuple[int, bool, T]) -> bool:
        number, changed, _ = entry
        return number % self._every == 0 or (changed and number % self._every_change == 0)

    def items(self) -> list[T]:
        """Return what is kept, in order."""
        return [item for _, _, item in (*self._old, *self._tail)]
