"""A rank that is killed or stopped while its command measures: named with its node, one exit code on all ranks."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cluster.launching import environment, topocheck
from tests.support.slurm import free_ports
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.service, pytest.mark.torch, pytest.mark.slow]
LOST = 1
COMMANDS = {
    "lab": ("lab", "collectives", "--backend", "gloo"),
    "scale": ("scale", "--backend", "gloo", "--quick", "--no-digits"),
    "bw": ("bw", "--backend", "gloo", "--collective", "all_reduce"),
    "network bw": ("network", "bw", "--transport", "gloo", "--seconds", "5"),
}
NODES = {"network bw": ("n0", "n1", "n0")}
"""Nodes of the ranks, where not each has its own: without the lost one no pair is left, and nothing measured again."""


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that are Python's measuring ones."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            command = Path(f"/proc/{child}/cmdline")
            if command.exists() and b"topocheck.tests_live" in command.read_bytes():
                found.append(int(child))
    return found


@pytest.mark.parametrize(
    ("name", "number", "code"),
    [
        ("lab", signal.SIGKILL, 3),
        ("lab", signal.SIGSTOP, 3),
        ("scale", signal.SIGKILL, 3),
        ("bw", signal.SIGSTOP, 3),
        ("network bw", signal.SIGKILL, 1),
        ("network bw", signal.SIGSTOP, 1),
    ],
)
def test_a_lost_rank_is_named_with_its_node(name: str, number: signal.Signals, code: int) -> None:
    port = str(free_ports(1)[0])
    ranks = [
        subprocess.Popen(
            topocheck(*COMMANDS[name], "--deadline", "20"),
            env=environment(
                RANK=str(r), WORLD_SIZE="3", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                TOPOCHECK_NODE=NODES.get(name, ("n0", "n1", "n2"))[r],
            ),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for r in range(3)
    ]  # fmt: skip
    lost = ranks[LOST]
    try:
        mine = until(lambda: children(lost.pid), f"{name} measures", else_=lambda: str(lost.poll()))
        for pid in (lost.pid, *mine):
            os.kill(pid, number)
        said = {r: ranks[r].communicate(timeout=PATIENCE_S) for r in (0, 2)}
        assert [ranks[r].returncode for r in (0, 2)] == [code, code], said
        text = " ".join(" ".join(said[0]).split())
        fate = "ended while the others worked" if number == signal.SIGKILL else "did not answer for 20 s"
        assert f"rank {LOST} on node n{LOST} {fate}" in text
        assert "rank 2 on node" not in text
        assert "Traceback" not in text + "".join(said[2])
    finally:
        for p in (lost, *ranks):
            p.kill()
            p.communicate(timeout=PATIENCE_S)
