"""A sample as a flat list of series, of which the next sample only says what changed."""

from __future__ import annotations

from typing import Any

import msgspec

from topocheck.overtime.types import (
    SLOWDOWNS,
    FunctionReading,
    GpuEvent,
    GpuReading,
    Kind,
    NvLinkReading,
    PortReading,
    Reading,
    Sample,
    sample_of,
)

FORMS: dict[Kind, type[Reading]] = {
    Kind.GPU: GpuReading,
    Kind.FUNCTION: FunctionReading,
    Kind.NVLINK: NvLinkReading,
    Kind.PORT: PortReading,
}
_IDENTITY = {
    Kind.GPU: ("address", "index"),
    Kind.FUNCTION: ("address",),
    Kind.NVLINK: ("address", "link"),
    Kind.PORT: ("device", "port"),
}
_OF_NAMES = ("counters", "missing")
_PARTS = {"gpus": Kind.GPU, "functions": Kind.FUNCTION, "nvlinks": Kind.NVLINK, "ports": Kind.PORT}
_STATES = frozenset(("lost", "suspended", "gone", "active", "state", "phys_state", "rate_gbit_s", "width_lanes"))
_RESTLESS = frozenset(
    (
        "nvlink_tx_kib",
        "nvlink_rx_kib",
        "pcie_recoveries",
        "sw_power_cap_ns",
        "port_xmit_data",
        "port_rcv_data",
        "port_xmit_packets",
        "port_rcv_packets",
        "port_xmit_wait",
        "out_of_sequence",
        "aer_correctable",
    )
)
"""Counters that grow on a healthy machine; all others count errors."""
_SLOW = int(sum(SLOWDOWNS))
_UNITS = {
    "nvlink_tx_kib": 1 << 14,
    "nvlink_rx_kib": 1 << 14,
    "port_xmit_data": 1 << 22,
    "port_rcv_data": 1 << 22,
}
"""Traffic is recorded in units of 16 MiB, rounded down: what is left out is never more than that in all."""


def counts_errors(counter: str) -> bool:
    """Tell whether a counter is one of errors, and not of traffic or of what happens on a healthy machine."""
    return counter not in _RESTLESS


class Series(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value over time: a field of a device, or a counter of it, or why that could not be read.

    An empty field stands for the device itself: it is in the sample, whatever is known of it. Whole numbers are
    recorded in units of `unit`, rounded down.
    """

    of: Kind
    id: dict[str, str | int]
    field: str = ""
    name: str = ""
    unit: int = 1

    def tells(self) -> int:
        """Return the bits whose change is worth keeping a sample for: none, all (-1), or some of a number."""
        if self.field == "clock_reasons":
            return _SLOW
        counts = self.field == "counters" and counts_errors(self.name)
        width = self.of is Kind.GPU and self.field == "pcie_width_lanes"
        return -1 if counts or width or self.field in _STATES else 0


Key = tuple[Any, ...]
"""Kind, identity, field and name of a series."""


def flat(sample: Sample) -> dict[Key, Any]:
    """Return key -> value of all series of a sample."""
    out: dict[Key, Any] = {}
    built = msgspec.to_builtins(sample)
    for part, kind in _PARTS.items():
        names = _IDENTITY[kind]
        for reading in built.get(part, ()):
            start = (kind, *(reading.pop(n) for n in names))
            out[*start, "", ""] = True
            for field, value in reading.items():
                if field in _OF_NAMES:
                    out.update({(*start, field, name): one for name, one in value.items()})
                else:
                    out[*start, field, ""] = value
    return out


def series_of(key: Key) -> Series:
    """Return the series that a key of `flat` names."""
    kind, *ids, field, name = key
    unit = _UNITS.get(name, 1) if field == "counters" else 1
    return Series(of=kind, id=dict(zip(_IDENTITY[kind], ids, strict=True)), field=field, name=name, unit=unit)


class Shape:
    """Which series a sample has, ready to make samples from their values."""

    def __init__(self, series: list[Series], members: tuple[int, ...]) -> None:
        self.members = members
        self._readings: dict[Key, tuple[Series, list[tuple[int, Series]]]] = {}
        for i in members:
            x = series[i]
            self._readings.setdefault((x.of, *x.id.items()), (x, []))[1].append((i, x))

    def sample(self, values: list[Any], at_s: float, silent: dict[str, str], events: tuple[GpuEvent, ...]) -> Sample:
        """Return the sample with these values of all series.

        Raises:
            msgspec.ValidationError: a value is none of its field.
        """
        parts: dict[Kind, list[Reading]] = {kind: [] for kind in Kind}
        for first, members in self._readings.values():
            fields: dict[str, Any] = dict(first.id)
            for i, x in members:
                if x.field in _OF_NAMES:
                    value = values[i] * x.unit if x.unit != 1 and type(values[i]) is int else values[i]
                    fields.setdefault(x.field, {})[x.name] = value
                elif x.field:
                    fields[x.field] = values[i]
            parts[first.of].append(msgspec.convert(fields, FORMS[first.of]))
        found = [r for kind in Kind for r in parts[kind]]
        return sample_of(at_s, found, silent, events)
