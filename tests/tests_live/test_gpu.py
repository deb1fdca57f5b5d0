"""On a machine with NVIDIA GPUs: what is measured is what the reference tools define, and faults are reported.

Every test skips with the reason where there is no GPU (or no second one). None changes a clock or a mode.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import PATIENCE_S, until
from tests.tests_live.command_app import ARGV
from topocheck.bandwidth.cases import HOST, CollectiveRow, CopyRow, Transfer
from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.tests_live.copies.supervisor import run_group

pytestmark = pytest.mark.gpu
MIB = 1 << 20


@functools.cache
def devices() -> tuple[str, ...]:
    """PCI addresses of the GPUs that CUDA sees, asked in a process of its own; empty without a driver."""
    code = (
        "from cuda.bindings import driver as d\n"
        "assert int(d.cuInit(0)[0]) == 0\n"
        "for i in range(d.cuDeviceGetCount()[1]):\n"
        "    print(d.cuDeviceGetPCIBusId(32, d.cuDeviceGet(i)[1])[1].split(b'\\0')[0].decode().lower())\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return tuple(out.stdout.split()) if out.returncode == 0 else ()


def need(count: int) -> tuple[str, ...]:
    if len(devices()) < count:
        pytest.skip(f"needs {count} NVIDIA GPU(s) that CUDA sees; {len(devices())} here")
    return devices()


def row(kind: str, *ends: tuple[str, str, str], size: int = 64 * MIB, **more: Any) -> CopyRow:
    ts = tuple(Transfer(source=s, destination=d, issuer=i) for s, d, i in ends)
    fields = {"samples_min": 3, "samples_max": 5, "group": "driver"} | more
    return CopyRow(id=f"{kind} {ends} {size} {more}", kind=kind, transfers=ts, size_bytes=size, **fields)


def measure(
    *rows: CopyRow, group: str = "driver", module: str = "topocheck.tests_live.copies.child"
) -> list[Measurement]:
    ends = {e for r in rows for t in r.transfers for e in (t.source, t.destination)} - {HOST}
    out = list(run_group(group, rows, tuple(sorted(ends)), listen=lambda *a: None, module=module))
    assert [r for r in out if isinstance(r, NotMeasured)] == []
    return [r for r in out if isinstance(r, Measurement)]


def test_host_copies_are_right_and_of_the_order_of_the_link() -> None:
    (a, *_) = need(1)
    up, down, both = measure(
        row("h2d", (HOST, a, a)),
        row("d2h", (a, HOST, a)),
        row("host_both", (HOST, a, a), (a, HOST, a), direction="bidirectional"),
    )
    for m in (up, down, both):
        assert m.verified is True, m.wrong
        assert m.bandwidth_gb_s is not None
        assert m.bandwidth_gb_s > 2
    assert both.median > 0.9 * max(up.median, down.median)
    assert not any("held it up" in n or "not held back" in n for m in (up, down) for n in m.notes), (
        up.notes,
        down.notes,
    )


def test_pageable_copies_are_slower_and_right() -> None:
    (a, *_) = need(1)
    pinned, slow = measure(row("h2d", (HOST, a, a)), row("h2d", (HOST, a, a), pageable=True, copies=2, warm_ups=1))
    assert slow.verified is True
    assert slow.median < pinned.median


def test_local_copy_and_latency() -> None:
    (a, *_) = need(1)
    local, latency, host = measure(
        row("local", (a, a, a)),
        row("latency", (a, a, a), size=16, copies=200, warm_ups=20),
        row("latency_host", (a, a, a), size=16, copies=50, warm_ups=5),
    )
    assert local.median > 50
    assert local.verified is True
    # The CUDA sample's matrix: 2 to 3 us on the device; a program adds launch and wake-up.
    assert 0.5 < latency.median < 50
    assert host.median > latency.median


def test_peer_copies_push_pull_both_and_staged() -> None:
    a, b, *_ = need(2)
    push, back, pull, both = measure(
        row("p2p", (a, b, a), size=256 * MIB, peer_access=True),
        row("p2p", (b, a, b), size=256 * MIB, peer_access=True),
        row("p2p", (a, b, b), size=256 * MIB, peer_access=True),
        row("p2p_both", (a, b, a), (b, a, b), size=256 * MIB, direction="bidirectional", peer_access=True),
    )
    for m in (push, back, pull, both):
        assert m.verified is True, m.wrong
    if push.peer_access:
        assert both.median > 1.5 * push.median
    (staged,) = measure(row("p2p", (a, b, a), size=256 * MIB, group="staged", peer_access=False), group="staged")
    assert staged.peer_access is False
    assert staged.verified is True


def test_both_engines_agree_on_a_large_push() -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    a, b, *_ = need(2)
    r = row("p2p", (a, b, a), size=512 * MIB)
    (driver,), (torch,) = measure(r), measure(r, group="torch")
    assert torch.verified is True
    assert torch.median == pytest.approx(driver.median, rel=0.05)


def test_one_flipped_byte_is_found() -> None:
    a, b, *_ = need(2)
    (m,) = measure(row("p2p", (a, b, a)), module="tests.tests_live.faulty_gpu_child")
    assert m.verified is False
    assert "1 of 67108864 bytes are wrong; the first at offset 33333333" in m.wrong


def test_a_stopped_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import signal

    (a, *_) = need(1)
    monkeypatch.setattr("topocheck.tests_live.copies.supervisor.row_deadline_s", lambda r: 6.0)
    from topocheck.tests_live.copies.supervisor import start_child

    child = start_child("driver")
    stopped: list[str] = []

    def listen(kind: str, r: CopyRow | None, words: str) -> None:
        if kind == "at" and words.startswith("sample") and not stopped:
            stopped.append(words)
            os.kill(child.pid, signal.SIGSTOP)

    (n,) = list(run_group("driver", (row("h2d", (HOST, a, a)),), (a,), listen=listen, child=child))
    assert isinstance(n, NotMeasured)
    assert n.required
    assert "hung in" in n.reason
    # The device is free again: the same row works.
    (m,) = measure(row("h2d", (HOST, a, a)))
    assert m.verified is True


def test_quick_run_of_all_pairs_on_two_gpus_ends_within_three_seconds(tmp_path: Path) -> None:
    a, b, *_ = need(2)
    argv = [*ARGV, "--quick", "--all-pairs", "--gpus", f"{a},{b}", "--format", "json", "-o", str(tmp_path / "o.json")]
    subprocess.run(argv, check=False, capture_output=True)  # the files are in the page cache after this one
    begun = time.monotonic()
    out = subprocess.run(argv, check=False, capture_output=True, text=True)
    wall = time.monotonic() - begun
    assert out.returncode in (0, 1), out.stderr
    doc = json.loads((tmp_path / "o.json").read_text())
    assert len(doc["measurements"]) == 8
    assert all(m["verified"] for m in doc["measurements"])
    assert wall < 3.0, f"{wall:.2f} s, of which the run {doc['wall_s']:.2f} s"


def busy(gpu: str) -> bool:
    argv = ["nvidia-smi", "-i", gpu, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    said = subprocess.run(argv, check=False, capture_output=True, text=True).stdout.strip()
    return said.isdigit() and int(said) > 90


def test_a_busy_gpu_is_refused_and_then_reported(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    (a, *_) = need(1)
    code = (
        "import torch\n"
        "x = torch.randn(4096, 4096, device='cuda:0', dtype=torch.bfloat16)\n"
        "print('busy', flush=True)\n"
        "while True:\n"
        "    for _ in range(50): y = x @ x\n"
        "    torch.cuda.synchronize()\n"
    )
    load = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert load.stdout is not None
        assert load.stdout.readline().strip() == "busy"
        until(lambda: busy(a), "the load to be seen", pause_s=0.2)
        argv = [*ARGV, "--quick", "--gpus", a, "--format", "json"]
        refused = subprocess.run(argv, check=False, capture_output=True, text=True)
        assert refused.returncode == 3
        assert "--allow-busy" in refused.stderr
        allowed = subprocess.run([*argv, "--allow-busy"], check=False, capture_output=True, text=True)
        rows = json.loads(allowed.stdout)["measurements"]
        assert rows
        assert all(m["disturbed"] for m in rows), [m["disturbed"] for m in rows]
    finally:
        load.kill()
        load.wait()
        if load.stdout is not None:
            load.stdout.close()


def test_nccl_is_exact_in_every_collective_and_graphs_are_faster() -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    from topocheck.bandwidth.collective_plan import COLLECTIVES
    from topocheck.tests_live.launch.ranks import run_collectives

    a, b, *_ = need(2)
    rows = tuple(
        CollectiveRow(
            id=f"{name}:nccl:2:float32",
            collective=name,
            backend="nccl",
            ranks=2,
            members=(a, b),
            sizes_bytes=(1024, 16 * MIB),
            modes=("back_to_back", "one_at_a_time", "graph") if name == "all_reduce" else ("back_to_back",),
            samples_min=2,
            samples_max=3,
            budget_s=0.5,
        )
        for name in COLLECTIVES
    )
    out = list(run_collectives(rows, local_gpus=(a, b)))
    assert [r.reason for r in out if isinstance(r, NotMeasured)] == []
    measured = [r for r in out if isinstance(r, Measurement)]
    assert {m.collective for m in measured} == set(COLLECTIVES)
    assert all(m.verified for m in measured), [m.wrong for m in measured if not m.verified]
    small = {m.mode: m.median for m in measured if m.collective == "all_reduce" and m.size_bytes == 1024}
    # A call in a graph needs no launch of its own and nobody waits for it.
    assert small["graph"] < small["one_at_a_time"]
    issuers = {(m.mode, m.issuer, m.notes) for m in measured if m.mode != "one_at_a_time"}
    assert {i[:2] for i in issuers} == {(x, "NCCL called directly") for x in ("back_to_back", "graph")}, issuers


def test_a_stopped_rank_of_nccl_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="needs torch (the [bw] extra)")
    import signal

    from tests.tests_live.test_collectives import send_at_first_sample
    from topocheck.tests_live.launch.ranks import run_collectives

    a, b, *_ = need(2)
    send_at_first_sample(monkeypatch, signal.SIGSTOP, 1)
    r = CollectiveRow(
        id="all_reduce:nccl:2:float32",
        collective="all_reduce",
        backend="nccl",
        ranks=2,
        members=(a, b),
        sizes_bytes=(64 * MIB,),
        samples_min=500,
        samples_max=500,
        budget_s=60.0,
    )
    (n,) = list(run_collectives((r,), local_gpus=(a, b), quiet_s=12.0))
    assert isinstance(n, NotMeasured)
    assert "rank 1" in n.reason
    assert "stopped by a signal" in n.reason
    (m,) = measure(row("p2p", (a, b, a)))
    assert m.verified is True, "the devices are free again"
