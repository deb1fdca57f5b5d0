"""Ranks that are killed, stopped or cut off while they work: noticed by rank 0, and made known to all.

Each rank says every second that it is there, unless the process that does its work is stopped. Rank 0 takes a rank
for lost whose connection has ended, or that has said nothing for the seconds of --deadline.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from time import monotonic

import msgspec

from topocheck.model.base import is_digits
from topocheck.process.together import process_state
from topocheck.tests_live.launch.pulse import ALIVE, BYE, lost_texts
from topocheck.tests_live.launch.rendezvous import Rendezvous
from topocheck.tests_live.launch.words import InvalidWordError, plain, read
from topocheck.tests_live.launch.world import LaunchError

BEAT_S = 1.0
MOST_BEATS = 200
"""Signs of life that rank 0 takes in a second, of all ranks together: more of them would be load of their own."""
LEAST_S = 10.0
"""The least silence that counts, whatever the deadline: a node under load may be late by seconds."""
LISTEN_S = 600.0
LOST = "topocheck/lost/"
Lost = dict[int, str]


def watch(meeting: Rendezvous, deadline_s: float) -> None:
    """Say from now on that this rank is there, and learn in `meeting.life` which others are not, until it leaves."""
    _Alive(meeting, deadline_s).start()


class _Alive:
    def __init__(self, meeting: Rendezvous, deadline_s: float) -> None:
        self.meeting, self.life, self.rank = meeting, meeting.life, meeting.world.rank
        self.beat_s = max(BEAT_S, meeting.world.size / MOST_BEATS)
        self.life.limit_s = max(deadline_s, LEAST_S, 5 * self.beat_s)
        self._stop = threading.Event()

    def start(self) -> None:
        zero = self.meeting.name(0)
        self._say()
        for work in (self._beat, self._listen):
            threading.Thread(target=self._until_lost, args=(work, zero), daemon=True, name="alive").start()
        self.meeting.at_close(self._bye)

    def _until_lost(self, work: Callable[[], None], zero: str) -> None:
        """Do one of the two; where rank 0 is gone, say so to whoever waits for it."""
        try:
            work()
        except LaunchError:
            if not self._stop.is_set():
                self.life.lost.setdefault(0, f"{zero} ended, or did not answer")
                self.meeting.give_up("it does not answer")

    def _say(self) -> None:
        state = process_state(self.life.child) if self.life.child else ""
        what = f"its process {self.life.child} is {state}" if state.startswith("stopped") else ""
        self.meeting.put(f"{ALIVE}{self.rank}", what.encode())

    def _beat(self) -> None:
        looked = monotonic()
        while not self._stop.wait(self.beat_s):
            self._say()
            now = monotonic()
            if self.rank == 0:
                if now - looked > self.beat_s + self.life.limit_s / 2:
                    self.meeting.begin_anew()
                self._tell(self.meeting.lost_ranks(self.life.limit_s))
            looked = now

    def _tell(self, found: Lost) -> None:
        """Make known on rank 0 who is lost, each once."""
        new = {r: why for r, why in found.items() if r not in self.life.lost}
        if new:
            number = len(self.life.lost)
            self.life.lost.update(lost_texts(new, self.meeting.names))
            told = {str(r): self.life.lost[r] for r in new}
            self.meeting.put(f"{LOST}{number}", msgspec.msgpack.encode(told))

    def _listen(self) -> None:
        """Learn on the other ranks whom rank 0 takes for lost."""
        while self.rank and not self._stop.is_set():
            text = self.meeting.get(f"{LOST}{len(self.life.lost)}", LISTEN_S)
            if text is None:
                continue
            try:
                told = read(text, dict[str, str], "rank 0")
            except InvalidWordError:
                return
            self.life.lost.update({int(r): plain(why, 1000) for r, why in told.items() if is_digits(r)})

    def _bye(self) -> None:
        self._stop.set()
        with contextlib.suppress(LaunchError):
            self.meeting.put(f"{ALIVE}{self.rank}", BYE)
