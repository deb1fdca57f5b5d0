"""The driver's engine on a driver that obeys the API's rules: who copies, what is timed, what is compared."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tests_live.simulated_driver import LATENCY_S, SimulatedDriver
from topocheck.bandwidth.cases import HOST, CopyRow, Transfer
from topocheck.tests_live.copies.driver import DriverEngine
from topocheck.tests_live.copies.driver_calls import DriverError
from topocheck.tests_live.copies.measure import UnsupportedRowError, run_row

A, B = "0000:06:00.0", "0000:07:00.0"
MIB = 1 << 20
RATES = {(HOST, A): 54e9, (A, HOST): 53e9, (A, B): 390e9, (B, A): 380e9, (A, A): 1500e9, (HOST, B): 40e9}


def engine(peers: bool = True, **more: Any) -> tuple[DriverEngine, SimulatedDriver]:
    e = DriverEngine(peers=peers)
    driver = SimulatedDriver([A, B], RATES, **more)
    e.driver = driver  # type: ignore[assignment]
    software = e.open((A, B), lambda call: None)
    assert software["cuda_driver_api"] == "13.0"
    return e, driver


def row(kind: str, *ends: tuple[str, str, str], size: int = 4 * MIB, **more: Any) -> CopyRow:
    ts = tuple(Transfer(source=s, destination=d, issuer=i) for s, d, i in ends)
    fields = {"samples_min": 3, "samples_max": 3} | more
    return CopyRow(id=f"{kind} {ends}", kind=kind, group="driver", transfers=ts, size_bytes=size, **fields)


def rate(bytes_per_s: float, size: int = 4 * MIB) -> float:
    return size / (LATENCY_S + size / bytes_per_s) / 1e9


@pytest.mark.parametrize(
    ("ends", "bytes_per_s"),
    [
        ((HOST, A, A), 54e9),
        ((A, HOST, A), 53e9),
        ((A, B, A), 390e9),
        ((B, A, B), 380e9),
        ((A, B, B), 390e9),
        ((A, A, A), 1500e9),
    ],
)
def test_one_way(ends: tuple[str, str, str], bytes_per_s: float) -> None:
    e, driver = engine()
    m = run_row(e, row("p2p", ends), lambda call: None)
    assert m.verified is True
    assert m.bandwidth_gb_s == pytest.approx(rate(bytes_per_s))
    assert set(driver.seen) == {ends}
    assert len(driver.seen) == 3 * (4 + 16)
    if ends[0] != ends[1] and HOST not in ends:
        assert m.issuer == ("source" if ends[2] == ends[0] else "destination")
        assert m.peer_access is True
        other = ends[1] if ends[2] == ends[0] else ends[0]
        assert driver.enabled == {(ends[2], other)}
    assert m.notes == () or all("node" in n or "host" in n for n in m.notes)


def test_both_ways_are_summed_and_all_at_once_is_the_slowest() -> None:
    e, _ = engine()
    both = run_row(e, row("p2p_both", (A, B, A), (B, A, B), direction="bidirectional"), lambda call: None)
    assert both.bandwidth_gb_s == pytest.approx(rate(390e9) + rate(380e9))
    every = run_row(e, row("h2d_all", (HOST, A, A), (HOST, B, B), direction="aggregate"), lambda call: None)
    assert every.bandwidth_gb_s == pytest.approx(2 * rate(40e9))
    assert every.members == (HOST, A, B)
    host = run_row(e, row("host_both", (HOST, A, A), (A, HOST, A), direction="bidirectional"), lambda call: None)
    assert host.bandwidth_gb_s == pytest.approx(rate(54e9) + rate(53e9))
    assert host.verified is True


def test_staged_never_enables_peer_access() -> None:
    e, driver = engine(peers=False)
    m = run_row(e, row("p2p", (A, B, A), peer_access=False), lambda call: None)
    assert m.peer_access is False
    assert m.verified is True
    assert driver.enabled == set()
    assert "cuCtxEnablePeerAccess" not in driver.calls
    assert "cuMemcpyPeerAsync" in driver.calls
    assert "cuStreamWaitValue32" not in driver.calls


def test_a_pair_without_peer_access_is_staged_and_says_so() -> None:
    e, _ = SimulatedPair = engine(**{"peers": True})
    SimulatedPair[1].peers = False
    m = run_row(e, row("p2p", (A, B, A), peer_access=True), lambda call: None)
    assert m.peer_access is False
    assert any("cuDeviceCanAccessPeer says 0" in n for n in m.notes)


def test_a_driver_that_cannot_wait_goes_on_without_a_gate_and_says_so() -> None:
    e, _ = engine(can_wait=False)
    m = run_row(e, row("h2d", (HOST, A, A)), lambda call: None)
    assert m.verified is True
    assert m.bandwidth_gb_s == pytest.approx(rate(54e9))
    assert any("not held back" in n and "CUDA_ERROR_NOT_SUPPORTED" in n for n in m.notes)


@pytest.mark.parametrize("ends", [(A, B, A), (HOST, A, A), (A, HOST, A)])
@pytest.mark.parametrize("verify", ["each", "last"])
def test_one_wrong_byte_is_found_on_every_path(ends: tuple[str, str, str], verify: str) -> None:
    e, _ = engine(corrupt=(ends[0], ends[1], 3 * MIB + 5))
    # 21 copies in a sample (5 + 16): the bit is flipped back by every second copy, so the count must be odd.
    m = run_row(e, row("p2p", ends, warm_ups=5, verify=verify), lambda call: None)
    assert m.verified is False
    assert f"offset {3 * MIB + 5}" in m.wrong
    assert m.wrong.count("sample") == (3 if verify == "each" else 1)


def test_latencies() -> None:
    e, _ = engine()
    m = run_row(e, row("latency", (A, B, A), size=16, copies=200, warm_ups=20), lambda call: None)
    assert m.latency_us == pytest.approx(LATENCY_S * 1e6, rel=0.01)
    assert m.unit == "us"
    m = run_row(e, row("latency_host", (A, B, A), size=16, copies=50, warm_ups=5), lambda call: None)
    assert m.latency_us is not None
    assert m.latency_us > 0


def test_pageable_memory_is_never_behind_a_gate() -> None:
    e, driver = engine()
    m = run_row(e, row("h2d", (HOST, A, A), pageable=True), lambda call: None)
    assert m.verified is True
    assert "cuMemcpyHtoDAsync" in driver.calls
    assert "cuStreamWaitValue32" not in driver.calls
    assert "pageable" in m.allocator
    assert m.pageable
    m = run_row(e, row("d2h", (A, HOST, A), pageable=True), lambda call: None)
    assert m.verified is True


def test_rows_share_buffers_and_sizes_may_grow_and_shrink() -> None:
    e, driver = engine()
    for size in (MIB, 4 * MIB, 4096, 4 * MIB):
        for ends in ((HOST, A, A), (A, HOST, A), (A, B, A), (B, A, B)):
            m = run_row(e, row("p2p", ends, size=size, verify="each"), lambda call: None)
            assert m.verified is True, (size, ends, m.wrong)
    before = len(driver.memory)
    run_row(e, row("p2p", (A, B, A)), lambda call: None)
    assert len(driver.memory) == before
    e.close()
    assert len(driver.memory) == 1  # the gate's flag


def test_what_cannot_be_is_said() -> None:
    e, driver = engine()
    driver.free_bytes = 5 * MIB
    with pytest.raises(UnsupportedRowError, match="not enough free memory"):
        run_row(e, row("h2d", (HOST, A, A)), lambda call: None)
    with pytest.raises(UnsupportedRowError, match="no CUDA context"):
        run_row(e, row("h2d", (HOST, "0000:99:00.0", A)), lambda call: None)
    other = DriverEngine()
    other.driver = SimulatedDriver([A], RATES)  # type: ignore[assignment]
    with pytest.raises(DriverError, match="CUDA_VISIBLE_DEVICES"):
        other.open((A, B), lambda call: None)
