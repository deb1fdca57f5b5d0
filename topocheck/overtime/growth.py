"""How much a counter grew between samples, whatever became of it in between."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from topocheck.model.base import Missing, Reason
from topocheck.overtime.counters import Width


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """What one counter did. A lower bound where `resets` or `saturated` say so; never negative.

    Attributes:
        increase: how much it grew in all.
        seconds: how long that took; the time across a reset does not count.
        first, last: what it read first and last.
        resets: how often it fell, by a driver that was loaded again or by someone who cleared it.
        wraps: how often it began again after its maximum.
        saturated: it stands at its maximum and may have grown beyond.
        unreadable: samples in which it was asked for and not read.
        vanished: it could be read before, and no longer at the end.
        steps: (from, until, increase) of each two samples between which it grew; seconds since the start.
    """

    increase: int = 0
    seconds: float = 0.0
    first: int = 0
    last: int = 0
    resets: int = 0
    wraps: int = 0
    saturated: bool = False
    unreadable: int = 0
    vanished: bool = False
    steps: tuple[tuple[float, float, int], ...] = ()

    @property
    def per_s(self) -> float | Missing:
        """The rate; absent where no time passed."""
        if self.seconds <= 0:
            return Missing(Reason.ABSENT, "no time passed between two readings")
        return self.increase / self.seconds


def growth(points: Iterable[tuple[float, int | Missing]], width: Width) -> Growth:
    """Return the growth of a counter from its values by time (seconds); an empty Growth where none could be read.

    A fall is a wrap where the counter may wrap, stood in the last quarter of its range and now stands in the first;
    any other fall is a reset, across which nothing is counted.
    """
    size = 1 << width.bits
    previous: tuple[float, int] | None = None
    first = last = increase = resets = wraps = unreadable = 0
    seconds = 0.0
    vanished = False
    steps = []
    for at, value in points:
        if isinstance(value, Missing):
            unreadable += 1
            vanished = previous is not None
            continue
        vanished = False
        if previous is None:
            first = value
        else:
            before_at, before = previous
            step = value - before
            wrapped = not width.saturates and size > before >= size - size // 4 and value < size // 4
            if step < 0 and wrapped:
                wraps += 1
                step += size
            if step < 0:
                resets += 1
            else:
                seconds += max(0.0, at - before_at)
                increase += step
                if step:
                    steps.append((before_at, at, step))
        previous, last = (at, value), value
    return Growth(
        increase=increase,
        seconds=seconds,
        first=first,
        last=last,
        resets=resets,
        wraps=wraps,
        saturated=width.saturates and previous is not None and last == size - 1,
        unreadable=unreadable,
        vanished=vanished,
        steps=tuple(steps),
    )
