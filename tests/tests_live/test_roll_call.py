"""Real ranks of a launcher of which one does not do its part: the one who is named is that one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.slurm import free_ports
from tests.support.waiting import PATIENCE_S
from tests.tests_live.test_collectives import LONG, row
from topocheck.model.measurement import NotMeasured
from topocheck.tests_live.launch.failures import RankState, hang_text
from topocheck.tests_live.launch.ranks import run_collectives
from topocheck.tests_live.launch.words import ranks_text

pytestmark = [pytest.mark.torch, pytest.mark.slow]

RANK = (
    "from topocheck.tests_live.launch.ranks import run_collectives\n"
    "from topocheck.tests_live.launch.rendezvous import join\n"
    "from topocheck.tests_live.launch.world import detect_here\n"
    "from tests.tests_live.test_collectives import LONG, row\n"
    "w = detect_here()\n"
    "with join(w, 'test', 600) as m:\n"
    "    for r in run_collectives((row(ranks=w.size, **LONG),), meeting=m, quiet_s=60, join_s=600, torch_limit_s=30):\n"
    "        print(getattr(r, 'reason', r), flush=True)\n"
)
# Rank FAULT does what AS says at its 20th all_gather, which is one of the samples.
FAULT = (
    "import os\n"
    "if os.environ.get('FAULT') and os.environ.get('RANK') == os.environ['FAULT']:\n"
    "    import signal, torch.distributed as d\n"
    "    real, calls = d.all_gather, []\n"
    "    def faulty(*a, **k):\n"
    "        calls.append(1)\n"
    "        if len(calls) == 20: exec(os.environ['AS'])\n"
    "        return real(*a, **k)\n"
    "    d.all_gather = faulty\n"
)


def reasons(tmp_path: Path, size: int, started: int, **fault: str) -> list[str]:
    """What each rank started says at last, of `size` ranks of which `started` are started."""
    (tmp_path / "sitecustomize.py").write_text(FAULT)
    env = (
        os.environ | {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])} | fault
    )
    env |= {"PYTHONPATH": f"{tmp_path}:{os.getcwd()}", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env=env | {"RANK": str(r)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for r in range(started)
    ]
    return [(p.communicate(timeout=PATIENCE_S)[0].splitlines() or [""])[-1] for p in ranks]


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    said = reasons(tmp_path, 3, 2)
    assert said == ["rank 2 (of 3) did not come within 30 s; the others waited"] * 2


def test_a_rank_that_is_stopped(tmp_path: Path) -> None:
    first, stopped, third = reasons(tmp_path, 3, 3, FAULT="1", AS="os.kill(os.getpid(), signal.SIGSTOP)")
    assert re.match(r"rank 1 on node \S+ did not answer; the others waited in vain \(RuntimeError: ", first)
    assert "stopped by a signal" in stopped
    assert "rank 1" in third
    assert "rank 0" not in third + first


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    first, killed, *others = reasons(tmp_path, 4, 4, FAULT="1", AS="os.kill(os.getpid(), signal.SIGKILL)")
    assert re.match(r"rank 1 on node \S+ did not answer; ", first)
    assert killed == "this rank's process was ended by SIGKILL"
    assert all(re.match(r"rank 1 on node \S+ did not answer; |rank 0, who holds the place", x) for x in others)


def test_a_rank_that_fails_by_itself(tmp_path: Path) -> None:
    first, _, third = reasons(tmp_path, 3, 3, FAULT="2", AS="raise RuntimeError('out of apples')")
    assert re.fullmatch(r"rank 2 on node \S+ failed: RuntimeError: out of apples", first)
    assert re.match(r"rank 2 (on node \S+ )?failed in all_reduce 1 KiB", third)


def test_a_rank_outside_the_group_is_not_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2 has no part in the sweep of two and says less; rank 1 is the one that does not come back."""
    (tmp_path / "sitecustomize.py").write_text(FAULT.replace("os.environ.get('RANK') ==", "'1' =="))
    hang = "import torch, time\nif d.get_rank() == 1: time.sleep(3000)"
    monkeypatch.setenv("FAULT", "1")
    monkeypatch.setenv("AS", hang)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.getcwd()}")
    found = list(run_collectives((row(ranks=2, **LONG), row("reduce", 3)), quiet_s=30.0, torch_limit_s=PATIENCE_S))
    assert {type(r) for r in found} == {NotMeasured}
    (reason,) = {r.reason for r in found if isinstance(r, NotMeasured)}
    assert "rank 1 (process" in reason
    assert "rank 2" not in reason


def test_hang_of_which_not_all_is_seen() -> None:
    me = RankState(pid=os.getpid(), step=3, call="ncclAllReduce")
    # One of a launcher's ranks knows only that it waits.
    assert hang_text({4: me}, 75, 0) == (
        "rank 4 waits in ncclAllReduce (75 s without a message): one of the others did not come, or it hangs"
    )
    # Of three ranks started here, number 1 never said a word.
    assert "rank 1 did not come" in hang_text({0: me, 2: me}, 20, 3)
    # All of a group at one step: nobody is named.
    assert hang_text({0: me, 1: me}, 20, 2) == "all ranks hung in ncclAllReduce (20 s without a message)"
    assert hang_text({0: me, 1: me}, 20, 0) == "all ranks hung in ncclAllReduce (20 s without a message)"


def test_many_ranks_are_counted() -> None:
    assert ranks_text([4]) == "rank 4"
    assert ranks_text([1, 3]) == "ranks 1, 3"
    assert ranks_text(list(range(20))) == "ranks 0-19"
