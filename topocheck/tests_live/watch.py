"""Looks at the GPUs while they are measured: clocks, slowdowns, link state, strangers.

Runs as a process of its own, so that a hang in NVML holds up nothing: `python -m topocheck.tests_live.watch FD I,J`
writes one JSON object per GPU and look to the descriptor until its parent ends it.
"""

from __future__ import annotations

import os
import sys
from time import monotonic, sleep
from typing import Any

import msgspec

from topocheck.host.base import HostError
from topocheck.model.measurement import DeviceState, Measurement
from topocheck.tests_live.supervise import Process

PERIOD_S = 0.1
SLOWDOWNS = {0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "hardware power brake"}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that hold a GPU back (nvml.h, nvmlClocksEventReason*)."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one GPU at `at` (CLOCK_MONOTONIC seconds, the same for all processes of a machine)."""

    at: float
    index: int
    clock_mhz: int | None = None
    reasons: int | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    temperature_c: int | None = None
    replays: int | None = None
    pids: tuple[int, ...] | None = None


def look(index: int) -> Look:
    """Ask NVML once about one GPU; what it does not answer is None."""
    from topocheck.host import nvml_calls

    def ask(call: str, *args: int) -> Any:
        try:
            return nvml_calls.ask(call, index, *args)
        except HostError:
            return None

    processes = ask("DeviceGetComputeRunningProcesses")
    return Look(
        at=monotonic(),
        index=index,
        clock_mhz=ask("DeviceGetClockInfo", 1),
        reasons=ask("DeviceGetCurrentClocksEventReasons"),
        pcie_gen=ask("DeviceGetCurrPcieLinkGeneration"),
        pcie_width=ask("DeviceGetCurrPcieLinkWidth"),
        temperature_c=ask("DeviceGetTemperature", 0),
        replays=ask("DeviceGetPcieReplayCounter"),
        pids=None if processes is None else tuple(p["pid"] for p in processes),
    )


class Watch:
    """The parent's side. `devices` maps NVML's index to the PCI address."""

    def __init__(self, devices: dict[int, str]) -> None:
        self.devices = devices
        self.looks: list[Look] = []
        indices = ",".join(map(str, devices))
        argv = [sys.executable, "-m", "topocheck.tests_live.watch", "{fd}", indices]
        self._process = Process(argv) if devices else None

    def collect(self) -> None:
        """Take what has come."""
        while self._process is not None:
            try:
                event = self._process.event(monotonic())
            except TimeoutError:
                return
            if event is None:
                return
            self.looks.append(msgspec.convert(event, Look))

    def close(self) -> None:
        """End the process."""
        self.collect()
        if self._process is not None:
            self._process.end(0.2)


def disturbance(looks: list[Look], before: dict[int, frozenset[int]], ours: frozenset[int]) -> str:
    """Return what in these looks disturbs a measurement; the empty text for nothing.

    In a container NVML gives the host's process numbers, so our own child may go by a number we do not know: one
    unknown process per GPU is taken for it where none of ours is listed.
    """
    words: list[str] = []
    for x in looks:
        for bit, name in SLOWDOWNS.items():
            if x.reasons is not None and x.reasons & bit:
                words.append(f"GPU{x.index} was held back: {name}")
        old = before.get(x.index, frozenset())
        if old:
            words.append(f"GPU{x.index} is shared with process {', '.join(map(str, sorted(old)))}")
        if x.pids is not None:
            new = frozenset(x.pids) - old - ours
            known = bool(frozenset(x.pids) & ours)
            if len(new) > (0 if known else 1):
                words.append(f"another process came to GPU{x.index}")
    return "; ".join(dict.fromkeys(words))


def device_states(
    looks: list[Look], devices: dict[int, str], before: dict[int, frozenset[int]]
) -> tuple[DeviceState, ...]:
    """Return the extremes of all looks, per GPU."""
    out = []
    for index, address in devices.items():
        mine = [x for x in looks if x.index == index]
        clocks = [x.clock_mhz for x in mine if x.clock_mhz is not None]
        reasons = {n for x in mine for b, n in SLOWDOWNS.items() if x.reasons is not None and x.reasons & b}
        replays = [x.replays for x in mine if x.replays is not None]
        links = [(x.pcie_gen, x.pcie_width) for x in mine if x.pcie_gen and x.pcie_width]
        best = max(links, default=(None, None), key=lambda p: (p[0] or 0, p[1] or 0))
        warm = [x.temperature_c for x in mine if x.temperature_c is not None]
        out.append(
            DeviceState(
                address=address,
                samples=len(mine),
                clock_sm_min_mhz=min(clocks, default=None),
                clock_sm_max_mhz=max(clocks, default=None),
                pcie_gen=best[0],
                pcie_width=best[1],
                event_reasons=tuple(sorted(reasons)),
                temperature_max_c=max(warm, default=None),
                other_processes=tuple(sorted(before.get(index, ()))),
                replays=replays[-1] - replays[0] if replays else None,
            )
        )
    return tuple(out)


def disturbed(m: Measurement, words: str) -> Measurement:
    """Return the measurement with what disturbed it."""
    return msgspec.structs.replace(m, disturbed=words) if words else m


def main() -> None:
    """Look until the parent is gone."""
    from topocheck.tests_live.child import die_with_parent

    die_with_parent()
    fd, indices = int(sys.argv[1]), [int(i) for i in sys.argv[2].split(",")]
    while True:
        for index in indices:
            line = msgspec.json.encode(look(index)) + b"\n"
            try:
                os.write(fd, line)
            except OSError:
                return
        sleep(PERIOD_S)


if __name__ == "__main__":
    main()
