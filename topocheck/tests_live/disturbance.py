"""What disturbs a measurement: slowdowns, other processes, and the state of GPUs and links while it ran."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

from msgspec.structs import replace

from topocheck.model.base import known, value_or
from topocheck.model.measurement import DeviceState, Measurement
from topocheck.monitor.child import Job
from topocheck.monitor.plan import Plan, PlannedGpu
from topocheck.monitor.sampler import Feed
from topocheck.overtime.counters import width as width_of
from topocheck.overtime.growth import growth
from topocheck.overtime.types import SLOWDOWNS, GpuReading, Kind

PERIOD_S = 0.1


class Look(NamedTuple):
    """A reading of a GPU at `at` (CLOCK_MONOTONIC seconds)."""

    at: float
    gpu: GpuReading


class Watch:
    """The sampler of the GPUs that a run measures. `devices` maps NVML's index to the PCI address."""

    def __init__(self, devices: dict[int, str]) -> None:
        self.looks: list[Look] = []
        plan = Plan(gpus=tuple(PlannedGpu(index=i, address=a) for i, a in devices.items()), counters=False)
        self._feed = Feed("nvml", Job(plan=plan, start=monotonic(), interval_s=PERIOD_S)) if devices else None

    def collect(self) -> None:
        """Take what has come."""
        while self._feed is not None and (tick := self._feed.receive(monotonic())) is not None:
            self.looks += [Look(tick.at, g) for g in tick.sample.gpus]

    def close(self) -> None:
        """End the process."""
        self.collect()
        if self._feed is not None:
            self._feed.close()


def disturbance(looks: list[Look], before: dict[int, frozenset[int]], ours: frozenset[int]) -> str:
    """Return what in these looks disturbs a measurement; the empty text for nothing.

    In a container NVML gives the host's process numbers, so our own child may go by a number we do not know: one
    unknown process per GPU is taken for it where none of ours is listed.
    """
    words: list[str] = []
    for x in (look.gpu for look in looks):
        for bit, name in SLOWDOWNS.items():
            if value_or(x.clock_reasons, 0) & bit:
                words.append(f"GPU{x.index} was held back: {name}")
        old = before.get(x.index, frozenset())
        if old:
            words.append(f"GPU{x.index} is shared with process {', '.join(map(str, sorted(old)))}")
        if known(x.pids):
            new = frozenset(x.pids) - old - ours
            listed = bool(frozenset(x.pids) & ours)
            if len(new) > (0 if listed else 1):
                words.append(f"another process came to GPU{x.index}")
    return "; ".join(dict.fromkeys(words))


def device_states(
    looks: list[Look], devices: dict[int, str], before: dict[int, frozenset[int]]
) -> tuple[DeviceState, ...]:
    """Return the extremes of all looks, per GPU."""
    out = []
    for index, address in devices.items():
        mine = [x.gpu for x in looks if x.gpu.index == index]
        clocks = [x.clock_sm_mhz for x in mine if known(x.clock_sm_mhz)]
        reasons = {n for x in mine for b, n in SLOWDOWNS.items() if value_or(x.clock_reasons, 0) & b}
        replays = [x.counters["pcie_replays"] for x in mine if "pcie_replays" in x.counters]
        links = [(value_or(x.pcie_gen, 0), value_or(x.pcie_width_lanes, 0)) for x in mine]
        gen, width = max((p for p in links if all(p)), default=(None, None))
        warm = [x.temperature_c for x in mine if known(x.temperature_c)]
        out.append(
            DeviceState(
                address=address,
                samples=len(mine),
                clock_sm_min_mhz=min(clocks, default=None),
                clock_sm_max_mhz=max(clocks, default=None),
                pcie_gen=gen,
                pcie_width=width,
                event_reasons=tuple(sorted(reasons)),
                temperature_max_c=max(warm, default=None),
                other_processes=tuple(sorted(before.get(index, ()))),
                replays=growth(enumerate(replays), width_of(Kind.GPU, "pcie_replays")).increase if replays else None,
            )
        )
    return tuple(out)


def disturbed(m: Measurement, words: str) -> Measurement:
    """Return the measurement with what disturbed it."""
    return replace(m, disturbed=words) if words else m
