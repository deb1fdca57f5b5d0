"""Recordings of a described machine: healthy ones with jitter, and what can be planted in them. Knows no check."""

from __future__ import annotations

import functools
from collections.abc import Callable
from random import Random
from typing import Any

from msgspec.structs import replace

from tests.machines.builder import machine
from topocheck.model.base import DENIED
from topocheck.monitor.child import read
from topocheck.monitor.plan import devices_of, plan_of
from topocheck.overtime.history import History
from topocheck.overtime.types import (
    FunctionReading,
    GpuReading,
    Header,
    NvLinkReading,
    PortReading,
    Reading,
    Sample,
    sample_of,
)
from topocheck.pipeline import read_node
from topocheck.topology.build import build

GPU, GPU_LABEL = "0000:18:00.0", "0000:18:00.0 GPU0"
NIC = "mlx5_2"
PORT = f"{NIC}/1"
_GEN5_GT_S, _GEN1_GT_S = 32.0, 2.5

Readings = list[Reading]
Plant = Callable[[Readings, int, int], None]
"""Changes the readings of sample n of N in place."""


@functools.cache
def base(name: str = "hgx_h100_cx7") -> tuple[Header, tuple[Reading, ...]]:
    """Return a described machine's header and one full sample of it, read by the sampler's own readers."""
    host = machine(name, patch={"all gpu": {"busy": "1"}}).host()
    node = read_node(host)
    topology = build(node)
    plan = plan_of(topology, node, 1)
    readings = read(host, "nvml", plan, full=True) + read(host, "sysfs", plan, full=True)
    header = Header(
        format="topocheck watch",
        version=2,
        topocheck_version="0",
        hostname="h",
        begun="2026-01-01T00:00:00Z",
        begun_unix_s=1_767_225_600.0,
        interval_s=1.0,
        boot_time_s=1_767_000_000,
        devices=devices_of(topology),
    )
    return header, tuple(readings)


@functools.cache
def _gpu_addresses() -> frozenset[str]:
    return frozenset(d.address for d in base()[0].devices if d.is_gpu)


def recording(seed: int, samples: int = 12, step_s: float = 5.0, plant: Plant | None = None) -> History:
    """Return a healthy recording with jitter, and with what `plant` changes in it."""
    rng = Random(seed)
    header, first = base()
    now: Readings = [_start(r, rng) for r in first]
    load = [rng.random() < 0.8 for _ in range(samples)]
    out: list[Sample] = []
    for n in range(samples):
        now = [_step(r, rng, step_s if n else 0.0, busy=plant is not None or load[n]) for r in now]
        shown = list(now)
        if plant is not None:
            plant(shown, n, samples)
        out.append(sample_of(round(n * step_s + rng.random() * 0.01 * step_s, 3), shown))
    return History(header=header, samples=tuple(out))


def _start(r: Reading, rng: Random) -> Reading:
    """Counters of a machine that has been up for long are not zero; some links have errors of last year."""
    return replace(r, counters={k: v + rng.choice((0, 0, rng.randrange(200))) for k, v in r.counters.items()})


def _step(r: Reading, rng: Random, seconds: float, *, busy: bool) -> Reading:
    if isinstance(r, GpuReading):
        return _gpu(r, rng, seconds, busy=busy)
    if isinstance(r, PortReading):
        packets = int(rng.uniform(0, 2e6) * seconds) if busy else rng.randrange(100)
        counters = dict(r.counters)
        for name, by in {
            "port_xmit_data": packets * 1024,
            "port_rcv_data": packets * 1024,
            "port_xmit_packets": packets,
            "port_rcv_packets": packets,
            "port_xmit_wait": rng.randrange(10_000),
            "out_of_sequence": rng.randrange(1000),
            "symbol_error": rng.random() < 0.02,
            "packet_seq_err": rng.random() < 0.05,
        }.items():
            if name in counters:
                counters[name] += int(by)
        return replace(r, counters=counters)
    if isinstance(r, FunctionReading):
        counters = dict(r.counters)
        if "aer_link_errors" in counters:
            counters["aer_link_errors"] += _now_and_then(rng, seconds)
        if r.address in _gpu_addresses() and isinstance(r.speed_gt_s, float):
            return replace(r, counters=counters, speed_gt_s=_GEN5_GT_S if busy else _GEN1_GT_S)
        return replace(r, counters=counters)
    return r


def _now_and_then(rng: Random, seconds: float) -> int:
    """Return how often something happened that happens once a minute on average."""
    expected = rng.uniform(0, 2) * seconds / 60
    return int(expected) + (rng.random() < expected % 1)


def _gpu(r: GpuReading, rng: Random, seconds: float, *, busy: bool) -> GpuReading:
    counters = dict(r.counters)
    traffic = int(rng.uniform(0, 3e8) * seconds) if busy else 0
    for name, by in {
        "nvlink_tx_kib": traffic,
        "nvlink_rx_kib": traffic,
        "pcie_replays": _now_and_then(rng, seconds),
        "pcie_recoveries": rng.randrange(3),
        "sw_power_cap_ns": int(seconds * 5e8),
    }.items():
        counters[name] = counters.get(name, 0) + int(by)
    return replace(
        r,
        counters=counters,
        clock_sm_mhz=rng.randrange(1755, 1981) if busy else rng.randrange(210, 400),
        clock_reasons=0x4 if busy else 0x1,
        performance_state=0 if busy else 8,
        utilization_percent=rng.randrange(92, 101) if busy else 0,
        temperature_c=rng.randrange(40, 80),
        pcie_gen=5 if busy else 1,
        pids=(4242,) if busy else (),
    )


def _change(readings: Readings, match: Callable[[Reading], bool], **fields: Any) -> None:
    hits = [i for i, r in enumerate(readings) if match(r)]
    assert hits, "there is nothing to plant this in"
    for i in hits:
        readings[i] = replace(readings[i], **fields)


def is_gpu(r: Reading) -> bool:
    return isinstance(r, GpuReading) and r.address == GPU


def is_function(r: Reading) -> bool:
    return isinstance(r, FunctionReading) and r.address == GPU


def is_nic(r: Reading) -> bool:
    address = next(d.address for d in base()[0].devices if d.label == NIC)
    return isinstance(r, FunctionReading) and r.address == address


def is_link(r: Reading) -> bool:
    return isinstance(r, NvLinkReading) and r.address == GPU and r.link == 3


def is_port(r: Reading) -> bool:
    return isinstance(r, PortReading) and r.subject == PORT


def grow(match: Callable[[Reading], bool], name: str, by: int) -> Plant:
    """Return what lets a counter grow by so much in all, most of it in the second half."""

    def plant(readings: Readings, n: int, of: int) -> None:
        for i, r in enumerate(readings):
            if match(r):
                more = by if n >= of // 2 else 0
                readings[i] = replace(r, counters={**r.counters, name: r.counters.get(name, 0) + more})

    return plant


def later(match: Callable[[Reading], bool], back: bool = False, **fields: Any) -> Plant:
    """Return what changes fields from the middle on; with `back`, for three samples."""

    def plant(readings: Readings, n: int, of: int) -> None:
        if n >= of // 2 and not (back and n >= of // 2 + 3):
            _change(readings, match, **fields)

    return plant


def always(match: Callable[[Reading], bool], **fields: Any) -> Plant:
    """Return what changes fields in all samples."""
    return lambda readings, n, of: _change(readings, match, **fields)


def unreadable(match: Callable[[Reading], bool]) -> Plant:
    """Return what makes all counters of a device unreadable from the middle on."""

    def plant(readings: Readings, n: int, of: int) -> None:
        for i, r in enumerate(readings):
            if match(r) and n >= of // 2:
                readings[i] = replace(r, counters={}, missing=dict.fromkeys(r.counters, DENIED))

    return plant


def cleared(match: Callable[[Reading], bool]) -> Plant:
    """Return what sets all counters of a device back to zero in the middle, as a driver that is loaded again does."""
    before: dict[str, int] = {}

    def plant(readings: Readings, n: int, of: int) -> None:
        for i, r in enumerate(readings):
            if match(r):
                if n == of // 2:
                    before.update(r.counters)
                if n >= of // 2:
                    readings[i] = replace(r, counters={k: v - before[k] for k, v in r.counters.items()})

    return plant
