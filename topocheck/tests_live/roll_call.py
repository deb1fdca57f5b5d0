"""Who of a launcher's ranks is there, when they meet and when a collective fails.

A rank sees of the others only that a call does not come back. So each one leaves a word in the store where they met:
`here` when it comes, and `failed` when it gives up. Who left none is the one the others waited for.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

from topocheck.tests_live.meeting import is_set
from topocheck.tests_live.ranks import LaunchError, World, open_store

POLL_S = 0.05
LAST_WORD_S = 5.0
"""How long a rank that gives up listens for the others: their limits are the same, they give up at almost one time."""
LOST = ("closed", "reset by", "broken pipe", "remote", "peer", "timed out", "timeout", "did not end within")
"""Words of what a rank says of another one that is gone."""


class RollCall:
    """The store of a launcher's ranks, and what they say there."""

    def __init__(self, torch: Any, world: World, limit_s: float) -> None:
        """Join; rank 0 listens.

        Raises:
            LaunchError: rank 0 does not answer, or cannot listen.
        """
        self.world = world
        store = open_store(world, limit_s)
        # An agent of torchrun keeps its store when it starts its ranks again.
        self.store = torch.distributed.PrefixStore(
            f"topocheck/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store
        )

    def wait_for_all(self, limit_s: float) -> None:
        """Wait until every rank is there.

        Raises:
            LaunchError: some did not come; names them.
        """
        self.store.set(f"here/{self.world.rank}", b"")
        end = monotonic() + limit_s
        absent = list(range(self.world.size))
        while absent and monotonic() < end and not is_set(self.store, "absent"):
            absent = [r for r in absent if not is_set(self.store, f"here/{r}")]
            if absent:
                sleep(POLL_S)
        if absent:
            text = f"{ranks_text(absent)} of {self.world.size} did not come within {limit_s:.0f} s; the others waited"
            raise LaunchError(self._verdict("absent", text))

    def _verdict(self, key: str, text: str) -> str:
        """Return what rank 0 found: it waits a moment for the others to ask, since its store ends with it."""
        if self.world.rank == 0:
            self.store.set(key, text.encode())
            sleep(20 * POLL_S)
        elif is_set(self.store, key):
            return str(self.store.get(key).decode(errors="replace"))
        return text

    def cause(self, reason: str, let_go: Callable[[], None]) -> str:
        """Say that this rank gives up and return whose fault it is, as far as what all ranks say tells it.

        A rank that fails by itself is told from one that lost another by its words; it does not wait, since the others
        notice only when it is gone.

        Args:
            reason: why this one gives up.
            let_go: closes the connections to the other ranks, so that who waits for this one gives up as well.

        Returns:
            One sentence; empty where this rank itself is the cause, or nobody can be named.
        """
        self.store.set(f"failed/{self.world.rank}", reason.encode())
        if not lost(reason):
            return ""
        let_go()
        end = monotonic() + LAST_WORD_S
        silent = set(range(self.world.size))
        while silent and monotonic() < end and not is_set(self.store, "cause"):
            for rank in [r for r in sorted(silent) if is_set(self.store, f"failed/{r}")]:
                silent.remove(rank)
                words = self.store.get(f"failed/{rank}").decode(errors="replace")
                if not lost(words):
                    return self._verdict("cause", f"rank {rank} failed: {words}")
            sleep(POLL_S)
        text = f"{ranks_text(sorted(silent))} did not answer; the others waited in vain ({reason})" if silent else ""
        return self._verdict("cause", text)


def lost(words: str) -> bool:
    """Tell whether a rank's error says that another rank is gone or does not answer."""
    return any(w in words.lower() for w in LOST)


def within(limit_s: float, ask: Callable[[], str]) -> str | None:
    """Return what `ask` returns, or None where it fails or takes longer: the store's own calls have no limit."""
    answers: list[str] = []

    def run() -> None:
        with contextlib.suppress(Exception):
            answers.append(ask())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    return answers[0] if answers else None


def ranks_text(ranks: list[int]) -> str:
    """Return `rank 3`, or `ranks 3, 5 and 2 more` where there are many."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
