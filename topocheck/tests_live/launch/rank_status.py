"""Who of a launcher's ranks is there, when they meet and when a collective fails.

A rank sees of the others only that a call does not come back. So each one leaves a word where they met: `here` when it
comes, and `failed` when it gives up. Who left none is the one the others waited for.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from time import monotonic

from topocheck.tests_live.launch.rendezvous import Rendezvous
from topocheck.tests_live.launch.words import plain
from topocheck.tests_live.launch.world import RankLostError

LOOK_S = 0.25
"""How long rank 0 waits for the words of all others before it looks at those that are there."""
AGREE_S = 2.0
"""How much longer the others wait for what rank 0 has found, which all then tell alike."""
LAST_WORD_S = 5.0
"""How long a rank that gives up listens for the others: their limits are the same, they give up at almost one time."""
LOST = ("closed", "reset by", "broken pipe", "remote", "peer", "timed out", "timeout", "did not end within")
"""Words of what a rank says of another one that is gone."""


class RollCall:
    """What a launcher's ranks say of themselves where they met."""

    def __init__(self, meeting: Rendezvous) -> None:
        self.meeting, self.rank, self.size = meeting, meeting.world.rank, meeting.world.size

    def wait_for_all(self, limit_s: float) -> None:
        """Wait until every rank is there. Rank 0 looks, and tells the others: what all ask costs its square.

        Raises:
            LaunchError: some did not come; names them, alike on all ranks.
        """
        self.meeting.put(f"here/{self.rank}", b"")
        if self.rank:
            said = self.meeting.get("roll", limit_s + AGREE_S)
            text = self._absent(0.0, limit_s) if said is None else plain(said.decode(errors="replace"), 1000)
        else:
            text = self._absent(limit_s, limit_s)
            self.meeting.put("roll", text.encode())
        if text:
            raise RankLostError(text)

    def _absent(self, wait_s: float, limit_s: float) -> str:
        """Return who is not there after `wait_s` seconds, in a sentence; the empty text where all are."""
        late = self.meeting.missing([f"here/{r}" for r in range(self.size)], wait_s)
        if doubled := self.meeting.doubled():
            return next(iter(doubled.values()))
        absent = [int(key.rpartition("/")[2]) for key in late]
        why = "".join(f" ({w})" for r in absent[:1] if (w := self.meeting.refused(r)))
        names = f"{self.meeting.names(absent)} (of {self.size})"
        text = f"{names} did not come within {limit_s:.0f} s{why}; the others waited"
        return text if absent else ""

    def cause(self, reason: str, let_go: Callable[[], None]) -> str:
        """Say that this rank gives up and return whose fault it is, as far as what all ranks say tells it.

        A rank that fails by itself is distinguished from one that lost another by its words; it does not wait, since
        the others notice only when it is gone.

        Args:
            reason: why this one gives up.
            let_go: closes the connections to the other ranks, so that who waits for this one gives up as well.

        Returns:
            One sentence; empty where this rank itself is the cause, or nobody can be named.
        """
        self.meeting.put(f"failed/{self.rank}", reason.encode()[:1000])
        if not lost(reason):
            return ""
        let_go()
        if self.rank:
            said = self.meeting.get("cause", LAST_WORD_S + AGREE_S)
            return self._found(reason, 0.0) if said is None else plain(said.decode(errors="replace"), 1000)
        text = self._found(reason, LAST_WORD_S)
        self.meeting.put("cause", text.encode())
        return text

    def _found(self, reason: str, wait_s: float) -> str:
        """Return who failed by itself, or else who has not given up after `wait_s` seconds."""
        end = monotonic() + wait_s
        silent = list(range(self.size))
        while True:
            left = max(0.0, end - monotonic())
            late = self.meeting.missing([f"failed/{r}" for r in silent], min(LOOK_S, left))
            quiet = {int(key.rpartition("/")[2]) for key in late}
            for rank in [r for r in silent if r not in quiet]:
                words = plain((self.meeting.get(f"failed/{rank}") or b"").decode(errors="replace"), 400)
                if not lost(words):
                    return f"{self.meeting.name(rank)} failed: {words}"
            silent = [r for r in silent if r in quiet]
            if not silent:
                return ""
            if not left:
                return f"{self.meeting.names(silent)} did not answer; the others waited in vain ({reason})"


def lost(words: str) -> bool:
    """Tell whether a rank's error says that another rank is gone or does not answer."""
    return any(w in words.lower() for w in LOST)


def within(limit_s: float, ask: Callable[[], str]) -> str | None:
    """Return what `ask` returns, or None where it fails or takes longer."""
    answers: list[str] = []

    def run() -> None:
        with contextlib.suppress(Exception):
            answers.append(ask())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    return answers[0] if answers else None
