"""Ranks that meet in this process, and callers that are none."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import msgspec

import topocheck
from tests.support.slurm import free_ports
from tests.support.waiting import PATIENCE_S
from topocheck.tests_live.launch import frames
from topocheck.tests_live.launch.rendezvous import Rendezvous, join
from topocheck.tests_live.launch.secret import VARIABLE
from topocheck.tests_live.launch.world import World

SECRET = "correct horse battery staple"


def world(rank: int = 0, size: int = 2, **fields: Any) -> World:
    return World(**{"launcher": "torchrun", "rank": rank, "size": size, "address": "127.0.0.1", "ports": (1,)} | fields)


@contextlib.contextmanager
def meeting(size: int = 2, secret: str | None = SECRET, **fields: Any) -> Iterator[list[Rendezvous]]:
    """All ranks of a job, joined."""
    port = free_ports(1)[0]
    with contextlib.ExitStack() as end, environment(secret):
        ranks = [join(world(0, size, ports=(port,), **fields), "test", 60)]
        end.callback(ranks[0].close, 0.0)
        for r in range(1, size):
            ranks.append(join(world(r, size, ports=(port,), **fields), "test", 60))
            end.callback(ranks[r].close)
        yield ranks


@contextlib.contextmanager
def environment(secret: str | None) -> Iterator[None]:
    before = os.environ.pop(VARIABLE, None)
    if secret is not None:
        os.environ[VARIABLE] = secret
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before


def hello(rank: int = 1, **fields: Any) -> frames.Hello:
    told = {
        "protocol": frames.PROTOCOL, "version": topocheck.__version__, "job": "", "command": "test", "rank": rank,
        "size": 2, "instance": os.urandom(32), "node": "elsewhere", "nonce": os.urandom(32),
    }  # fmt: skip
    return frames.Hello(**told | fields)  # type: ignore[arg-type]


class Caller:
    """A connection of which every byte is the test's."""

    def __init__(self, where: str, rank: int = 1, **fields: Any) -> None:
        host, _, port = where.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self.splitter = frames.Splitter(frames.FRAME_LIMIT)
        self.bodies: list[bytes] = []
        self.hello = frames.encode(hello(rank, **fields))
        self.challenge = b""

    def say(self, message: msgspec.Struct) -> None:
        self.socket.sendall(frames.frame(frames.encode(message)))

    def hear(self) -> bytes:
        """The next body; nothing where the other side closed."""
        while not self.bodies:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                return b""
            self.bodies += self.splitter.feed(data)
        return self.bodies.pop(0)

    def greet(self) -> frames.Challenge:
        self.socket.sendall(frames.frame(self.hello))
        self.challenge = self.hear()
        said = frames.from_place(self.challenge)
        assert isinstance(said, frames.Challenge), said
        return said

    def prove(self, key: bytes) -> tuple[frames.Handshake, bytes]:
        shake = frames.Handshake(key, self.hello, self.challenge)
        self.say(frames.Proof(tag=shake.proof))
        return shake, self.hear()

    def join(self, key: bytes) -> frames.Seal:
        """Become a rank."""
        self.greet()
        shake, said = self.prove(key)
        assert frames.from_place(said) == frames.Welcome(tag=shake.welcome)
        seal = shake.caller_seal()
        frames.reply(seal.open(self.hear()))
        return seal

    def closed(self) -> bool:
        """Tell whether the other side ends the connection without another word."""
        return self.hear() == b""

    def close(self) -> None:
        self.socket.close()
