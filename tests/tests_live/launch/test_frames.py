"""What goes over a connection: any bytes give messages or the documented error, and what is changed is noticed."""

from __future__ import annotations

import contextlib
import hashlib
import hmac

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tests_live.launch.callers import hello
from topocheck.tests_live.launch import frames
from topocheck.tests_live.launch.frames import EARLY_LIMIT, FrameError, Handshake, Splitter, frame

DECODERS = (frames.from_caller, frames.from_place, frames.request, frames.reply)
KEY = bytes(range(32))


@given(st.binary(max_size=400))
def test_any_bytes_are_a_message_or_a_frame_error(body: bytes) -> None:
    for decode in DECODERS:
        with contextlib.suppress(FrameError):
            decode(body)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5),
    ),
    st.sampled_from(
        ["Hello", "Proof", "Put", "Get", "Missing", "Add", "Exchange", "Value", "Sum", "Absent", "Refused"]
    ),
)
def test_any_message_pack_is_a_message_or_a_frame_error(value: object, kind: str) -> None:
    fields = value if isinstance(value, dict) else {"id": value, "key": value, "wait_s": value}
    with contextlib.suppress(OverflowError):  # integers that MessagePack has not
        body = msgspec.msgpack.encode({"type": kind, **fields})
        for decode in DECODERS:
            with contextlib.suppress(FrameError):
                decode(body)


@pytest.mark.parametrize("wrong", [b"\xff" * 9, b"\xed\xa0\x80" * 3, b"elsewher\xc3"])
def test_text_that_is_not_utf_8_is_a_frame_error(wrong: bytes) -> None:
    body = frames.encode(hello()).replace(b"elsewhere", wrong)
    for decode in DECODERS:
        with pytest.raises(FrameError):
            decode(body)


@given(st.lists(st.binary(max_size=300), max_size=6), st.lists(st.integers(1, 200), min_size=1, max_size=40))
def test_frames_come_out_as_they_went_in_however_they_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(b) for b in bodies)
    splitter, out = Splitter(), []
    i = 0
    while stream:
        size = cuts[i % len(cuts)]
        out += splitter.feed(stream[:size])
        stream, i = stream[size:], i + 1
    assert out == bodies


@pytest.mark.parametrize("length", [EARLY_LIMIT + 1, 1 << 30, (1 << 32) - 1])
def test_a_length_over_the_limit_is_refused_before_its_bytes_come(length: int) -> None:
    with pytest.raises(FrameError, match=f"a frame of {length} bytes"):
        list(Splitter().feed(length.to_bytes(4, "big")))


@pytest.mark.parametrize(
    "message",
    [
        frames.Get(id=1, key="k", wait_s=float("nan")),
        frames.Get(id=1, key="k", wait_s=float("inf")),
        frames.Get(id=1, key="k", wait_s=-1.0),
        frames.Get(id=-1, key="k", wait_s=1.0),
        frames.Get(id=1 << 63, key="k", wait_s=1.0),
        frames.Get(id=1, key="k" * 513, wait_s=1.0),
        frames.Add(id=1, key="k", amount=1 << 62),
        frames.Missing(id=1, keys=("k",) * ((1 << 17) + 1), wait_s=1.0),
    ],
)
def test_numbers_and_lengths_out_of_range_are_no_request(message: msgspec.Struct) -> None:
    with pytest.raises(FrameError):
        frames.request(frames.encode(message))


@pytest.mark.parametrize(
    "fields",
    [
        {"rank": -1},
        {"rank": 1 << 40},
        {"size": "2"},
        {"node": "a\nb"},
        {"node": "\x1b[31m"},
        {"node": "\u202e"},
        {"node": "a\n"},
        {"version": "9" * 300},
        {"nonce": b"short"},
        {"instance": bytes(33)},
        {"handshake": 2},
    ],
)
def test_who_somebody_is_must_be_said_properly(fields: dict[str, object]) -> None:
    frames.from_caller(frames.encode(hello()))
    with pytest.raises(FrameError):
        frames.from_caller(frames.encode(hello(**fields)))


def test_a_field_too_many_is_no_message() -> None:
    body = msgspec.msgpack.encode({"type": "Get", "id": 1, "key": "k", "wait_s": 1.0, "more": 1})
    with pytest.raises(FrameError, match="more"):
        frames.request(body)


def seals() -> tuple[frames.Seal, frames.Seal]:
    shake = Handshake(KEY, b"hello", b"challenge")
    return shake.caller_seal(), shake.place_seal()


def test_a_code_is_hmac_sha256_of_the_number_and_the_message() -> None:
    # RFC 2104 over the 8 bytes of the number, big endian, and the message, by the standard library's own hmac.
    said = b"".join(len(p).to_bytes(8, "big") + p for p in (b"hello", b"challenge"))
    digest = hashlib.sha256(said).digest()
    key = hmac.digest(KEY, b"topocheck frames of the caller" + digest, "sha256")
    caller, _ = seals()
    for number in range(2):
        want = hmac.digest(key, number.to_bytes(8, "big") + b"message", "sha256")
        assert caller.close(b"message") == (7 + 32).to_bytes(4, "big") + b"message" + want


def test_both_sides_understand_each_other() -> None:
    caller, place = seals()
    for text in (b"one", b"", b"three" * 1000):
        (body,) = Splitter(frames.FRAME_LIMIT).feed(caller.close(text))
        assert place.open(body) == text
        (body,) = Splitter(frames.FRAME_LIMIT).feed(place.close(text))
        assert caller.open(body) == text


@given(st.data())
def test_a_changed_frame_is_noticed(data: st.DataObject) -> None:
    caller, place = seals()
    (body,) = Splitter().feed(caller.close(b"a message"))
    at = data.draw(st.integers(0, len(body) - 1))
    flip = data.draw(st.integers(1, 255))
    with pytest.raises(FrameError):
        place.open(body[:at] + bytes([body[at] ^ flip]) + body[at + 1 :])


def test_a_frame_that_is_repeated_left_out_or_sent_back_is_noticed() -> None:
    caller, place = seals()
    first, second = (next(Splitter().feed(caller.close(m))) for m in (b"one", b"two"))
    with pytest.raises(FrameError):
        place.open(second)
    place.open(first)
    with pytest.raises(FrameError):
        place.open(first)
    with pytest.raises(FrameError):
        caller.open(second)
    for short in (b"", b"x" * 31, b"x" * 32):
        with pytest.raises(FrameError):
            place.open(short)
    assert place.open(second) == b"two"


def test_every_word_of_the_handshake_is_in_its_codes() -> None:
    one = Handshake(KEY, b"hello", b"challenge")
    others = [
        Handshake(bytes(32), b"hello", b"challenge"),
        Handshake(KEY, b"hallo", b"challenge"),
        Handshake(KEY, b"hello", b"challengf"),
        Handshake(KEY, b"hellochall", b"enge"),
    ]
    for other in others:
        assert {other.proof, other.welcome}.isdisjoint({one.proof, one.welcome})
    assert one.proof != one.welcome
