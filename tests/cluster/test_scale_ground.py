"""Where a launcher's sets of ranks meet."""

from __future__ import annotations

import socket

from topocheck.tests_live import scale_ground


def test_ports_that_are_held_are_passed_over(monkeypatch):
    with socket.socket() as held:
        held.bind(("", 0))
        taken = held.getsockname()[1]
        with socket.socket() as s:
            s.bind(("", 0))
            free = s.getsockname()[1]
        offered = iter([taken, free, free, taken] + [0] * 96)
        monkeypatch.setattr(scale_ground, "port_from", lambda seed: next(offered))
        assert scale_ground.free_ports(1) == (free,)


def test_ports_are_below_those_of_connections_and_differ():
    # /proc/sys/net/ipv4/ip_local_port_range begins at 32768.
    ports = scale_ground.free_ports(20)
    assert len(set(ports)) == 20
    assert all(20000 <= p < 30000 for p in ports)
