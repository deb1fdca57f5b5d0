"""What goes over a connection between ranks: frames, the messages in them, and the codes that authenticate both.

A frame is its length in four bytes, big endian, and that many bytes: one message in MessagePack. Both sides first say
who they are (Hello, Challenge) and prove that they know the key of the job (Proof, Welcome): HMAC-SHA256 over both
sides' words, each with 32 random bytes. From then on every frame ends in an HMAC-SHA256 over its number and its
message, under a key of this connection and direction: what is changed, repeated, left out or put in is noticed.
Nothing is hidden: who sees the network reads along.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator
from typing import Annotated, Literal, TypeVar

import msgspec

PROTOCOL = 1
"""Changes with every message that an older version would not understand; HANDSHAKE with the four first ones."""
HANDSHAKE = 1
TAG_BYTES = 32
NONCE_BYTES = 32
EARLY_LIMIT = 4096
"""Bytes of a frame from a stranger."""
FRAME_LIMIT = 32 << 20
"""Bytes of a frame once both sides have proved themselves."""
MOST_RANKS = 1 << 20
MOST_SECONDS = 1e6
_T = TypeVar("_T")
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")

Random = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Tag = Annotated[bytes, msgspec.Meta(min_length=TAG_BYTES, max_length=TAG_BYTES)]
Word = Annotated[str, msgspec.Meta(max_length=255, pattern=r"\A[ -~]*\Z")]
"""A name from elsewhere: printable ASCII."""
Count = Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
Number = Annotated[int, msgspec.Meta(ge=-(1 << 62), lt=1 << 62)]
Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Key = Annotated[str, msgspec.Meta(max_length=512)]
Keys = Annotated[tuple[Key, ...], msgspec.Meta(max_length=1 << 17)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)]
Credential = Annotated[str, msgspec.Meta(max_length=2048, pattern=r"\A[!-~]*\Z")]


class FrameError(ValueError):
    """What came is no frame of ours; says why."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """One message; its class is named in it."""


class Hello(_Message, frozen=True, kw_only=True):
    """The first word of who calls.

    Attributes:
        handshake: of these four messages; the version of all others is `protocol`.
        job: names the job and its step, so that nobody joins another's.
        instance: random, of this rank's first process, which hands it on to the others of the rank.
        node: what tells this rank's node from the others.
        nonce: random, of this connection.
    """

    handshake: Literal[1] = 1
    protocol: Count
    version: Word
    job: Word
    command: Word
    rank: Count
    size: Count
    instance: Random
    node: Word
    nonce: Random


class Challenge(_Message, frozen=True, kw_only=True):
    """The answer: who holds the place, and how it wants to be shown that the caller belongs to the job."""

    method: Word
    protocol: Count
    version: Word
    node: Word
    nonce: Random


class KeyRequest(_Message, frozen=True, kw_only=True):
    """Asks for the key of the job, by a credential of munge."""

    credential: Credential


class KeyGrant(_Message, frozen=True, kw_only=True):
    """The key of the job, in a credential that only the same user can read."""

    credential: Credential


class Proof(_Message, frozen=True, kw_only=True):
    """The caller knows the key of the job."""

    tag: Tag


class Welcome(_Message, frozen=True, kw_only=True):
    """So does who holds the place."""

    tag: Tag


class Refused(_Message, frozen=True, kw_only=True):
    """Why a caller is not taken, sent in place of Challenge or Welcome, or as the first frame after Welcome.

    Attributes:
        reason: of REFUSALS.
        value: what the side that refuses has where the other has something else.
        node: of the side that refuses, or of the rank that is there already.
    """

    reason: Word
    value: Word = ""
    node: Word = ""


class Put(_Message, frozen=True, kw_only=True):
    """Set a key."""

    id: Id
    key: Key
    value: bytes


class Get(_Message, frozen=True, kw_only=True):
    """Ask for a key, and wait for it."""

    id: Id
    key: Key
    wait_s: Seconds


class Add(_Message, frozen=True, kw_only=True):
    """Add to a number, which begins at 0, and ask for the sum."""

    id: Id
    key: Key
    amount: Number


class Exchange(_Message, frozen=True, kw_only=True):
    """Set a key where it has an expected value (torch's compare_set), and ask for what it has then."""

    id: Id
    key: Key
    expected: bytes
    desired: bytes


class Missing(_Message, frozen=True, kw_only=True):
    """Ask which of some keys nobody has set, as soon as none is missing or the time is over."""

    id: Id
    keys: Keys
    wait_s: Seconds


class Delete(_Message, frozen=True, kw_only=True):
    """Remove a key, and ask whether it was there (1 or 0)."""

    id: Id
    key: Key


class Size(_Message, frozen=True, kw_only=True):
    """Ask for the number of keys with a prefix."""

    id: Id
    prefix: Key


class Value(_Message, frozen=True, kw_only=True):
    """A key's value; null where nobody set it."""

    id: Id
    value: bytes | None


class Sum(_Message, frozen=True, kw_only=True):
    """A number."""

    id: Id
    number: Number


class Absent(_Message, frozen=True, kw_only=True):
    """Keys that nobody has set."""

    id: Id
    keys: Keys


class Failed(_Message, frozen=True, kw_only=True):
    """A request that cannot be done; says why."""

    id: Id
    why: Annotated[str, msgspec.Meta(max_length=400)]


Request = Put | Get | Add | Exchange | Missing | Delete | Size
Reply = Value | Sum | Absent | Failed
FromCaller = Hello | KeyRequest | Proof
FromPlace = Challenge | KeyGrant | Welcome | Refused

encode = msgspec.msgpack.Encoder().encode
_FROM_CALLER: msgspec.msgpack.Decoder[FromCaller] = msgspec.msgpack.Decoder(FromCaller)
_FROM_PLACE: msgspec.msgpack.Decoder[FromPlace] = msgspec.msgpack.Decoder(FromPlace)
_REQUEST: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_REPLY: msgspec.msgpack.Decoder[Refused | Reply] = msgspec.msgpack.Decoder(Refused | Reply)


def from_caller(body: bytes) -> FromCaller:
    """Return a message of a caller that has not proved itself.

    Raises:
        FrameError: it is none.
    """
    return _decoded(_FROM_CALLER, body)


def from_place(body: bytes) -> FromPlace:
    """Return a message of who holds the place, before it has proved itself.

    Raises:
        FrameError: it is none.
    """
    return _decoded(_FROM_PLACE, body)


def request(body: bytes) -> Request:
    """Return a request of a rank.

    Raises:
        FrameError: it is none.
    """
    return _decoded(_REQUEST, body)


def reply(body: bytes) -> Refused | Reply:
    """Return an answer to a request.

    Raises:
        FrameError: it is none.
    """
    return _decoded(_REPLY, body)


def _decoded(decoder: msgspec.msgpack.Decoder[_T], body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise FrameError(str(e)[:200]) from None


def frame(body: bytes) -> bytes:
    """Return a body with its length before it."""
    return _LENGTH.pack(len(body)) + body


class Splitter:
    """Takes bytes as they come and gives bodies of frames."""

    def __init__(self, limit: int = EARLY_LIMIT) -> None:
        self.limit = limit
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the bodies that are whole. The limit may be changed between two of them.

        Raises:
            FrameError: a frame is longer than the limit; seen before its bytes are waited for.
        """
        self._rest += data
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if length > self.limit:
                raise FrameError(f"a frame of {length} bytes, where {self.limit} are the most")
            end = _LENGTH.size + length
            if len(self._rest) < end:
                return
            body = bytes(self._rest[_LENGTH.size : end])
            del self._rest[:end]
            yield body


class Seal:
    """The frames of one connection after its handshake, in both directions."""

    def __init__(self, send_key: bytes, receive_key: bytes) -> None:
        self._send_key, self._receive_key = send_key, receive_key
        self._sent = self._received = 0

    def close(self, message: bytes) -> bytes:
        """Return the frame of a message."""
        tag = _tag(self._send_key, _NUMBER.pack(self._sent), message)
        self._sent += 1
        return frame(message + tag)

    def open(self, body: bytes) -> bytes:
        """Return the message of the next frame.

        Raises:
            FrameError: it is not what the other side sent next.
        """
        message, tag = body[:-TAG_BYTES], body[-TAG_BYTES:]
        want = _tag(self._receive_key, _NUMBER.pack(self._received), message)
        if not hmac.compare_digest(tag, want):
            raise FrameError("a frame that is not what the other side sent next")
        self._received += 1
        return message


class Handshake:
    """What both sides of a connection derive from the key of the job and from what they said to each other."""

    def __init__(self, key: bytes, hello: bytes, challenge: bytes) -> None:
        said = digest(hello, challenge)
        self.proof = _tag(key, b"topocheck caller", said)
        self.welcome = _tag(key, b"topocheck place", said)
        self._from_caller = _tag(key, b"topocheck frames of the caller", said)
        self._from_place = _tag(key, b"topocheck frames of the place", said)

    def caller_seal(self) -> Seal:
        """Return the caller's side."""
        return Seal(self._from_caller, self._from_place)

    def place_seal(self) -> Seal:
        """Return the other side."""
        return Seal(self._from_place, self._from_caller)


def same(tag: bytes, want: bytes) -> bool:
    """Compare two codes in a time that does not depend on where they differ."""
    return hmac.compare_digest(tag, want)


def digest(*parts: bytes) -> bytes:
    """Return SHA-256 of parts, each with its length, so that no two lists of parts look alike."""
    out = hashlib.sha256()
    for p in parts:
        out.update(_NUMBER.pack(len(p)) + p)
    return out.digest()


def derived(key: bytes, *purpose: bytes) -> bytes:
    """Return a key or code of a purpose, from which the key it was made of cannot be found."""
    return _tag(key, b"topocheck derived", digest(*purpose))


def _tag(key: bytes, label: bytes, message: bytes) -> bytes:
    code = hmac.new(key, label, hashlib.sha256)
    code.update(message)
    return code.digest()
