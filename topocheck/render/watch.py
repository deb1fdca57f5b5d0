"""Samples as they come: the cells of a table, and a line for each in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from topocheck.model.base import known
from topocheck.overtime.history import History
from topocheck.overtime.types import SLOWDOWNS, Device, GpuReading, Header, PortReading, Reading, Sample
from topocheck.render.quoting import one_line

_KIB, _BYTES_OF_DATA = 1024, 4


class Rates:
    """Rates between each sample and the one before it in which a counter could be read."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[float, int]] = {}
        self._processes: dict[str, str] = {}
        self._pcie: dict[str, str] = {}

    def pcie(self, g: GpuReading) -> str:
        """Return both directions over PCIe when the GPU was last asked; not every sample asks."""
        if known(g.pcie_tx_kb_s) and known(g.pcie_rx_kb_s):
            self._pcie[g.address] = f"{(g.pcie_tx_kb_s + g.pcie_rx_kb_s) / 1e6:.1f}"
        return self._pcie.get(g.address, "-")

    def processes(self, g: GpuReading) -> str:
        """Return how many processes a GPU had when it was last asked; not every sample asks."""
        if known(g.pids):
            self._processes[g.address] = str(len(g.pids))
        return self._processes.get(g.address, "-")

    def gb_s(self, at_s: float, reading: Reading, names: Sequence[str], unit_bytes: int) -> float | None:
        """Return 10^9 bytes a second of some counters together; None where it is not known."""
        total = None
        for name in names:
            value = reading.counters.get(name)
            before = self._last.get((reading.subject, name))
            if value is None:
                continue
            self._last[reading.subject, name] = (at_s, value)
            if before is not None and value >= before[1] and at_s > before[0]:
                total = (total or 0.0) + (value - before[1]) * unit_bytes / (at_s - before[0]) / 1e9
        return total


class Row(NamedTuple):
    """One device of one sample as cells. `load` is a port's state, `gb_s` its traffic, or a GPU's over NVLink."""

    device: str
    clock: str = ""
    temperature: str = ""
    load: str = ""
    link: str = ""
    gb_s: str = ""
    pcie_gb_s: str = ""
    processes: str = ""
    remarks: str = ""


HEAD = Row("device", "clock", "temp", "load", "link", "GB/s", "PCIe GB/s", "procs", "held back")


def rows(sample: Sample, header: Header, rates: Rates) -> list[Row]:
    """Return the cells of each GPU and port."""
    devices = {d.address: d for d in header.devices}
    speeds = {f.address: (f.speed_gt_s, f.width_lanes) for f in sample.functions}
    out = [_gpu(g, devices.get(g.address), speeds.get(g.address, ()), sample.at_s, rates) for g in sample.gpus]
    return out + [_port(p, sample.at_s, rates) for p in sample.ports]


def _gpu(g: GpuReading, device: Device | None, link: tuple[Any, ...], at_s: float, rates: Rates) -> Row:
    label = device.label if device is not None else f"GPU{g.index}"
    if g.lost or g.suspended:
        return Row(label, "lost" if g.lost else "suspended")
    reasons = [n for b, n in SLOWDOWNS.items() if known(g.clock_reasons) and g.clock_reasons & b]
    if link and known(link[0]) and known(link[1]):
        shown = f"{link[0]:g} GT/s x{link[1]}"
    elif known(g.pcie_gen) and known(g.pcie_width_lanes):
        shown = f"gen {g.pcie_gen} x{g.pcie_width_lanes}"
    else:
        shown = "-"
    return Row(
        device=label,
        clock=f"{g.clock_sm_mhz} MHz" if known(g.clock_sm_mhz) else "-",
        temperature=f"{g.temperature_c} °C" if known(g.temperature_c) else "-",
        load=f"{g.utilization_percent} %" if known(g.utilization_percent) else "-",
        link=shown,
        gb_s=_rate(rates.gb_s(at_s, g, ("nvlink_tx_kib", "nvlink_rx_kib"), _KIB)),
        pcie_gb_s=rates.pcie(g),
        processes=rates.processes(g),
        remarks=", ".join(reasons),
    )


def _rate(gb_s: float | None) -> str:
    return "-" if gb_s is None else f"{gb_s:.1f}"


def _port(p: PortReading, at_s: float, rates: Rates) -> Row:
    return Row(
        device=p.subject,
        load="gone" if p.gone else p.state if known(p.state) else "-",
        link=f"{p.rate_gbit_s:g} Gb/s" if known(p.rate_gbit_s) and p.state == "ACTIVE" else "-",
        gb_s=_rate(rates.gb_s(at_s, p, ("port_xmit_data", "port_rcv_data"), _BYTES_OF_DATA)),
    )


class Lines:
    """One line for a sample: what is the same for all is said once, and what changed since the last is named."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._rates = Rates()
        self._before: dict[str, tuple[str, str, str]] = {}

    def line(self, sample: Sample) -> str:
        """Return the line of a sample."""
        cells = rows(sample, self._header, self._rates)
        gpus = [g for g in sample.gpus if not g.lost and not g.suspended]
        clocks = [g.clock_sm_mhz for g in gpus if known(g.clock_sm_mhz)]
        busy = sum(g.busy is True for g in gpus)
        active = sum(p.state == "ACTIVE" for p in sample.ports)
        words = [f"{sample.at_s:8.1f} s"]
        if sample.gpus:
            words.append(f"{busy} of {len(sample.gpus)} GPUs busy")
        if clocks:
            words.append(f"{min(clocks)}-{max(clocks)} MHz")
        if sample.ports:
            words.append(f"{active} of {len(sample.ports)} ports ACTIVE")
        moved = [float(c.gb_s) for c in cells if c.gb_s not in ("", "-")]
        if moved:
            words.append(f"{sum(moved):.1f} GB/s")
        words += [f"{source}: {why}" for source, why in sample.silent.items()]
        return one_line("  ".join(words) + self._changes(cells))

    def _changes(self, cells: list[Row]) -> str:
        """Return what changed of links, states and slowdowns; clocks, load and traffic always do."""
        now = {c.device: (c.link, c.remarks, c.load if not c.clock else "") for c in cells}
        changed = [
            f"{label}: {' '.join(filter(None, self._before[label])) or 'none'} -> {' '.join(filter(None, state))}"
            for label, state in now.items()
            if label in self._before and self._before[label] != state
        ]
        self._before = now
        return "".join(f"; {text}" for text in changed)


def summary(history: History) -> str:
    """Return what was sampled, in one line."""
    n = len(history.samples)
    return f"{n} sample{'' if n == 1 else 's'} in {history.seconds:.0f} s\n"
