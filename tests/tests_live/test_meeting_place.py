"""Where a launcher's ranks meet: one clear line for each cause, seen before anything waits for it."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path
from time import monotonic, sleep

import msgspec
import pytest

from tests.tests_live.command_app import ARGV
from topocheck.tests_live.ranks import LaunchError, World, free_port, meeting_problem, reach, ready

HERE = World(launcher="torchrun", rank=0, size=2, address="127.0.0.1", port=free_port())


def at(**fields: object) -> World:
    return msgspec.structs.replace(HERE, **fields)


def test_a_place_that_can_be_used() -> None:
    assert ready(HERE) == HERE
    assert ready(at(rank=1)) == at(rank=1)


def test_a_name_that_means_nothing() -> None:
    # RFC 2606: no name ends in .invalid.
    for rank in (0, 1):
        with pytest.raises(LaunchError, match=f"rank {rank}: rank 0's host 'n1.invalid' cannot be found") as e:
            ready(at(rank=rank, address="n1.invalid"))
        assert "\n" not in str(e.value)
        assert "MASTER_ADDR" in str(e.value)
    # Longer than a label of a name may be (63, RFC 1035).
    assert "cannot be found" in meeting_problem(at(address="a" * 70), listens=False)


def test_a_port_in_use_matters_to_who_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        with pytest.raises(LaunchError, match=f"rank 0: port {port} is in use on this host: set MASTER_PORT"):
            ready(at(port=port))
        assert ready(at(port=port, rank=1))
        # Under torchrun the agent listens there, and has to.
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        assert ready(at(port=port))


def test_a_rank_waits_for_rank_0_no_longer_than_it_may() -> None:
    begun = monotonic()
    with pytest.raises(LaunchError, match=r"rank 1: rank 0 did not answer at 127.0.0.1:\d+ within 1 s"):
        reach(at(rank=1, port=free_port()), 1.0)
    # The limit is what is tested here, with room for a busy machine; torch's store alone takes twice the limit.
    assert 1.0 <= monotonic() - begun < 1.9


def test_a_rank_finds_rank_0_that_comes_later() -> None:
    port = free_port()

    def listen() -> None:
        sleep(0.5)
        with socket.socket() as s:
            s.bind(("127.0.0.1", port))
            s.listen()
            s.accept()[0].close()

    late = threading.Thread(target=listen)
    late.start()
    reach(at(rank=1, port=port), 20.0)
    late.join()


def test_a_number_that_is_no_port() -> None:
    assert "expected 1 to 65535" in meeting_problem(at(port=99999), listens=True)


@pytest.mark.torch
@pytest.mark.parametrize("more", [(), ("--pairs", "nodes")])
def test_the_command_says_it_in_one_line_with_exit_code_2(more: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    quick = () if more else ("--quick", "--sizes", "1K")
    for address, words in (("n1.invalid", "cannot be found"), ("127.0.0.1", "is in use")):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            env = os.environ | {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": address}
            env["MASTER_PORT"] = str(s.getsockname()[1])
            out = subprocess.run([*ARGV, *quick, *more], capture_output=True, text=True, env=env, check=False)
        assert out.returncode == 2, out.stderr
        (line,) = [x for x in out.stderr.splitlines() if not x.startswith("  ") and "run: about" not in x]
        assert line.startswith("topocheck: rank 0: ")
        assert words in line
