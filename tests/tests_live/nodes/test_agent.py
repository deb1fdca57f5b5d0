"""What one node does with the programs of perftest; the programs are stand-ins that print what perftest prints."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S
from topocheck.bandwidth.node_pairs import Half, NodeHello, Task
from topocheck.tests_live.nodes import agent as node_agent
from topocheck.tests_live.nodes.agent import TRANSPORTS, Agent

BANDWIDTH = """#!/bin/sh
# The server says nothing of the result; the client, which got an address as its last argument, does.
case "$*" in *127.0.0.1) ;; *) exit 0;; esac
echo ' #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]'
echo ' 1048576    40000            391.10             388.00              0.046000'
"""
LATENCY = """#!/bin/sh
case "$*" in *127.0.0.1) ;; *) exit 0;; esac
echo ' #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]'
echo ' 2       1000          1.50           9.00         1.75               1.80           0.05'
"""


class Store:
    """A meeting of two agents in one process."""

    def __init__(self, *, authenticated: bool = True) -> None:
        self.kept: dict[str, bytes] = {}
        self.authenticated = authenticated

    def put(self, key: str, value: bytes) -> None:
        self.kept[key] = value

    def get(self, key: str, wait_s: float) -> bytes | None:
        end = time.monotonic() + wait_s
        while key not in self.kept and time.monotonic() < end:
            time.sleep(0.01)
        return self.kept.get(key)


def both(task: Task) -> dict[str, Half]:
    """Run a task on its two nodes at once."""
    store, out = Store(), {}
    nodes = {n: NodeHello(node=n, rank=0, host=n, address="127.0.0.1", port=1, nics=("mlx5_0",)) for n in "ab"}

    def run(name: str) -> None:
        agent = Agent(store, nodes[name], None)  # type: ignore[arg-type]
        agent.nodes = nodes
        out[name] = agent._perftest(task)

    threads = [threading.Thread(target=run, args=(n,)) for n in nodes]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE_S)
    return out


def install(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    # As root PATH is not looked at.
    monkeypatch.setattr("topocheck.process.programs.SYSTEM", (str(folder), "/usr/bin", "/bin"))
    monkeypatch.setattr(node_agent, "sleep", lambda s: None)


def test_bandwidth_is_what_each_client_sent(tmp_path, monkeypatch):
    install(tmp_path, "ib_write_bw", BANDWIDTH, monkeypatch)
    got = both(Task(id="t", a="a", b="b", transport="ib_write_bw", rail="mlx5_0"))
    # 388 Gb/s are 48.5 GB/s; each node was the client once.
    assert {n: h.sent_gb_s for n, h in got.items()} == {"a": 48.5, "b": 48.5}


def test_latency_comes_from_the_one_client(tmp_path, monkeypatch):
    install(tmp_path, "ib_write_lat", LATENCY, monkeypatch)
    got = both(Task(id="t", a="a", b="b", transport="ib_write_lat", rail="mlx5_0"))
    assert (got["a"].latency_us, got["b"].latency_us) == (None, 1.75)


def test_a_program_that_fails_is_quoted(tmp_path, monkeypatch):
    install(tmp_path, "ib_write_bw", '#!/bin/sh\necho "Couldn\'t find device mlx5_0" >&2\nexit 1\n', monkeypatch)
    got = both(Task(id="t", a="a", b="b", transport="ib_write_bw", rail="mlx5_0"))
    assert "Couldn't find device mlx5_0" in got["a"].error


@pytest.mark.parametrize(
    ("task", "authenticated", "words"),
    [
        (
            {"transport": "ib_write_bw", "rail": "mlx5_0"},
            False,
            "is not run: the ranks of this job are not authenticated",
        ),
        ({"transport": "ib_write_bw", "rail": "mlx5_1"}, True, "has no device mlx5_1"),
        ({"transport": "gloo", "rail": "mlx5_1"}, False, "has no device mlx5_1"),
        ({"transport": "reboot"}, True, "is no way to measure a pair"),
        ({"b": "c"}, True, "are no pair of nodes"),
        ({"b": "a"}, True, "are no pair of nodes"),
    ],
)
def test_what_rank_0_says_is_not_done_blindly(task, authenticated, words, monkeypatch):
    monkeypatch.setattr(node_agent, "Child", None)
    nodes = {n: NodeHello(node=n, rank=0, host=n, address="127.0.0.1", port=1, nics=("mlx5_0",)) for n in "ab"}
    agent = Agent(Store(authenticated=authenticated), nodes["a"], None)  # type: ignore[arg-type]
    agent.nodes = nodes
    (half,) = agent._all([Task(**{"id": "t", "a": "a", "b": "b"} | task)])
    assert words in half.error


def test_the_three_ways_differ_in_nccls_settings_alone():
    assert TRANSPORTS["nccl_tcp"] == {"NCCL_IB_DISABLE": "1"}
    assert TRANSPORTS["nccl_rdma"]["NCCL_NET_GDR_LEVEL"] == "LOC"
    assert TRANSPORTS["nccl_gdr"]["NCCL_NET_GDR_LEVEL"] == "SYS"
