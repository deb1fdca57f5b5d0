"""Samples as they come: a table that renews itself on a terminal, a line for each in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topocheck.model.base import known
from topocheck.overtime.history import History
from topocheck.overtime.types import SLOWDOWNS, Device, GpuReading, Header, PortReading, Reading, Sample
from topocheck.render.quoting import one_line

_KIB, _BYTES_OF_DATA = 1024, 4


class Rates:
    """Rates between each sample and the one before it in which a counter could be read."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

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


class Row(tuple[str, ...]):
    """One device of one sample as cells: device, state, load, link, traffic, remarks."""

    __slots__ = ()


HEAD = ("device", "clock", "load", "link", "GB/s", "")


def rows(sample: Sample, header: Header, rates: Rates) -> list[Row]:
    """Return the cells of each GPU and port."""
    devices = {d.address: d for d in header.devices}
    speeds = {f.address: (f.speed_gt_s, f.width_lanes) for f in sample.functions}
    out = [_gpu(g, devices.get(g.address), speeds.get(g.address, ()), sample.at_s, rates) for g in sample.gpus]
    return out + [_port(p, sample.at_s, rates) for p in sample.ports]


def _gpu(g: GpuReading, device: Device | None, link: tuple[Any, ...], at_s: float, rates: Rates) -> Row:
    label = device.label if device is not None else f"GPU{g.index}"
    if g.lost or g.suspended:
        return Row((label, "lost" if g.lost else "suspended", "", "", "", ""))
    gb_s = rates.gb_s(at_s, g, ("nvlink_tx_kib", "nvlink_rx_kib"), _KIB)
    reasons = [n for b, n in SLOWDOWNS.items() if known(g.clock_reasons) and g.clock_reasons & b]
    if link and known(link[0]) and known(link[1]):
        shown = f"{link[0]:g} GT/s x{link[1]}"
    elif known(g.pcie_gen) and known(g.pcie_width_lanes):
        shown = f"gen {g.pcie_gen} x{g.pcie_width_lanes}"
    else:
        shown = "-"
    return Row(
        (
            label,
            f"{g.clock_sm_mhz} MHz" if known(g.clock_sm_mhz) else "-",
            f"{g.utilization_percent} %" if known(g.utilization_percent) else "-",
            shown,
            "-" if gb_s is None else f"{gb_s:.1f}",
            ", ".join(reasons),
        )
    )


def _port(p: PortReading, at_s: float, rates: Rates) -> Row:
    gb_s = rates.gb_s(at_s, p, ("port_xmit_data", "port_rcv_data"), _BYTES_OF_DATA)
    rate = f"{p.rate_gbit_s:g} Gb/s" if known(p.rate_gbit_s) and p.state == "ACTIVE" else "-"
    state = "gone" if p.gone else p.state if known(p.state) else "-"
    return Row((p.subject, "", state, rate, "-" if gb_s is None else f"{gb_s:.1f}", ""))


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
        moved = [float(c[4]) for c in cells if c[4] not in ("", "-")]
        if moved:
            words.append(f"{sum(moved):.1f} GB/s")
        words += [f"{source}: {why}" for source, why in sample.silent.items()]
        return one_line("  ".join(words) + self._changes(cells))

    def _changes(self, cells: list[Row]) -> str:
        """Return what changed of links, states and slowdowns; clocks, load and traffic always do."""
        now = {c[0]: (c[3], c[5], c[2] if not c[1] else "") for c in cells}
        changed = [
            f"{label}: {' '.join(filter(None, self._before[label])) or 'none'} -> {' '.join(filter(None, state))}"
            for label, state in now.items()
            if label in self._before and self._before[label] != state
        ]
        self._before = now
        return "".join(f"; {text}" for text in changed)


class LiveTable:
    """The table on a terminal; what is shown last stays."""

    def __init__(self, header: Header, *, colour: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self._header = header
        self._rates = Rates()
        self._live = Live(console=Console(no_color=not colour, highlight=False, markup=False), auto_refresh=False)
        self._live.start()

    def show(self, sample: Sample) -> None:
        """Show a sample."""
        from rich.table import Table
        from rich.text import Text

        title = f"{sample.at_s:.0f} s" + "".join(f"  {s}: {why}" for s, why in sample.silent.items())
        table = Table(*HEAD, box=None, title=Text(one_line(title)), title_justify="left")
        for row in rows(sample, self._header, self._rates):
            table.add_row(*(Text(one_line(c), style="yellow" if i == 5 else "") for i, c in enumerate(row)))
        self._live.update(table, refresh=True)

    def close(self) -> None:
        """Leave the terminal as it is."""
        self._live.stop()


def summary(history: History) -> str:
    """Return what was sampled, in one line."""
    n = len(history.samples)
    return f"{n} sample{'' if n == 1 else 's'} in {history.seconds:.0f} s\n"
