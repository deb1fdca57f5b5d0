"""The ranks of a launcher meet: a store of keys that rank 0 holds, joined by every rank, and by processes of a rank."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from types import TracebackType
from typing import cast

import msgspec

from topocheck.model.hostlist import expand_hostlist
from topocheck.model.version import __version__
from topocheck.tests_live.launch import frames
from topocheck.tests_live.launch.address import is_loopback, listen, resolve
from topocheck.tests_live.launch.connection import Connection, Ticket, find
from topocheck.tests_live.launch.frames import derived
from topocheck.tests_live.launch.place import Place
from topocheck.tests_live.launch.pulse import Life, lost_texts
from topocheck.tests_live.launch.refusals import Side
from topocheck.tests_live.launch.secret import HOW, find_secret, shared
from topocheck.tests_live.launch.words import plain, ranks_text
from topocheck.tests_live.launch.world import LaunchError, World, node_here

LEAVE_S = 5.0
"""Seconds that rank 0 waits at the end until the others have left."""
POLL_S = 0.05
NODE_OF = "topocheck/node/"
"""Key of a rank's node, followed by its number."""
MOST_NAMED = 256
"""Ranks whose nodes are asked for before they are named."""
UNAUTHENTICATED = "the ranks of this job are not authenticated: who reaches rank 0's port may pass for one of them"


class Rendezvous:
    """One rank's side of the store; any number of threads may use it.

    Attributes:
        world: this process's place among the ranks.
        ticket: by which other processes of this rank join too.
        own_address: this node's address on the network by which it reaches rank 0.
        life: which ranks were lost since alive.watch.
    """

    def __init__(
        self, world: World, ticket: Ticket, connection: Connection, place: Place | None = None, prefix: str = ""
    ) -> None:
        self.world, self.ticket, self._connection, self._place, self._prefix = world, ticket, connection, place, prefix
        self.where, self.own_address = connection.where, connection.own_address
        self.life = Life()
        self._at_close: list[Callable[[], None]] = []

    @property
    def node(self) -> str:
        """What tells this rank's node from the others."""
        return self.ticket.hello.node

    @property
    def authenticated(self) -> bool:
        """Whether every rank has shown that it belongs to the job."""
        return self.ticket.secret.method != "none"

    @property
    def authenticated_by(self) -> str:
        """How the ranks have shown that they belong to the job: where the secret came from, or `none`."""
        return self.ticket.secret.source if self.authenticated else "none"

    def scoped(self, prefix: str) -> Rendezvous:
        """Return the same store with all keys below a prefix."""
        below = Rendezvous(self.world, self.ticket, self._connection, self._place, f"{self._prefix}{prefix}/")
        below.life = self.life
        return below

    def key_of(self, *purpose: str) -> bytes:
        """Return a key of the job for a purpose, the same on all ranks."""
        return derived(self.ticket.secret.key, *(p.encode() for p in purpose))

    def put(self, key: str, value: bytes) -> None:
        """Set a key.

        Raises:
            LaunchError: rank 0 is gone.
        """
        self._connection.ask(lambda i: frames.Put(id=i, key=self._prefix + key, value=value))

    def get(self, key: str, wait_s: float = 0.0) -> bytes | None:
        """Return the value of a key, or None where nobody set it within `wait_s` seconds.

        Raises:
            LaunchError: rank 0 is gone.
        """
        wait_s = _seconds(wait_s)
        got = self._connection.ask(lambda i: frames.Get(id=i, key=self._prefix + key, wait_s=wait_s), wait_s)
        return cast(frames.Value, got).value

    def missing(self, keys: list[str], wait_s: float = 0.0) -> list[str]:
        """Return which keys nobody has set: as soon as none is missing, or after `wait_s` seconds.

        Raises:
            LaunchError: rank 0 is gone.
        """
        wait_s, size = _seconds(wait_s), len(self._prefix)
        every = tuple(self._prefix + k for k in keys)
        got = self._connection.ask(lambda i: frames.Missing(id=i, keys=every, wait_s=wait_s), wait_s)
        return [k[size:] for k in cast(frames.Absent, got).keys]

    def add(self, key: str, amount: int = 1) -> int:
        """Add to a number, which begins at 0, and return the sum.

        Raises:
            LaunchError: rank 0 is gone.
        """
        got = self._connection.ask(lambda i: frames.Add(id=i, key=self._prefix + key, amount=amount))
        return cast(frames.Sum, got).number

    def claim(self, key: str) -> bool:
        """Tell whether this rank is the first to claim a key."""
        return self.add(key) == 1

    def exchange(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Set a key where it has the expected value, or has none and the expected one is empty; return its value."""
        got = self._connection.ask(
            lambda i: frames.Exchange(id=i, key=self._prefix + key, expected=expected, desired=desired)
        )
        return cast(frames.Value, got).value or b""

    def delete(self, key: str) -> bool:
        """Remove a key; tell whether it was there."""
        got = self._connection.ask(lambda i: frames.Delete(id=i, key=self._prefix + key))
        return bool(cast(frames.Sum, got).number)

    def count(self) -> int:
        """Return how many keys there are."""
        return cast(frames.Sum, self._connection.ask(lambda i: frames.Size(id=i, prefix=self._prefix))).number

    def refused(self, rank: int) -> str:
        """Return on rank 0 why somebody who called itself that rank was not taken; empty where nobody was refused."""
        return self._place.refused.get(rank, "") if self._place is not None else ""

    def doubled(self) -> dict[int, str]:
        """Return on rank 0 which ranks two processes of the job said they were, in a sentence each."""
        return dict(self._place.doubled) if self._place is not None else {}

    def lost_ranks(self, limit_s: float) -> dict[int, str]:
        """Return on rank 0 which ranks ended or gave no sign of life for `limit_s` seconds, and which of the two."""
        return self._place.pulse.lost(limit_s, monotonic()) if self._place is not None else {}

    def begin_anew(self) -> None:
        """Take no rank for lost on rank 0 for what it did not hear while it was stopped itself."""
        if self._place is not None:
            self._place.pulse.begin_anew(monotonic())

    def give_up(self, why: str) -> None:
        """Let everybody who waits for rank 0 know that it is gone."""
        self._connection.give_up(why)

    def at_close(self, work: Callable[[], None]) -> None:
        """Have something done before this rank leaves."""
        self._at_close.append(work)

    def node_of(self, rank: int) -> str:
        """Return the node of a rank that has come, as it said itself; the empty text of one that has not."""
        if self._place is not None:
            return self._place.node_of(rank)
        with contextlib.suppress(LaunchError):
            got = self._connection.ask(lambda i: frames.Get(id=i, key=f"{NODE_OF}{rank}", wait_s=0.0))
            return plain((cast(frames.Value, got).value or b"").decode(errors="replace"), 255)
        return ""

    def name(self, rank: int) -> str:
        """Return `rank 3 on node b`, or `rank 3` where its node is not known."""
        node = self.node_of(rank)
        return f"rank {rank} on node {node}" if node else f"rank {rank}"

    def _absent_nodes(self) -> list[str]:
        """Return the nodes that the launcher named and of which no rank has come."""
        if self.world.launcher != "slurm" or self.world.size > MOST_NAMED:
            return []
        known = {self.node_of(r) for r in range(self.world.size)}
        return [n for n in expand_hostlist(os.environ.get("SLURM_STEP_NODELIST", "")) if n not in known]

    def names(self, ranks: Sequence[int]) -> str:
        """Return `rank 3 on node b`, or `ranks 4-7, 9 on nodes b, c` of several."""
        if len(ranks) == 1:
            absent = [] if self.node_of(ranks[0]) else self._absent_nodes()
            return f"rank {ranks[0]} on node {absent[0]}" if len(absent) == 1 else self.name(ranks[0])
        found = [self.node_of(r) for r in ranks[:MOST_NAMED]]
        nodes = list(dict.fromkeys(n for n in found if n))
        if not all(found):
            nodes += self._absent_nodes()
        more = f" and {len(nodes) - 8} more" if len(nodes) > 8 else ""
        where = f" on node{'s' if len(nodes) > 1 else ''} {', '.join(nodes[:8])}{more}" if nodes else ""
        return f"{ranks_text(ranks)}{where}"

    def agree(self, code: int | None, wait_s: float) -> int | None:
        """Tell rank 0's exit code to all: rank 0 gives it, the others get it.

        Returns:
            The code; None where rank 0 did not say one within `wait_s` seconds, or is gone.
        """
        if self.world.rank == 0:
            with contextlib.suppress(LaunchError):
                self.put("exit", b"%d" % (code or 0))
            return code
        try:
            text = self.get("exit", wait_s) or b""
        except LaunchError:
            return None
        return int(text) if text in (b"0", b"1", b"2", b"3", b"129", b"130", b"143") else None

    def exit_code(self, wait_s: float) -> int:
        """Return rank 0's exit code on another rank; 3, undetermined, where it does not come."""
        code = self.agree(None, wait_s)
        return 3 if code is None else code

    def close(self, leave_s: float = LEAVE_S) -> None:
        """Leave. Rank 0 waits a while for the others, but those that are lost, since what they read ends with it."""
        for work in self._at_close:
            work()
        self._at_close.clear()
        if self._place is not None:
            end = monotonic() + leave_s
            while self._place.others(self.life.lost) and monotonic() < end:
                sleep(POLL_S)
        self._connection.close()
        if self._place is not None:
            self._place.close()

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None and issubclass(kind, Exception) and self.world.rank == 0:
            self.agree(2, 0.0)
        if kind is KeyboardInterrupt:
            # A launcher ends all ranks where one is gone: it may not say on which node that was.
            for text in dict.fromkeys(lost_texts(self.lost_ranks(math.inf), self.names).values()):
                print(f"topocheck: {text}", file=sys.stderr)
        self.close(LEAVE_S if kind is None else 1.0)


def join(world: World, command: str, limit_s: float = 60.0) -> Rendezvous:
    """Join the other ranks of a launcher; rank 0 listens.

    Args:
        world: this process's place.
        command: what all ranks run, in a word or two.
        limit_s: how long rank 0 is waited for.

    Raises:
        LaunchError: rank 0 cannot be known or found, cannot listen, or does not take this rank; says what to do.
    """
    secret = find_secret(world)
    sockets: list[socket.socket] = []
    if not (world.address and world.ports):
        from topocheck.tests_live.launch.over_mpi import told_by_rank_0

        told, sockets = told_by_rank_0(world)
        addresses, ports = told.addresses, told.ports
        if secret.method == "none":
            secret = shared(world, told.key, "MPI")
    elif world.rank:
        addresses, ports = tuple(resolve(world)), world.ports
    else:
        sockets = listen(world)
        addresses = tuple(sorted((str(s.getsockname()[0]) for s in sockets), key=is_loopback))
        ports = (int(sockets[0].getsockname()[1]),)
    ticket = Ticket(hello=_hello(world, command), addresses=addresses, ports=ports, secret=secret)
    if not world.rank:
        return _hold(world, ticket, sockets, limit_s)
    connection, ticket = find(ticket, limit_s)
    return _introduced(Rendezvous(world, ticket, connection))


def _introduced(meeting: Rendezvous) -> Rendezvous:
    """Say on which node this rank is, so that every other one can name it."""
    meeting.put(f"{NODE_OF}{meeting.world.rank}", meeting.node.encode())
    return meeting


def rejoin(world: World, ticket: Ticket, limit_s: float) -> Rendezvous:
    """Join as another process of a rank that has joined.

    Raises:
        LaunchError: rank 0 is gone.
    """
    connection, ticket = find(ticket, limit_s)
    return Rendezvous(world, ticket, connection)


def warn(meeting: Rendezvous) -> None:
    """Say once, on rank 0, where the ranks are not authenticated, and how they can be."""
    if meeting.world.rank == 0 and not meeting.authenticated:
        print(f"topocheck: {UNAUTHENTICATED}; {HOW}", file=sys.stderr)


def _hello(world: World, command: str) -> frames.Hello:
    return frames.Hello(
        protocol=frames.PROTOCOL,
        version=__version__,
        job=world.job,
        command=command,
        rank=world.rank,
        size=world.size,
        instance=os.urandom(32),
        node=node_here(world),
        nonce=bytes(frames.NONCE_BYTES),
    )


def _hold(world: World, ticket: Ticket, sockets: list[socket.socket], limit_s: float) -> Rendezvous:
    """Be rank 0: hold the place, and join as the others do."""
    h = ticket.hello
    side = Side(job=h.job, command=h.command, size=h.size, node=h.node, version=h.version)
    place = Place(sockets, side, ticket.secret)
    try:
        secret = msgspec.structs.replace(ticket.secret, key=place.key)
        connection, ticket = find(msgspec.structs.replace(ticket, secret=secret), limit_s)
    except BaseException:
        place.close()
        raise
    return _introduced(Rendezvous(world, ticket, connection, place))


def _seconds(wait_s: float) -> float:
    return min(max(0.0, wait_s), frames.MOST_SECONDS)
