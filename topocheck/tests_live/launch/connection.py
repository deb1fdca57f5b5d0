"""A caller's connection to the place where the ranks meet: found, proved, and shared by the threads of a process."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

import msgspec

from topocheck.tests_live.launch import frames, munge
from topocheck.tests_live.launch.frames import FrameError, Handshake, Hello, Seal, Splitter, digest
from topocheck.tests_live.launch.refusals import refusal_text
from topocheck.tests_live.launch.secret import Secret
from topocheck.tests_live.launch.world import LaunchError, RankLostError

STEP_S = 5.0
"""Seconds that one attempt to connect, and each step of the handshake, may take."""
AGAIN_S = 0.1
"""Pause before rank 0 is called again."""
STRANGER_S = 10.0
"""Seconds after which no rank 0 is waited for where others hold every port at which it could listen."""
LOST_S, LEAST_LOST_S = 30.0, 10.0
"""Seconds beyond the time that a request may wait, after which rank 0 is taken for gone: those of the deadline, within
these two."""


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """By which the processes of one rank reach the place.

    Attributes:
        hello: who they are; each connection has a nonce of its own.
        addresses, ports: where rank 0 may listen; one of each once it has been found.
        secret: of the job; with its key once that is known.
    """

    hello: Hello
    addresses: tuple[str, ...]
    ports: tuple[int, ...]
    secret: Secret

    @property
    def where(self) -> str:
        """Rank 0's place in words."""
        address = self.addresses[0] if self.addresses else "?"
        host = f"[{address}]" if ":" in address else address
        return f"{host}:{self.ports[0]}" if len(self.ports) == 1 else f"{host}, ports {', '.join(map(str, self.ports))}"


class NotOursError(Exception):
    """Who listens there is not rank 0 of this job, as far as it has shown; says why."""


def keep_alive(connection: socket.socket) -> None:
    """Notice within a minute that the other host is gone, also where nothing is sent; and send at once."""
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    ):
        with contextlib.suppress(OSError):
            connection.setsockopt(level, option, value)


def find(ticket: Ticket, limit_s: float) -> tuple[Connection, Ticket]:
    """Return a connection to rank 0, and the ticket by which the rank's other processes come at once.

    Every address and port is tried in turn until rank 0 of this job answers; others who listen there are passed over.

    Raises:
        LaunchError: it did not within `limit_s` seconds, or it refuses this rank; says why.
    """
    begun, lost_s = monotonic(), min(LOST_S, max(LEAST_LOST_S, limit_s))
    strangers: dict[tuple[str, int], str] = {}
    why = "no answer"
    while True:
        for at in [(a, p) for a in ticket.addresses for p in ticket.ports]:
            try:
                return _connect(ticket, *at, begun + limit_s, lost_s)
            except NotOursError as e:
                strangers[at] = str(e)
            except FrameError as e:
                strangers[at] = f"what listens there is no topocheck: {e}"
            except OSError as e:
                strangers.pop(at, None)
                why = e.strerror or "no answer"
            held = len(strangers) == len(ticket.addresses) * len(ticket.ports)
            if monotonic() - begun >= (min(STRANGER_S, limit_s) if held else limit_s):
                why = next(iter(strangers.values()), why)
                within = f" within {monotonic() - begun:.0f} s"
                # Somebody listens there who is not of this job: the address, port or secret is wrong.
                raise (LaunchError if strangers else RankLostError)(
                    f"rank {ticket.hello.rank}: rank 0 did not answer at {ticket.where}{within} ({why})"
                ) from None
        sleep(min(AGAIN_S, max(0.0, begun + limit_s - monotonic())))


def _connect(ticket: Ticket, address: str, port: int, end: float, lost_s: float) -> tuple[Connection, Ticket]:
    step = max(0.1, min(STEP_S, end - monotonic()))
    connection = socket.create_connection((address, port), timeout=step)
    try:
        keep_alive(connection)
        seal, key, splitter = _prove(ticket, _Steps(connection, step))
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    secret = msgspec.structs.replace(ticket.secret, key=key)
    found = msgspec.structs.replace(ticket, addresses=(address,), ports=(port,), secret=secret)
    return Connection(connection, seal, splitter, ticket.hello.rank, found.where, lost_s), found


class _Steps:
    """Frames one after the other, each within some seconds."""

    def __init__(self, connection: socket.socket, step_s: float) -> None:
        self.connection, self.step_s = connection, step_s
        self.splitter = Splitter()
        self._bodies: list[bytes] = []

    def say(self, body: bytes) -> None:
        self.connection.sendall(frames.frame(body))

    def hear(self) -> bytes:
        """Return the next body.

        Raises:
            OSError: none came in time, or the connection ended.
            FrameError: what came is none.
        """
        end = monotonic() + self.step_s
        while not self._bodies:
            self.connection.settimeout(max(0.01, end - monotonic()))
            data = self.connection.recv(1 << 16)
            if not data:
                raise ConnectionResetError(0, "who listens there closed the connection")
            self._bodies += self.splitter.feed(data)
        return self._bodies.pop(0)


def _prove(ticket: Ticket, steps: _Steps) -> tuple[Seal, bytes, Splitter]:
    """Show who this is and look who that is; returns the seal of the connection and the key of the job.

    Raises:
        NotOursError: it is not rank 0 of this job.
        LaunchError: it is, and does not take this rank.
        OSError, FrameError: see `_Steps.hear`.
    """
    hello = msgspec.structs.replace(ticket.hello, nonce=os.urandom(frames.NONCE_BYTES))
    mine = frames.encode(hello)
    steps.say(mine)
    theirs = steps.hear()
    challenge = _expected(theirs, frames.Challenge, hello)
    if challenge.method != ticket.secret.method:
        raise NotOursError(
            f"who listens there, on node {challenge.node}, knows its ranks by {_method(challenge.method)}, "
            f"this rank by {_method(ticket.secret.method)}"
        )
    key = ticket.secret.key
    if not key:
        key = _ask_for_key(steps, hello, mine, theirs)
    shake = Handshake(key, mine, theirs)
    steps.say(frames.encode(frames.Proof(tag=shake.proof)))
    welcome = _expected(steps.hear(), frames.Welcome, hello)
    if not frames.same(welcome.tag, shake.welcome):
        raise NotOursError("who listens there does not know the secret of the job")
    seal = shake.caller_seal()
    taken = frames.reply(seal.open(steps.hear()))
    if isinstance(taken, frames.Refused):
        raise LaunchError(refusal_text(taken, hello))
    return seal, key, steps.splitter


def _ask_for_key(steps: _Steps, hello: Hello, mine: bytes, theirs: bytes) -> bytes:
    """Return the key of the job, which munge hands on."""
    try:
        credential = munge.encode(digest(b"munge caller", mine, theirs))
        steps.say(frames.encode(frames.KeyRequest(credential=credential)))
        got = munge.decode(_expected(steps.hear(), frames.KeyGrant, hello).credential)
    except munge.MungeError as e:
        raise NotOursError(f"munge: {e}") from None
    said = digest(b"munge place", mine, theirs)
    if len(got) != len(said) + 32 or not frames.same(got[: len(said)], said):
        raise NotOursError("munge: the credential is not of this connection")
    return got[len(said) :]


def _expected(body: bytes, kind: Any, hello: Hello) -> Any:
    said = frames.from_place(body)
    if isinstance(said, frames.Refused):
        raise NotOursError(refusal_text(said, hello))
    if not isinstance(said, kind):
        raise FrameError(f"a {type(said).__name__} where a {kind.__name__} was due")
    return said


def _method(name: str) -> str:
    return {"secret": "a secret", "munge": "munge", "none": "nothing (no secret)"}.get(name, name)


class Connection:
    """Requests and their answers; any number of threads may ask at one time."""

    def __init__(
        self, connection: socket.socket, seal: Seal, splitter: Splitter, rank: int, where: str, lost_s: float = LOST_S
    ) -> None:
        self._connection, self._seal, self._splitter = connection, seal, splitter
        self.rank, self.where, self._lost_s = rank, where, lost_s
        splitter.limit = frames.FRAME_LIMIT
        self.own_address = str(connection.getsockname()[0])
        self._lock = threading.Lock()
        self._next = 1
        self._asked: dict[int, threading.Event] = {}
        self._answers: dict[int, frames.Reply] = {}
        self._lost = ""
        threading.Thread(target=self._listen, daemon=True, name="rendezvous").start()

    def ask(self, make: Callable[[int], frames.Request], wait_s: float = 0.0) -> frames.Reply:
        """Send the request that `make` returns for a number, and return its answer.

        Raises:
            LaunchError: rank 0 is gone, or does not do it.
        """
        answered = threading.Event()
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._asked[number] = answered
            try:
                if not self._lost:
                    self._connection.sendall(self._seal.close(frames.encode(make(number))))
            except OSError as e:
                self._lost = e.strerror or "connection lost"
        if self._lost or not answered.wait(wait_s + self._lost_s) or number not in self._answers:
            self._asked.pop(number, None)
            raise RankLostError(f"rank {self.rank}: lost rank 0 at {self.where} ({self._lost or 'it does not answer'})")
        reply = self._answers.pop(number)
        if isinstance(reply, frames.Failed):
            raise LaunchError(f"rank {self.rank}: rank 0 at {self.where}: {reply.why}")
        return reply

    def give_up(self, why: str) -> None:
        """Answer no request any more, nor those that wait."""
        self._lost = self._lost or why
        for answered in list(self._asked.values()):
            answered.set()

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _listen(self) -> None:
        try:
            while data := self._connection.recv(1 << 18):
                for body in self._splitter.feed(data):
                    reply = frames.reply(self._seal.open(body))
                    if not isinstance(reply, frames.Refused):
                        answered = self._asked.pop(reply.id, None)
                        if answered is not None:
                            self._answers[reply.id] = reply
                            answered.set()
            self._lost = "it closed the connection"
        except (OSError, FrameError) as e:
            self._lost = (e.strerror or "connection lost") if isinstance(e, OSError) else str(e)
        for answered in list(self._asked.values()):
            answered.set()
