"""Links that changed: slower or narrower under load, down, or gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from topocheck.checks.registry import Context, check, not_applicable
from topocheck.checks.watch.run import READS, history_in, said
from topocheck.knowledge.rates import generation_of
from topocheck.model.base import Evidence, Finding, Missing, State, known
from topocheck.overtime.history import History
from topocheck.overtime.types import Device, FunctionReading, Kind, NvLinkReading, Reading

_ENOUGH = 3
"""Samples under load that must be slow: a link needs a moment to speed up when the load begins."""
R = TypeVar("R", bound=Reading)


@check("watch.link-downshift", severity=State.FAIL, reads=READS)
def link_downshift(context: Context) -> Iterator[Finding]:
    """A PCIe link or a port runs slower under load than it can, or than it did.

    Looks at:
        Speed of each GPU's link in the samples in which the GPU was under load; width of the links of GPUs and NICs in
        all samples; both against what both ends can do, and against what was seen before. The rate of active ports.

    Why it matters:
        A GPU at rest slows its link to save power, so only a link that is slow under load is a fault. One that loses
        lanes or speed while it runs has errors.

    Fix:
        Reseat the card, riser or cable; see the link's AER counters.

    Does not apply:
        To the speed of GPUs that were never under load, to emulated links of virtual machines and to suspended devices.
    """
    history = history_in(context)
    points = {d.address: list(_points(history, d)) for d in history.header.devices}
    ports = history.ports()
    if not any(points.values()) and not ports:
        raise not_applicable("no link could be read")
    for device in history.header.devices:
        mine = points[device.address]
        yield from _width(device, [w for _, w, _ in mine if w])
        yield from _speed(device, [s for s, _, busy in mine if s and busy])
    for subject, series in ports.items():
        rates = [r.rate_gbit_s for _, r in series if r.state == "ACTIVE" and known(r.rate_gbit_s)]
        if rates and rates[-1] < max(rates):
            yield Finding(
                state=State.FAIL,
                subject=subject,
                title=f"the port fell from {max(rates):g} to {rates[-1]:g} Gb/s",
                consequence="everything that crosses this port is slowed to its rate",
                evidence=(Evidence(f"/sys/class/infiniband/{subject.replace('/', '/ports/')}/rate", f"{rates[-1]:g}"),),
                rule="a port keeps its rate",
                fix="reseat or replace the cable and transceivers",
            )


def _points(history: History, device: Device) -> Iterator[tuple[float | None, int | None, bool]]:
    """Return (GT/s, lanes, under load) of a device's link, sample by sample."""
    for s in history.samples:
        function = next((f for f in s.functions if f.address == device.address), None)
        gpu = next((g for g in s.gpus if g.address == device.address), None)
        if (function is not None and (function.suspended or function.gone)) or (gpu is not None and gpu.lost):
            continue
        speed = function.speed_gt_s if function is not None else None
        width = function.width_lanes if function is not None else None
        if not isinstance(speed, float) and gpu is not None and known(gpu.pcie_gen) and known(device.max_speed_gt_s):
            speed = _gt_s(gpu.pcie_gen)
        if not isinstance(width, int) and gpu is not None:
            width = gpu.pcie_width_lanes
        busy = gpu.busy is True if gpu is not None else not device.is_gpu
        yield (speed if isinstance(speed, float) else None, width if isinstance(width, int) else None, busy)


def _gt_s(generation: int) -> float | None:
    try:
        return generation_of(generation).speed_gt_s
    except ValueError:
        return None


def _width(device: Device, seen: list[int]) -> Iterator[Finding]:
    """A link that rests keeps its lanes: one narrow reading that lasts is enough."""
    expected = _expected(seen, device.max_width_lanes)
    below = [w < expected for w in seen]
    if any(below) and (below[-1] or sum(below) > 1):
        yield _slow(device, "width", seen, expected, "x{:g}")


def _speed(device: Device, seen: list[float]) -> Iterator[Finding]:
    """A link needs a moment to speed up when the load begins, so that one slow reading of many is none."""
    expected = _expected(seen, device.max_speed_gt_s)
    below = sum(s < expected for s in seen)
    if below >= _ENOUGH or (seen and len(seen) < _ENOUGH and seen[-1] < expected):
        yield _slow(device, "speed", seen, expected, "{:g} GT/s")


def _expected(seen: Sequence[float], both_ends: float | Missing) -> float:
    return max([*seen, both_ends] if known(both_ends) else seen, default=0.0)


def _slow(device: Device, what: str, seen: Sequence[float], expected: float, form: str) -> Finding:
    came_back = seen[-1] >= expected
    was_seen = max(seen) >= expected
    slow = min(seen) if came_back else seen[-1]
    below = sum(v < expected for v in seen)
    load = " under load" if what == "speed" and device.is_gpu else ""
    return Finding(
        state=State.FAIL if was_seen and not came_back else State.WARN,
        subject=f"{device.address} {device.label}",
        title=f"PCIe link {'was' if came_back else 'is'} at {form.format(slow)}{load} in {below} of {len(seen)} "
        + ("samples; before, it was at " if was_seen and not came_back else "samples; both ends support ")
        + form.format(expected),
        consequence="copies over this link are slowed in proportion",
        evidence=(Evidence(f"/sys/bus/pci/devices/{device.address}/current_link_{what}", said(seen)),),
        rule=f"{form.format(expected)}{load}",
        fix="reseat the card, riser or cable; see the link's AER counters",
    )


@check("watch.nvlink-down", severity=State.FAIL, reads=READS)
def nvlink_down(context: Context) -> Iterator[Finding]:
    """An NVLink went down while the machine was watched.

    Looks at:
        The state of each NVLink over time.

    Why it matters:
        NCCL uses fewer links, or its communicators end with an error.

    Fix:
        See dmesg for Xid 74; reset the GPU; have the baseboard, bridge or cable replaced where it returns.

    Does not apply:
        To links that were down all the time, and without NVLink.
    """
    history = history_in(context)
    links = _series(history, Kind.NVLINK, NvLinkReading)
    if not links:
        raise not_applicable("no NVLink was sampled")
    for subject, series in links.items():
        states = [r.active for r in series if known(r.active)]
        if True in states and False in states[states.index(True) :]:
            down = not states[-1]
            yield Finding(
                state=State.FAIL if down else State.WARN,
                subject=subject,
                title="the link went down" + ("" if down else " and came back"),
                consequence="GPU-to-GPU bandwidth falls, and running jobs may end",
                evidence=(Evidence(f"NVML DeviceGetNvLinkState {subject}", said(map(int, states))),),
                rule="a link that is up stays up",
                fix="see dmesg for Xid 74; reset the GPU",
            )


@check("watch.device-gone", severity=State.FAIL, reads=READS)
def device_gone(context: Context) -> Iterator[Finding]:
    """A GPU or NIC was lost while the machine was watched.

    Looks at:
        What NVML says of each GPU, and whether each function and port is still there.

    Why it matters:
        Jobs on it have ended, and it takes a reset or reboot to get it back.

    Fix:
        See dmesg (Xid 79, pciehp, mlx5); reset the device or reboot; where it returns, have it replaced.

    Does not apply:
        Where nothing was there in the first place.
    """
    history = history_in(context)
    for address, gpus in history.gpus().items():
        if any(r.lost for _, r in gpus):
            yield _gone(history.label(address), "NVML reports that the GPU is lost", gpus[-1][1].lost)
    for address, functions in _series(history, Kind.FUNCTION, FunctionReading).items():
        if any(r.gone for r in functions) and not functions[0].gone:
            yield _gone(history.label(address), "the PCI function is no longer there", functions[-1].gone)
    for subject, ports in history.ports().items():
        if any(r.gone for _, r in ports) and not ports[0][1].gone:
            yield _gone(subject, "the RDMA port is no longer there", ports[-1][1].gone)


def _gone(subject: str, what: str, still: bool) -> Finding:
    return Finding(
        state=State.FAIL if still else State.WARN,
        subject=subject,
        title=what if still else f"{what} in some samples; it came back",
        consequence="jobs on this device have ended",
        evidence=(Evidence("topocheck watch", what),),
        rule="devices stay",
        fix="see dmesg (Xid 79, pciehp, mlx5); reset the device or reboot",
    )


def _series(history: History, kind: Kind, form: type[R]) -> dict[str, list[R]]:
    """Return subject -> its readings of a kind, in order."""
    return {s: [r for _, r in series if isinstance(r, form)] for s, series in history.readings[kind].items()}
