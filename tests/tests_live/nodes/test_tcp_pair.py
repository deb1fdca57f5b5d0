"""The exchange of bytes between two nodes, here over loopback."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from tests.support.waiting import PATIENCE_S
from topocheck.tests_live.launch.frames import derived, digest
from topocheck.tests_live.nodes import tcp as tcp_pair
from topocheck.tests_live.nodes.tcp import WARM_S, WINDOWS, Exchange, Listener, call, exchange, rates

KEY = bytes(range(32))


def test_rates_count_what_arrived_between_warm_up_and_end():
    # 10 parts a second for 1 s after the warm-up: 1 MB each 0.1 s is 0.01 GB/s; what came before does not count.
    arrived = [(100.0, 5_000_000)] + [(100.0 + WARM_S + 0.05 + i / 10, 1_000_000) for i in range(10)]
    assert rates(arrived, 1.0) == pytest.approx([0.01] * WINDOWS)
    # What came after the end does not count either.
    assert rates([*arrived, (100.0 + WARM_S + 1.2, 9_000_000)], 1.0) == pytest.approx([0.01] * WINDOWS)


def test_nothing_gives_no_rate():
    assert rates([], 1.0) == ()
    assert rates([(5.0, 1000)], 1.0) == ()


@pytest.mark.slow
def test_both_sides_measure_what_they_received():
    listener = Listener("127.0.0.1", KEY)
    out: list[Exchange] = []
    other = threading.Thread(
        target=lambda: out.append(exchange(listener.take("t", 2, PATIENCE_S), first=False, seconds=2))
    )
    other.start()
    mine = exchange(call("127.0.0.1", listener.port, "t", 2, KEY), first=True, seconds=2)
    other.join(PATIENCE_S)
    listener.close()
    assert not mine.error
    assert not out[0].error
    assert mine.received_gb_s
    assert out[0].received_gb_s
    assert len(mine.samples) == WINDOWS
    assert mine.latency_us
    assert mine.latency_us > 0


def test_a_peer_that_falls_silent_ends_it(monkeypatch):
    monkeypatch.setattr(tcp_pair, "STALL_S", 0.3)
    listener = Listener("127.0.0.1", KEY)
    mute = call("127.0.0.1", listener.port, "t", 1, KEY)
    got = exchange(listener.take("t", 1, PATIENCE_S), first=False, seconds=0.2)
    listener.close()
    mute[0].close()
    assert "no byte for" in got.error
    assert got.received_gb_s is None


def test_a_peer_that_closes_ends_it():
    listener = Listener("127.0.0.1", KEY)
    call("127.0.0.1", listener.port, "t", 1, KEY)[0].close()
    got = exchange(listener.take("t", 1, PATIENCE_S), first=False, seconds=0.2)
    listener.close()
    assert "closed" in got.error or "lost" in got.error


def strangers(port: int, count: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]


def test_strangers_are_ignored_and_take_nobodys_place():
    listener = Listener("127.0.0.1", KEY)
    mute = strangers(listener.port, 3 * tcp_pair.STRANGERS)
    for s in mute[::3]:
        with contextlib.suppress(OSError):
            s.sendall(b"GET / HTTP/1.0\r\n\r\n" * 20)
    ours = call("127.0.0.1", listener.port, "t", 2, KEY)
    taken = listener.take("t", 2, PATIENCE_S)
    assert len(taken) == 2
    # A greeting that was heard on the way is no good a second time.
    for c in (*ours, *taken, *mute):
        c.close()
    listener.close()


def test_who_does_not_know_the_key_is_not_taken():
    listener = Listener("127.0.0.1", KEY)
    with pytest.raises(OSError, match="none of this job's nodes"):
        call("127.0.0.1", listener.port, "t", 1, bytes(32))
    with pytest.raises(TimeoutError):
        listener.take("t", 1, 0.1)
    listener.close()


def test_a_greeting_is_taken_once():
    listener = Listener("127.0.0.1", KEY)
    name, nonce = digest(b"t") + b"\0", bytes(16)
    greeting = name + nonce + derived(KEY, b"call", name, nonce)
    answers = []
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", listener.port), timeout=60) as c:
            c.sendall(greeting)
            answers.append(c.recv(64))
    assert answers == [derived(KEY, b"take", name, nonce), b""]
    for c in listener.take("t", 1, PATIENCE_S):
        c.close()
    listener.close()


def test_who_listens_must_know_the_key_too():
    def listen(s: socket.socket) -> None:
        c, _ = s.accept()
        with c:
            c.recv(1024)
            c.sendall(bytes(32))

    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        thread = threading.Thread(target=listen, args=(stranger,))
        thread.start()
        with pytest.raises(OSError, match="none of this job's nodes"):
            call("127.0.0.1", stranger.getsockname()[1], "t", 1, KEY)
        thread.join(PATIENCE_S)


def test_no_connection_is_a_timeout():
    listener = Listener("127.0.0.1", KEY)
    with pytest.raises(TimeoutError):
        listener.take("nobody", 1, 0.1)
    listener.close()
