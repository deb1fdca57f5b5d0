"""GPUs over time: slowdowns, and stragglers among siblings."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.watch.run import READS, history_in, said
from topocheck.knowledge.xids import EVENTS, HANDLED, MINOR_EVENTS, XID_EVENT, XIDS
from topocheck.model.base import Evidence, Finding, State, known
from topocheck.overtime.types import SLOWDOWNS, ClockReason, GpuEvent, GpuReading, Kind

_SHARE = 0.05
_SLOWER_BY = 0.15
_FULLY_BUSY_PERCENT = 90
_ENOUGH = 3
_TIMES = {
    "sw_thermal_ns": ClockReason.SW_THERMAL,
    "hw_thermal_ns": ClockReason.HW_THERMAL,
    "hw_power_brake_ns": ClockReason.HW_POWER_BRAKE,
}


@check("watch.throttled", severity=State.WARN, reads=READS, thresholds=("share",))
def throttled(context: Context) -> Iterator[Finding]:
    """A GPU was held back by heat, by a power brake or by its hardware.

    Looks at:
        The clock event reasons of each sample, and the times that the driver counts for each reason. Warns from 5 % of
        the samples and at least two, or 5 % of the time. The power cap is not among them: a GPU under full load
        is held at it by design.

    Why it matters:
        Clocks fall, on one GPU, and all ranks of a job wait for it.

    Fix:
        Thermal: airflow, fans, dust, inlet temperature, cold plate. Power brake: power supplies and the power
        capping of the chassis. See `nvidia-smi -q -d PERFORMANCE`.

    Does not apply:
        Where NVML does not give the reasons.
    """
    history = history_in(context)
    limit = context.threshold("watch.throttled", "share", _SHARE)
    gpus = history.gpus()
    if not any(known(r.clock_reasons) for series in gpus.values() for _, r in series):
        raise not_applicable("no clock event reasons were read")
    for address, series in gpus.items():
        words = [r.clock_reasons for _, r in series if known(r.clock_reasons)]
        times = history.growth[Kind.GPU].get(address, {})
        for reason, name in SLOWDOWNS.items():
            seen = sum(bool(w & reason) for w in words)
            # The driver counts in one more way, which also knows of the time between two samples.
            counted = next((times[t] for t, r in _TIMES.items() if r is reason and t in times), None)
            of_time = counted.increase / 1e9 / counted.seconds if counted is not None and counted.seconds > 0 else 0.0
            if of_time > 1.5:
                of_time = 0.0  # not nanoseconds: no time is longer than what passed
            if not seen and of_time < limit:
                continue
            # A pair of samples far apart says little of the time between; both held back is what there is.
            loud = (seen >= 2 and seen / len(words) >= limit) or of_time >= limit
            yield Finding(
                state=State.WARN if loud else State.NOTE,
                subject=history.label(address),
                title=f"held back ({name}) in {seen} of {len(words)} samples"
                + (f", {100 * of_time:.0f} % of the time" if of_time else ""),
                consequence="clocks fall, and all ranks of a job wait for this GPU",
                evidence=(Evidence(f"NVML DeviceGetCurrentClocksEventReasons {address}", said(map(hex, words))),),
                rule=f"below {100 * limit:g} % of the samples",
                fix="check power supplies and power capping of the chassis"
                if reason is ClockReason.HW_POWER_BRAKE
                else "check airflow, fans and inlet temperature; nvidia-smi -q -d PERFORMANCE",
            )


@check("watch.straggler", severity=State.WARN, reads=READS, thresholds=("slower_by",))
def straggler(context: Context) -> Iterator[Finding]:
    """A GPU under full load runs at lower clocks than its siblings under full load.

    Looks at:
        The median SM clock of each GPU over the samples in which it was at least 90 % busy, against the median of the
        GPUs of the same product: 15 % below is a straggler. Needs three samples of each, and three GPUs.

    Why it matters:
        Ranks of a job do equal work and wait for the slowest.

    Fix:
        Compare temperature, power limit and locked clocks with a sibling's
        (`nvidia-smi -q -d CLOCK,POWER,TEMPERATURE`); a GPU with heavier work may be held at its power cap.

    Does not apply:
        To GPUs with no two siblings under full load.
    """
    history = history_in(context)
    limit = context.threshold("watch.straggler", "slower_by", _SLOWER_BY)
    groups: dict[str, dict[str, float]] = {}
    for address, series in history.gpus().items():
        clocks = [c for _, r in series if (c := _busy_clock(r)) is not None]
        device = history.devices.get(address)
        if len(clocks) >= _ENOUGH and device is not None and known(device.product):
            groups.setdefault(device.product, {})[address] = median(clocks)
    if all(len(g) < _ENOUGH for g in groups.values()):
        raise not_applicable("fewer than three equal GPUs were under full load")
    for clock_of in groups.values():
        middle = median(clock_of.values())
        slow = {a: c for a, c in clock_of.items() if c < (1 - limit) * middle}
        if len(clock_of) < _ENOUGH:
            continue
        for address, clock in slow.items():
            yield Finding(
                state=State.WARN,
                subject=history.label(address),
                title=f"SM clock {clock:.0f} MHz under full load, {middle:.0f} MHz on the median of "
                f"{len(clock_of)} siblings",
                consequence="all ranks of a job wait for this GPU",
                evidence=(Evidence(f"NVML DeviceGetClockInfo {address}", f"median {clock:.0f} MHz"),),
                rule=f"within {100 * limit:g} % of the siblings' median",
                fix="compare temperature, power limit and locked clocks with a sibling's",
            )


def _busy_clock(r: GpuReading) -> int | None:
    busy = known(r.utilization_percent) and r.utilization_percent >= _FULLY_BUSY_PERCENT
    return r.clock_sm_mhz if busy and known(r.clock_sm_mhz) and r.clock_sm_mhz > 0 else None


@check("watch.gpu-events", severity=State.FAIL, reads=READS)
def gpu_events(context: Context) -> Iterator[Finding]:
    """The driver reported a fault of a GPU while the machine was watched.

    Looks at:
        The events that NVML sends without root: Xids of the hardware, uncorrectable memory errors, poisoned memory,
        GPUs that became unavailable. Xids of programs (13, 31, 43, 45) and those that are not known are notes.

    Why it matters:
        Jobs on the GPU end or compute wrong results, and it takes a reset or a reboot to trust it again.

    Fix:
        Drain the node, reset the GPU or reboot, and run dcgmi diag -r 3; where it returns, have it serviced.

    Does not apply:
        Where the driver sends no events.
    """
    history = history_in(context)
    found: dict[tuple[str, int, int], list[GpuEvent]] = {}
    for s in history.samples:
        for e in s.events:
            found.setdefault((e.address, e.type, e.data), []).append(e)
    sent = any("events" not in r.missing for series in history.gpus().values() for _, r in series)
    if not found and not sent:
        raise not_applicable("no GPU's events were sent")
    for (address, type_, number), events in found.items():
        if type_ == XID_EVENT:
            name, what = f"Xid {number}", XIDS.get(number, "none of the known hardware errors")
            state = State.NOTE if number not in XIDS else State.WARN if number in HANDLED else State.FAIL
        else:
            name, what = f"event 0x{type_:x}", EVENTS.get(type_, "not known")
            state = State.NOTE if type_ not in EVENTS else State.WARN if type_ in MINOR_EVENTS else State.FAIL
        times = f", {len(events)} times" if len(events) > 1 else ""
        mig = ", ".join(dict.fromkeys(f"{e.gpu_instance}" for e in events if known(e.gpu_instance)))
        yield Finding(
            state=state,
            subject=history.label(address),
            title=f"{name}: {what}{times}" + (f" (MIG GPU instance {mig})" if mig else ""),
            consequence="jobs on this GPU end, or their results are wrong"
            if state is not State.NOTE
            else "most often a fault of the program that ran",
            evidence=(Evidence(f"NVML EventSetWait {address}", f"type 0x{type_:x} data {number}"),),
            rule="no fault is reported",
            fix=""
            if state is State.NOTE
            else "drain the node, reset the GPU or reboot, run dcgmi diag -r 3; where it returns, have it serviced",
        )
