"""Work on many pieces in a few forked children, of which each may die or hang and loses only its own piece."""

from __future__ import annotations

import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from topocheck.process.fork import Worker, fork, reap
from topocheck.process.frames import LENGTH, FrameError, FrameReader, read_frame, write_frame

_SIGKILL = 9
_AHEAD = 2
"""Pieces that a child has at a time: the one it works on, and the next."""


class Lost(NamedTuple):
    """Stands for the answer to a piece whose child died or hung, and says how."""

    why: str


def work_through(
    pieces: Iterator[bytes],
    work: Callable[[bytes], bytes],
    children: int,
    *,
    answer_limit: int = 64 << 20,
    deadline_s: float = 120.0,
) -> Iterator[tuple[bytes, bytes | Lost]]:
    """Yield each piece with what `work` makes of it, as they come to be ready.

    A few pieces per child are taken at a time, whatever their number. This process must be one that may fork.

    Args:
        pieces: what to work on.
        work: done in a child; must not raise.
        children: how many.
        answer_limit: bytes of one answer.
        deadline_s: seconds that one piece may take.

    Raises:
        OSError: no process is to be had.
    """
    pool = _Pool(pieces, work, answer_limit, deadline_s)
    try:
        pool.start(children)
        while pool.members:
            yield from pool.step()
    finally:
        pool.stop()


class _Member:
    """One child, the pieces it has, and what of them is still to be written to it."""

    def __init__(self, worker: Worker, requests: int, answer_limit: int) -> None:
        self.worker, self.requests = worker, requests
        self.reader = FrameReader(answer_limit)
        self.pieces: deque[bytes] = deque()
        self.unsent = bytearray()
        self.since = time.monotonic()


class _Pool:
    def __init__(
        self, pieces: Iterator[bytes], work: Callable[[bytes], bytes], answer_limit: int, deadline_s: float
    ) -> None:
        self.new, self.work, self.answer_limit, self.deadline_s = pieces, work, answer_limit, deadline_s
        self.again: deque[bytes] = deque()
        self.members: list[_Member] = []
        self.selector = selectors.DefaultSelector()

    def _next(self) -> bytes | None:
        return self.again.popleft() if self.again else next(self.new, None)

    def start(self, children: int) -> None:
        """Start children while there is something for them to do."""
        for _ in range(children):
            piece = self._next()
            if piece is None:
                return
            self.again.appendleft(piece)
            self._add()

    def _add(self) -> None:
        theirs, ours = os.pipe2(os.O_CLOEXEC)
        try:
            os.set_blocking(ours, False)
            worker = fork(lambda pipe: _serve(self.work, theirs, pipe), keep=(theirs,))
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        member = _Member(worker, ours, self.answer_limit)
        self.members.append(member)
        self.selector.register(worker.pipe, selectors.EVENT_READ, member)
        self._fill(member)

    def _fill(self, member: _Member) -> None:
        while len(member.pieces) < _AHEAD and (piece := self._next()) is not None:
            if not member.pieces:
                member.since = time.monotonic()
            member.pieces.append(piece)
            member.unsent += LENGTH.pack(len(piece)) + piece
        if not member.pieces:
            self._remove(member)
        else:
            self._send(member)

    def _send(self, member: _Member) -> None:
        """Write what fits; the rest when the child has made room. That it is gone shows when it is read."""
        waits = member.requests in self.selector.get_map()
        try:
            while member.unsent:
                del member.unsent[: os.write(member.requests, member.unsent)]
        except BlockingIOError:
            if not waits:
                self.selector.register(member.requests, selectors.EVENT_WRITE, member)
            return
        except OSError:
            member.unsent.clear()
        if waits:
            self.selector.unregister(member.requests)

    def step(self) -> Iterator[tuple[bytes, bytes | Lost]]:
        """Wait for what comes next, and yield it."""
        wait = min(m.since for m in self.members) + self.deadline_s - time.monotonic()
        for ready, events in self.selector.select(max(0.0, wait)):
            member = ready.data
            if member not in self.members:  # lost since
                continue
            if events & selectors.EVENT_WRITE:
                self._send(member)
            else:
                yield from self._read(member)
        now = time.monotonic()
        for member in [m for m in self.members if now - m.since >= self.deadline_s]:
            yield from self._lost(member, f"not done within {self.deadline_s:.0f} s")

    def _read(self, member: _Member) -> Iterator[tuple[bytes, bytes | Lost]]:
        try:
            data = os.read(member.worker.pipe, 1 << 18)
        except BlockingIOError:
            return
        if not data:
            how = reap(member.worker.pid, self.deadline_s)
            how = "was killed (out of memory?)" if how == f"signal {_SIGKILL}" else f"ended ({how})"
            yield from self._lost(member, f"the process that worked on it {how}")
            return
        try:
            for answer in member.reader.feed(data):
                piece = member.pieces.popleft()
                member.since = time.monotonic()
                yield piece, answer
        except (FrameError, IndexError) as e:  # IndexError: more answers than pieces
            yield from self._lost(member, f"the process that worked on it sent {e}")
            return
        self._fill(member)

    def _lost(self, member: _Member, why: str) -> Iterator[tuple[bytes, bytes | Lost]]:
        """Give the piece up that this child worked on, and the others to a new one."""
        bad = member.pieces.popleft() if member.pieces else None
        self.again.extend(member.pieces)
        self._remove(member)
        if bad is not None:
            yield bad, Lost(why)
        self.start(1)

    def _remove(self, member: _Member) -> None:
        self.members.remove(member)
        for fd in (member.worker.pipe, member.requests):
            if fd in self.selector.get_map():
                self.selector.unregister(fd)
        os.close(member.requests)
        member.worker.abandon()

    def stop(self) -> None:
        """End every child."""
        for member in list(self.members):
            self._remove(member)
        self.selector.close()
        reap()


def _serve(work: Callable[[bytes], bytes], requests: int, pipe: int) -> None:
    """Body of a child: answer one piece after the other, until there are no more."""
    while (piece := read_frame(requests)) is not None:
        write_frame(pipe, work(piece))
