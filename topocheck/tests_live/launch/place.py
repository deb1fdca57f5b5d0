"""The place where the ranks of a launcher meet: a store of keys that rank 0 holds for all, in a thread.

Strangers may connect. Until a caller has shown that it belongs to the job it costs little: a few kilobytes, a few
seconds, and a place among few, which it loses to newer callers. See frames.py for what is said.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import selectors
import socket
import threading
from collections import Counter
from collections.abc import Collection
from time import monotonic, sleep

from topocheck.tests_live.launch import frames, munge
from topocheck.tests_live.launch.connection import keep_alive
from topocheck.tests_live.launch.frames import FrameError, Handshake, Seal, Splitter, digest
from topocheck.tests_live.launch.keys import Answers, Keys
from topocheck.tests_live.launch.pulse import ALIVE, Pulse
from topocheck.tests_live.launch.refusals import Side, doubled_text, mismatch, refusal_text
from topocheck.tests_live.launch.secret import Secret

STRANGER_S = 10.0
"""Seconds in which a caller must have proved itself."""
STRANGERS = 128
"""Callers that have not, at one time, and two for each rank; the next one takes the place of the oldest."""
UNSENT = 256 << 20
"""Bytes that wait for one caller to take them."""


class _Caller:
    """One connection."""

    def __init__(self, connection: socket.socket, where: str) -> None:
        self.connection, self.where = connection, where
        self.since = monotonic()
        self.splitter = Splitter()
        self.hello: frames.Hello | None = None
        self.words: tuple[bytes, bytes] = (b"", b"")
        self.asked_for_key = False
        self.seal: Seal | None = None
        self.unsent = bytearray()
        self.closing = False


class Place:
    """Rank 0's side.

    `refused` has, by rank, why somebody who called itself that was not taken; `pulse`, which ranks are still there;
    `doubled`, by rank, that two processes of the job said they were it.

    Args:
        sockets: that listen.
        side: what rank 0 is and expects of the others.
        secret: of the job; the key of one that munge hands on is made here.
    """

    def __init__(self, sockets: list[socket.socket], side: Side, secret: Secret) -> None:
        self.side, self.method = side, secret.method
        self.key = os.urandom(32) if secret.method == "munge" else secret.key
        self.refused: dict[int, str] = {}
        self.pulse = Pulse()
        self.doubled: dict[int, str] = {}
        self._sockets = sockets
        self._keys = Keys()
        self._instances: dict[int, tuple[bytes, str]] = {}
        self._callers: dict[_Caller, None] = {}
        self._strangers: dict[_Caller, None] = {}  # the oldest first
        _room_for(4 * side.size + 2 * STRANGERS)
        self._selector = selectors.DefaultSelector()
        for s in sockets:
            self._selector.register(s, selectors.EVENT_READ)
        self._stop, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._stop, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="meeting place")
        self._thread.start()

    def node_of(self, rank: int) -> str:
        """Return the node of a rank that has come, else the empty text."""
        return self._instances.get(rank, (b"", ""))[1]

    def others(self, but: Collection[int] = ()) -> int:
        """Return how many connections other ranks have now, those in `but` left out."""
        here = [c.hello.rank for c in list(self._callers) if c not in self._strangers and c.hello]
        return sum(1 for rank in here if rank and rank not in but)

    def close(self) -> None:
        """End the thread and all connections; a second call does nothing."""
        if self._wake >= 0:
            os.close(self._wake)  # the thread reads the end of this pipe
            self._wake = -1
            self._thread.join(10)

    def _serve(self) -> None:
        try:
            while True:
                ready = self._selector.select(self._idle_s())
                for key, events in ready:
                    if key.fd == self._stop:
                        return
                    if isinstance(key.data, _Caller):
                        self._caller(key.data, events)
                    else:
                        self._accept(key.fileobj)  # type: ignore[arg-type]
                self._answer(self._keys.over())
                for caller in list(self._strangers):
                    if caller.since + STRANGER_S > monotonic():
                        break
                    self._drop(caller)
        finally:
            for caller in list(self._callers):
                self._drop(caller)
            for s in self._sockets:
                s.close()
            self._selector.close()
            os.close(self._stop)

    def _idle_s(self) -> float | None:
        """Return how long nothing is to be done unless somebody says something; None for ever."""
        due = [c.since + STRANGER_S for c in list(self._strangers)[:1]]
        waits = self._keys.deadline()
        due += [] if waits is None else [waits]
        return max(0.0, min(due) - monotonic()) if due else None

    def _accept(self, listening: socket.socket) -> None:
        self._make_room()
        try:
            connection, where = listening.accept()
        except OSError as e:
            if e.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room(force=True)
            return
        connection.setblocking(False)
        keep_alive(connection)
        caller = _Caller(connection, str(where[0]))
        self._callers[caller] = self._strangers[caller] = None
        self._selector.register(connection, selectors.EVENT_READ, caller)

    def _make_room(self, *, force: bool = False) -> None:
        """Drop the oldest stranger of the address that has most of them."""
        if self._strangers and (force or len(self._strangers) >= STRANGERS + 2 * self.side.size):
            busiest = Counter(c.where for c in self._strangers).most_common(1)[0][0]
            self._drop(next(c for c in self._strangers if c.where == busiest))
        elif force:
            sleep(0.05)  # no descriptor is left, and none of them is a stranger's

    def _drop(self, caller: _Caller) -> None:
        if caller in self._callers:
            del self._callers[caller]
            self._strangers.pop(caller, None)
            self._selector.unregister(caller.connection)
            caller.connection.close()
            self._keys.forget(caller)
            self.pulse.left(caller)

    def _caller(self, caller: _Caller, events: int) -> None:
        """Take what came from a caller, and send what it has not taken yet."""
        if events & selectors.EVENT_WRITE:
            self._flush(caller)
        if not events & selectors.EVENT_READ or caller not in self._callers:
            return
        try:
            data = caller.connection.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(caller)
            return
        if caller.closing:
            return
        try:
            for body in caller.splitter.feed(data):
                if caller.seal is not None:
                    self._request(caller, frames.request(caller.seal.open(body)))
                else:
                    self._stranger(caller, body)
                if caller.closing or caller not in self._callers:
                    return
        except FrameError as e:
            if caller.seal is not None and caller.hello is not None:
                self._note(caller.hello.rank, f"rank {caller.hello.rank} sent something invalid: {e}")
            self._drop(caller)

    def _stranger(self, caller: _Caller, body: bytes) -> None:
        """Take one step of the handshake."""
        said = frames.from_caller(body)
        if isinstance(said, frames.Hello):
            if caller.hello is not None:
                raise FrameError("a second Hello")
            self._greet(caller, said, body)
        elif caller.hello is None:
            raise FrameError("no Hello first")
        elif isinstance(said, frames.KeyRequest):
            self._grant(caller, said)
        else:
            self._check(caller, said)

    def _greet(self, caller: _Caller, hello: frames.Hello, body: bytes) -> None:
        caller.hello = hello
        if hello.job != self.side.job:
            self._refuse(caller, frames.Refused(reason="job", node=self.side.node))
            return
        challenge = frames.encode(
            frames.Challenge(
                method=self.method,
                protocol=frames.PROTOCOL,
                version=self.side.version,
                node=self.side.node,
                nonce=os.urandom(frames.NONCE_BYTES),
            )
        )
        caller.words = (body, challenge)
        self._send(caller, frames.frame(challenge))

    def _grant(self, caller: _Caller, asked: frames.KeyRequest) -> None:
        """Hand the key to a process of this user, which munge says it is."""
        if self.method != "munge" or caller.asked_for_key:
            raise FrameError("a request for the key that is not due")
        caller.asked_for_key = True
        try:
            if munge.decode(asked.credential) != digest(b"munge caller", *caller.words):
                raise munge.MungeError("the credential is not of this connection")
            made = munge.encode(digest(b"munge place", *caller.words) + self.key)
        except munge.MungeError as e:
            self._unknown(caller, f"munge: {e}")
            self._refuse(caller, frames.Refused(reason="munge", value=str(e)[:200], node=self.side.node))
            return
        self._send(caller, frames.frame(frames.encode(frames.KeyGrant(credential=made))))

    def _check(self, caller: _Caller, proof: frames.Proof) -> None:
        """Take a caller that knows the key of the job, unless it is none of those that are expected."""
        shake = Handshake(self.key, *caller.words)
        hello = caller.hello
        assert hello is not None
        if not frames.same(proof.tag, shake.proof):
            self._unknown(caller, "it does not know the secret of the job")
            self._refuse(caller, frames.Refused(reason="secret", node=self.side.node))
            return
        self._send(caller, frames.frame(frames.encode(frames.Welcome(tag=shake.welcome))))
        caller.seal = shake.place_seal()
        refusal = mismatch(self.side, hello) or self._taken(hello)
        if refusal is not None:
            self._note(hello.rank, refusal_text(refusal, hello))
            if refusal.reason == "rank":
                self.doubled.setdefault(hello.rank, doubled_text(hello.rank, refusal.node, hello.node))
            self._refuse(caller, refusal)
            return
        self._instances[hello.rank] = (hello.instance, hello.node)
        self._strangers.pop(caller, None)
        caller.splitter.limit = frames.FRAME_LIMIT
        self._answer([(caller, frames.Sum(id=0, number=self.side.size))])

    def _taken(self, hello: frames.Hello) -> frames.Refused | None:
        """Refuse a second process that says it is a rank which is there already."""
        instance, node = self._instances.get(hello.rank, (hello.instance, ""))
        return None if instance == hello.instance else frames.Refused(reason="rank", node=node)

    def _unknown(self, caller: _Caller, why: str) -> None:
        if caller.hello is not None:
            rank = caller.hello.rank
            self._note(rank, f"somebody at {caller.where} called itself rank {rank}: {why}")

    def _note(self, rank: int, why: str) -> None:
        if rank < self.side.size:
            self.refused.setdefault(rank, why)

    def _request(self, caller: _Caller, asked: frames.Request) -> None:
        assert caller.hello is not None
        rank = caller.hello.rank
        if isinstance(asked, frames.Put) and asked.key == f"{ALIVE}{rank}":
            self.pulse.beat(rank, caller, asked.value, monotonic())
        self._answer(self._keys.take(caller, rank, asked))

    def _answer(self, answers: Answers) -> None:
        for caller, reply in answers:
            if isinstance(caller, _Caller) and caller.seal is not None and caller in self._callers:
                self._send(caller, caller.seal.close(frames.encode(reply)))

    def _refuse(self, caller: _Caller, why: frames.Refused) -> None:
        """Say why; the caller ends the connection, or loses it as a stranger does."""
        body = frames.encode(why)
        self._send(caller, frames.frame(body) if caller.seal is None else caller.seal.close(body))
        caller.closing = True

    def _send(self, caller: _Caller, data: bytes) -> None:
        caller.unsent += data
        if len(caller.unsent) > UNSENT:
            self._drop(caller)
        elif caller in self._callers:
            self._flush(caller)

    def _flush(self, caller: _Caller) -> None:
        try:
            while caller.unsent:
                sent = caller.connection.send(bytes(caller.unsent[: 1 << 18]))
                del caller.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(caller)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if caller.unsent else 0)
        self._selector.modify(caller.connection, events, caller)


def _room_for(descriptors: int) -> None:
    """Raise the soft limit of open files, where the hard one lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = descriptors + 256
    if soft != resource.RLIM_INFINITY and soft < want:
        with contextlib.suppress(ValueError, OSError):
            most = want if hard == resource.RLIM_INFINITY else min(want, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
