"""The exchange of bytes between two nodes, here over loopback."""

from __future__ import annotations

import socket
import threading

import pytest

from topocheck.tests_live import tcp_pair
from topocheck.tests_live.tcp_pair import WARM_S, WINDOWS, Exchange, Listener, call, exchange, rates


def test_rates_count_what_arrived_between_warm_up_and_end():
    # 10 parts a second for 1 s after the warm-up: 1 MB each 0.1 s is 0.01 GB/s; what came before does not count.
    arrived = [(100.0, 5_000_000)] + [(100.0 + WARM_S + 0.05 + i / 10, 1_000_000) for i in range(10)]
    assert rates(arrived, 1.0) == pytest.approx([0.01] * WINDOWS)
    # What came after the end does not count either.
    assert rates([*arrived, (100.0 + WARM_S + 1.2, 9_000_000)], 1.0) == pytest.approx([0.01] * WINDOWS)


def test_nothing_gives_no_rate():
    assert rates([], 1.0) == ()
    assert rates([(5.0, 1000)], 1.0) == ()


def test_both_sides_measure_what_they_received():
    listener = Listener("127.0.0.1")
    out: list[Exchange] = []
    other = threading.Thread(target=lambda: out.append(exchange(listener.take("t", 2, 5), first=False, seconds=0.2)))
    other.start()
    mine = exchange(call("127.0.0.1", listener.port, "t", 2), first=True, seconds=0.2)
    other.join(20)
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
    listener = Listener("127.0.0.1")
    mute = call("127.0.0.1", listener.port, "t", 1)
    got = exchange(listener.take("t", 1, 5), first=False, seconds=0.2)
    listener.close()
    mute[0].close()
    assert "no byte for" in got.error
    assert got.received_gb_s is None


def test_a_peer_that_closes_ends_it():
    listener = Listener("127.0.0.1")
    call("127.0.0.1", listener.port, "t", 1)[0].close()
    got = exchange(listener.take("t", 1, 5), first=False, seconds=0.2)
    listener.close()
    assert "closed" in got.error or "lost" in got.error


def test_a_stranger_is_ignored():
    listener = Listener("127.0.0.1")
    with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" * 20)
    ours = call("127.0.0.1", listener.port, "t", 1)
    (taken,) = listener.take("t", 1, 5)
    for c in (*ours, taken):
        c.close()
    listener.close()


def test_no_connection_is_a_timeout():
    listener = Listener("127.0.0.1")
    with pytest.raises(TimeoutError):
        listener.take("nobody", 1, 0.1)
    listener.close()
