"""One sample of GPUs by NVML. What one GPU does not answer costs nothing but itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topocheck.host.base import Host
from topocheck.model.base import Missing, Reason
from topocheck.monitor.plan import Plan, PlannedGpu
from topocheck.monitor.read_sysfs import is_suspended
from topocheck.overtime.types import GpuReading, NvLinkReading, Reading
from topocheck.probes.nvml import fields
from topocheck.probes.nvml.queries import RESET_REQUIRED, Asked, as_flag, member
from topocheck.probes.nvml.state import CLOCK_SM, TEMPERATURE_GPU, parse_processes

_ALL_LINKS = (1 << 32) - 1
"""Scope of a throughput field that sums all links of a GPU (nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)."""
_THROUGHPUT = {138: "nvlink_tx_kib", 139: "nvlink_rx_kib"}
_PCIE_TX, _PCIE_RX = 0, 1
"""NVML_PCIE_UTIL_TX_BYTES and _RX_BYTES of nvml.h."""
_FULL = {94: "pcie_replays", **{n: f"pcie_{name}" for n, name in fields.PCIE_ERRORS.items()}}
_THROTTLED = {
    74: "sw_power_cap_ns",
    269: "sw_thermal_ns",
    270: "hw_thermal_ns",
    271: "hw_power_brake_ns",
}
"""NVML_FI_DEV_CLOCKS_EVENT_REASON_*: nanoseconds for which the clocks were held back, since the driver was loaded."""


def read_gpus(host: Host, plan: Plan, *, full: bool) -> list[Reading]:
    """Return the readings of all GPUs of a plan, and of their NVLinks in a full sample."""
    out: list[Reading] = []
    for gpu in plan.gpus:
        out += _gpu(host, gpu, plan, full=full)
    return out


def _gpu(host: Host, gpu: PlannedGpu, plan: Plan, *, full: bool) -> list[Reading]:
    if is_suspended(host, gpu.address):  # NVML would wake it
        return [GpuReading(address=gpu.address, index=gpu.index, suspended=True)]
    asked = Asked(host, gpu.index)
    state: dict[str, Any] = {
        "clock_sm_mhz": asked.integer("DeviceGetClockInfo", CLOCK_SM, keep=False),
        "clock_reasons": asked.integer("DeviceGetCurrentClocksEventReasons", keep=False),
        "pcie_gen": asked.integer("DeviceGetCurrPcieLinkGeneration", keep=False),
        "pcie_width_lanes": asked.integer("DeviceGetCurrPcieLinkWidth", keep=False),
        "temperature_c": asked.integer("DeviceGetTemperature", TEMPERATURE_GPU, keep=False),
    }
    if plan.counters:
        state["performance_state"] = asked.integer("DeviceGetPerformanceState", keep=False)
        state["utilization_percent"] = member(asked.struct("DeviceGetUtilizationRates", keep=False), "gpu")
    if full:
        processes = parse_processes(asked.answer("DeviceGetComputeRunningProcesses", keep=False), "compute")
        state["pids"] = processes if isinstance(processes, Missing) else tuple(p.pid for p in processes)
    if full and plan.counters:
        # NVML's counters of bytes (fields 197 and 198) wrap at 2^32, which a link of gen 5 x16 moves in 68 ms.
        state["pcie_tx_kb_s"] = asked.integer("DeviceGetPcieThroughput", _PCIE_TX, keep=False)
        state["pcie_rx_kb_s"] = asked.integer("DeviceGetPcieThroughput", _PCIE_RX, keep=False)
    counters, missing = _counters(asked, plan, full=full)
    reading = GpuReading(
        address=gpu.address,
        index=gpu.index,
        lost=asked.lost is not None or asked.trouble == RESET_REQUIRED,
        counters=counters,
        missing=missing,
        **state,
    )
    links = _links(asked, gpu) if full and plan.counters else []
    return [reading, *links]


def _counters(asked: Asked, plan: Plan, *, full: bool) -> tuple[dict[str, int], dict[str, Missing]]:
    if not plan.counters:
        replays = asked.integer("DeviceGetPcieReplayCounter", keep=False)
        return ({}, {"pcie_replays": replays}) if isinstance(replays, Missing) else ({"pcie_replays": replays}, {})
    if not full and not plan.traffic:
        return {}, {}
    wanted = {(f, _ALL_LINKS): name for f, name in _THROUGHPUT.items()}
    if full:
        wanted |= {(f, 0): name for f, name in {**_FULL, **_THROTTLED}.items()}
    counters, missing = _fields(asked, wanted)
    if full and "pcie_replays" not in counters:
        replays = asked.integer("DeviceGetPcieReplayCounter", keep=False)
        if isinstance(replays, int):
            counters["pcie_replays"] = replays
            missing.pop("pcie_replays", None)
    return counters, missing


def _fields(asked: Asked, wanted: Mapping[tuple[int, int], str]) -> tuple[dict[str, int], dict[str, Missing]]:
    """Return the counters that were answered, and why others were not; what the driver does not offer is in neither."""
    question = ",".join(f"{field}:{scope}" for field, scope in wanted)
    answer = asked.answer("DeviceGetFieldValues", question, keep=False)
    if isinstance(answer, Missing):
        if answer.reason is Reason.UNSUPPORTED and asked.lost is None:
            return {}, {}
        return {}, dict.fromkeys(wanted.values(), answer)
    counters: dict[str, int] = {}
    missing: dict[str, Missing] = {}
    for key, value in fields.parse_field_values(answer).items():
        name = wanted.get(key)
        if name is not None and isinstance(value, int):
            counters[name] = value
        elif name is not None and isinstance(value, Missing) and value.reason is not Reason.UNSUPPORTED:
            missing[name] = value
    return counters, missing


def _links(asked: Asked, gpu: PlannedGpu) -> list[Reading]:
    out: list[Reading] = []
    names = fields.NVLINK5_ERRORS if gpu.newer_links else fields.NVLINK_ERRORS
    active = {link: as_flag(asked.integer("DeviceGetNvLinkState", link, keep=False)) for link in gpu.links}
    up = [link for link, state in active.items() if state is True]
    wanted = {(f, link): f"{link} {name}" for link in up for f, name in names.items()}
    counters, missing = _fields(asked, wanted) if wanted else ({}, {})
    for link, state in active.items():
        start = f"{link} "
        out.append(
            NvLinkReading(
                address=gpu.address,
                link=link,
                active=state,
                counters={n.removeprefix(start): v for n, v in counters.items() if n.startswith(start)},
                missing={n.removeprefix(start): v for n, v in missing.items() if n.startswith(start)},
            )
        )
    return out
