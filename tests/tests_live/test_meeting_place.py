"""Where a launcher's ranks meet: one clear line for each cause, and nothing listens where it need not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic

import msgspec
import pytest

from tests.support.slurm import free_ports
from tests.support.waiting import PATIENCE_S
from topocheck.tests_live.launch import address
from topocheck.tests_live.launch.address import listen, resolve
from topocheck.tests_live.launch.rendezvous import join
from topocheck.tests_live.launch.world import LaunchError, World

HERE = World(launcher="torchrun", rank=0, size=2, address="127.0.0.1", ports=(0,))


def at(**fields: object) -> World:
    return msgspec.structs.replace(HERE, **{"ports": (free_ports(1)[0],)} | fields)


def places(sockets: list[socket.socket]) -> set[str]:
    out = {str(s.getsockname()[0]) for s in sockets}
    for s in sockets:
        s.close()
    return out


def test_rank_0_listens_at_the_address_of_its_name_and_nowhere_else() -> None:
    assert places(listen(at())) == {"127.0.0.1"}
    assert places(listen(at(address="::1"))) == {"::1"}
    assert places(listen(at(address="localhost"))) <= {"127.0.0.1", "::1"}


def test_a_name_that_means_loopback_on_its_own_host_is_listened_on_where_the_others_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As /etc/hosts of Debian has it: the host's own name is 127.0.1.1.
    monkeypatch.setattr(address, "resolve", lambda world: ["127.0.1.1"])
    monkeypatch.setattr(address, "_route_address", lambda family: "127.0.0.1" if family == socket.AF_INET else "")
    assert places(listen(at(address="node1"))) == {"127.0.1.1", "127.0.0.1"}
    # Where all ranks are on this node nobody looks elsewhere.
    assert places(listen(at(address="node1", local_size=2))) == {"127.0.1.1"}


def test_a_name_that_means_nothing() -> None:
    # RFC 2606: no name ends in .invalid.
    for rank in (0, 1):
        with pytest.raises(LaunchError, match=f"rank {rank}: rank 0's host 'n1.invalid' cannot be found") as e:
            join(at(rank=rank, address="n1.invalid"), "test", 5)
        assert "\n" not in str(e.value)
        assert "MASTER_ADDR" in str(e.value)
    # Longer than a label of a name may be (63, RFC 1035).
    with pytest.raises(LaunchError, match="cannot be found"):
        resolve(at(address="a" * 70))


def test_an_address_of_another_host() -> None:
    # Set aside for documentation (RFC 5737): no interface has it.
    with pytest.raises(LaunchError, match=r"rank 0: 192.0.2.1 is no address of this host: set MASTER_ADDR"):
        listen(at(address="192.0.2.1"))


def test_a_port_in_use_is_named_and_of_several_the_next_is_taken() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        with pytest.raises(LaunchError, match=f"rank 0: port {port} is in use on this host: set MASTER_PORT"):
            listen(at(ports=(port,)))
        free = free_ports(1)[0]
        (taken,) = listen(at(ports=(port, free)))
        assert taken.getsockname()[1] == free
        taken.close()


def test_a_rank_waits_for_rank_0_no_longer_than_it_may() -> None:
    begun = monotonic()
    with pytest.raises(LaunchError, match=r"rank 1: rank 0 did not answer at 127.0.0.1:\d+ within 1 s"):
        join(at(rank=1), "test", 1.0)
    assert monotonic() - begun >= 1.0


def test_a_rank_finds_rank_0_that_comes_later_and_passes_over_who_else_listens() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        ports = (stranger.getsockname()[1], free_ports(1)[0])
        found: list[str] = []

        def late() -> None:
            with join(at(rank=1, ports=ports), "test", PATIENCE_S) as m:
                found.append(m.where)

        threading.Thread(target=lambda: stranger.accept()[0].close()).start()
        rank = threading.Thread(target=late)
        rank.start()
        with join(at(ports=ports), "test", PATIENCE_S):
            rank.join(PATIENCE_S)
        assert found == [f"127.0.0.1:{ports[1]}"]


def test_a_number_that_is_no_port() -> None:
    with pytest.raises(LaunchError, match="expected 1 to 65535"):
        resolve(at(ports=(99999,)))


@pytest.mark.torch
@pytest.mark.parametrize("command", [("bw", "--quick", "--sizes", "1K"), ("network", "bw")])
def test_the_command_says_it_in_one_line_with_exit_code_2(command: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    for host, words in (("n1.invalid", "cannot be found"), ("127.0.0.1", "is in use")):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            env = os.environ | {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": host}
            env["MASTER_PORT"] = str(s.getsockname()[1])
            out = subprocess.run(
                [sys.executable, "-m", "topocheck", *command], capture_output=True, text=True, env=env, check=False
            )
        assert out.returncode == 2, out.stderr
        (line,) = [x for x in out.stderr.splitlines() if not x.startswith("  ") and "run: about" not in x]
        assert line.startswith("topocheck: rank 0: ")
        assert words in line
