"""Signs of life of a launcher's ranks, and which of them are lost. Pure: knows nothing of connections and threads."""

from __future__ import annotations

from collections.abc import Callable, Hashable

ALIVE = "topocheck/alive/"
"""Key of a rank's sign of life, followed by its number."""
BYE = b"bye"
"""What a rank says that has done its part."""


class Life:
    """What one rank knows of the others while they work.

    Attributes:
        lost: rank -> why it is taken for lost, in a sentence that names it with its node.
        child: process that does this rank's work, which is looked at; 0 where none does.
        limit_s: seconds without a sign of life after which a rank is lost.
    """

    def __init__(self) -> None:
        self.lost: dict[int, str] = {}
        self.child = 0
        self.limit_s = 0.0

    @property
    def text(self) -> str:
        """The first loss; empty where nobody is lost."""
        return next(iter(list(self.lost.values())), "")


class Pulse:
    """What rank 0 has heard of each rank. Ranks that never said anything are not in it: they did not come."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._words: dict[int, str] = {}
        self._rank_of: dict[Hashable, int] = {}
        self._ended: set[int] = set()

    def beat(self, rank: int, whom: Hashable, value: bytes, now: float) -> None:
        """Take a sign of life: nothing where all is well, `BYE`, or what is wrong with the rank's process."""
        if value == BYE:
            self._last.pop(rank, None)
            self._rank_of.pop(whom, None)
            return
        self._rank_of[whom] = rank
        self._words[rank] = value.decode(errors="replace")
        if not value or rank not in self._last:
            self._last[rank] = now

    def left(self, whom: Hashable) -> None:
        """Note that a connection has ended; that of a rank which had not said goodbye is its end."""
        rank = self._rank_of.pop(whom, None)
        if rank is not None:
            self._ended.add(rank)

    def begin_anew(self, now: float) -> None:
        """Count from now on: rank 0 itself was stopped, and heard nobody in that time."""
        for rank in list(self._last):
            self._last[rank] = now

    def lost(self, limit_s: float, now: float) -> dict[int, str]:
        """Return rank -> what became of it, without its name: those that ended, or said nothing good for `limit_s`."""
        out = {}
        for rank, last in sorted(self._last.copy().items()):
            words = self._words.get(rank, "")
            if rank in self._ended:
                out[rank] = "ended while the others worked"
            elif now - last > limit_s:
                out[rank] = f"did not answer for {limit_s:.0f} s" + (f" ({words})" if words else "")
        return out


def lost_texts(found: dict[int, str], names: Callable[[list[int]], str]) -> dict[int, str]:
    """Return rank -> one sentence that names it and all others with the same fate."""
    out: dict[int, str] = {}
    for fate in dict.fromkeys(found.values()):
        ranks = [r for r, f in found.items() if f == fate]
        out |= dict.fromkeys(ranks, f"{names(ranks)} {fate}")
    return out
