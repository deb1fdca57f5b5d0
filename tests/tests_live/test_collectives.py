"""Collectives over Gloo between real processes: exact results, and what is said when a rank does not do its part."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S
from topocheck.bandwidth.cases import CollectiveRow
from topocheck.bandwidth.collective_plan import COLLECTIVES
from topocheck.bandwidth.costs import busbw_factor
from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.tests_live.launch.ranks import Ranks, run_collectives
from topocheck.tests_live.launch.shared_memory import SHM_PER_RANK, shared_memory_problem

pytestmark = pytest.mark.torch


def row(name: str = "all_reduce", ranks: int = 2, sizes: tuple[int, ...] = (1024,), **more: object) -> CollectiveRow:
    fields = {"samples_min": 2, "samples_max": 2, "budget_s": 0.05} | more
    return CollectiveRow(
        id=f"{name}:gloo:{ranks}",
        collective=name,
        backend="gloo",
        ranks=ranks,
        sizes_bytes=sizes,
        **fields,  # type: ignore[arg-type]
    )


def test_every_collective_of_three_ranks_is_exact_and_a_pair_of_them_is_a_group() -> None:
    rows = (*(row(n, 3, (3072,)) for n in COLLECTIVES), row("all_reduce", 2, (65536,), dtype="bfloat16"))
    results = list(run_collectives(rows))
    assert [r.reason for r in results if isinstance(r, NotMeasured)] == []
    measured = [r for r in results if isinstance(r, Measurement)]
    assert {m.collective for m in measured} == set(COLLECTIVES)
    for m in measured:
        assert m.verified is True, m.wrong
        assert m.wrong == ""
        assert m.size_bytes in (3072, 65536)
        assert m.algbw_gb_s == pytest.approx(m.size_bytes / m.median / 1e3)
        assert m.busbw_gb_s == pytest.approx(m.algbw_gb_s * busbw_factor(m.collective or "", m.ranks or 0))
    assert {m.ranks for m in measured} == {2, 3}
    # torch offers both placements of these two, and only one of all others.
    both = {m.collective for m in measured if m.in_place} & {m.collective for m in measured if not m.in_place}
    assert both == {"all_gather", "reduce_scatter"}


def test_one_wrong_element_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Rank 1's torch adds a wrong element to what all_reduce gives it.
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('FAULT'):\n"
        "    import torch.distributed as d\n"
        "    real = d.all_reduce\n"
        "    def wrong(t, *a, **k):\n"
        "        out = real(t, *a, **k)\n"
        "        if t.numel() == 256 and d.get_rank() == 1: t[7] += 1\n"
        "        return out\n"
        "    d.all_reduce = wrong\n"
    )
    monkeypatch.setenv("FAULT", "1")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.getcwd()}")
    (m,) = list(run_collectives((row(),)))
    assert isinstance(m, Measurement)
    assert m.verified is False
    # Wrong once before and once after the timed part.
    assert m.wrong == "2 wrong elements on all ranks together"


def send_at_first_sample(monkeypatch: pytest.MonkeyPatch, sig: signal.Signals, rank: int) -> None:
    """Send a signal to a rank at its first timed sample."""
    real = Ranks.words
    sent = threading.Event()

    def words(self: Ranks) -> object:
        for word in real(self):
            if word["event"] == "at" and "sample" in word["call"] and word["rank"] == rank and not sent.is_set():
                sent.set()
                os.kill(word["pid"], sig)
            yield word

    monkeypatch.setattr(Ranks, "words", words)


LONG = {"samples_min": 500, "samples_max": 500, "budget_s": 60.0}


def test_a_killed_rank_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    send_at_first_sample(monkeypatch, signal.SIGKILL, 1)
    results = list(run_collectives((row(**LONG),), quiet_s=60.0))
    (r,) = results
    assert isinstance(r, NotMeasured)
    assert r.required
    assert "rank 1" in r.reason
    assert "SIGKILL" in r.reason
    assert "all_reduce 1 KiB" in r.reason
    assert r.next_step


def test_a_stopped_rank_is_named_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    send_at_first_sample(monkeypatch, signal.SIGSTOP, 1)
    (r,) = list(run_collectives((row(**LONG),), quiet_s=30.0))
    assert isinstance(r, NotMeasured)
    assert "rank 1" in r.reason
    assert "stopped by a signal" in r.reason
    pid = int(r.reason.split("(process ")[1].split(",")[0].split(")")[0])
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]


def test_no_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no module named torch')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.getcwd()}")
    (r,) = list(run_collectives((row(),), quiet_s=PATIENCE_S, join_s=PATIENCE_S))
    assert isinstance(r, NotMeasured)
    assert "pip install torch" in r.reason


def test_full_shared_memory_is_seen_before_anything_hangs(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    ranks = free // SHM_PER_RANK + 1
    text = shared_memory_problem(int(ranks), {"nccl"}, str(tmp_path))
    assert text.startswith(f"{tmp_path} has ")
    assert "ranks need" in text
    assert shared_memory_problem(1, {"mpi"}, str(tmp_path)) == ""
    assert "cannot be used" in shared_memory_problem(1, {"mpi"}, str(tmp_path / "absent"))
    # Gloo keeps nothing there, nor do ranks that are started here.
    assert shared_memory_problem(1, {"gloo"}, str(tmp_path / "absent")) == ""


@pytest.mark.service
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root to mount a small /dev/shm")
def test_a_really_full_dev_shm_ends_with_a_message() -> None:
    import subprocess

    from tests.conftest import require_program

    require_program("unshare", "mount")
    code = (
        "from topocheck.tests_live.launch.ranks import run_collectives\n"
        "from tests.tests_live.test_collectives import row\n"
        "import msgspec\n"
        "print(*[m.verified for m in run_collectives((row(),))])\n"
        "nccl = msgspec.structs.replace(row(), backend='nccl')\n"
        "print(*[(r.required, r.reason, r.next_step) for r in run_collectives((nccl,))])\n"
    )
    shell = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && head -c 64k /dev/zero > /dev/shm/full; exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", shell, "sh", sys.executable, "-c", code]
    out = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if "unshare" in out.stderr or "mount:" in out.stderr:
        pytest.skip(f"cannot mount here: {out.stderr.strip()[:100]}")
    over_gloo, over_nccl = out.stdout.splitlines()
    assert over_gloo == "True"
    assert "/dev/shm has 0.0 MB free" in over_nccl
    assert "--shm-size" in over_nccl
    assert over_nccl.startswith("(True,")
