"""Samples as Prometheus metrics for node_exporter's textfile collector, in the classic text format.

Base units and `_total` as Prometheus asks (https://prometheus.io/docs/practices/naming/); counters are the device's
own, so that Prometheus sees their resets and works out the rates. Labels are bus addresses and closed vocabularies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from topocheck.model.base import InputError, known
from topocheck.overtime.history import last_known
from topocheck.overtime.types import SLOWDOWNS, Device, GpuReading, Header, PortReading, Sample
from topocheck.render.quoting import prometheus_label

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_PORT_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "packet_seq_err",
    "local_ack_timeout_err",
)
_HELD_BACK = ("sw_power_cap", "sw_thermal", "hw_thermal", "hw_power_brake")
_REASONS = {reason: name.replace(" ", "_") for reason, name in SLOWDOWNS.items()}


class Exporter:
    """Keeps the latest value of each counter, as not every sample has all of them.

    Raises:
        InputError: prometheus-client is not installed.
    """

    def __init__(self, header: Header) -> None:
        try:
            import prometheus_client  # noqa: F401
        except ImportError:
            raise InputError(
                "Prometheus metrics need prometheus-client: pip install 'topocheck-gpu[formats]'"
            ) from None
        self._header = header
        self._devices = {d.address: d for d in header.devices}
        self._latest: Sample | None = None
        self._silent: dict[str, str] = {}

    def text(self, sample: Sample) -> str:
        """Return all metrics after one more sample."""
        from prometheus_client import CollectorRegistry, generate_latest

        self._latest = last_known([sample] if self._latest is None else [self._latest, sample])
        self._silent = sample.silent
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry).decode("utf-8")

    def collect(self) -> Iterator[Metric]:
        """Return the metrics, as prometheus-client asks for them."""
        from prometheus_client.core import GaugeMetricFamily

        sample = self._latest
        if sample is None:
            return
        made = GaugeMetricFamily("topocheck_watch_sample_timestamp_seconds", "When the last sample was taken.")
        made.add_metric([], self._header.begun_unix_s + sample.at_s)
        yield made
        up = GaugeMetricFamily("topocheck_watch_source_up", "0 where a source did not answer.", labels=["source"])
        for source in ("nvml", "sysfs"):
            up.add_metric([source], float(source not in self._silent))
        yield up
        yield from _gpus(sample, self._devices)
        yield from _nvlinks(sample)
        yield from _functions(sample, self._devices)
        yield from _ports(sample)


def _gauge(name: str, text: str, *labels: str) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"topocheck_{name}", text, labels=labels)


def _counter(name: str, text: str, *labels: str) -> Any:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(f"topocheck_{name}", text, labels=labels)


def _gpus(sample: Sample, devices: dict[str, Device]) -> Iterator[Metric]:
    clock = _gauge("gpu_sm_clock_hertz", "SM clock.", "bdf", "gpu")
    busy = _gauge("gpu_utilization_ratio", "Share of the time in which a kernel ran.", "bdf", "gpu")
    warm = _gauge("gpu_temperature_celsius", "Temperature of the GPU.", "bdf", "gpu")
    lost = _gauge("gpu_lost", "1 where NVML says that the GPU is lost.", "bdf", "gpu")
    reason = _gauge("gpu_slowdown", "1 where the clocks are held back for this reason.", "bdf", "gpu", "reason")
    replays = _counter("gpu_pcie_replays", "PCIe replays.", "bdf", "gpu")
    held = _counter("gpu_held_back_seconds", "Time for which the clocks were held back.", "bdf", "gpu", "reason")
    moved = _counter("gpu_nvlink_bytes", "Bytes over all NVLinks of the GPU.", "bdf", "gpu", "direction")
    for g in sample.gpus:
        labels = [prometheus_label(g.address), _label(g, devices)]
        lost.add_metric(labels, float(g.lost))
        for family, value, unit in (
            (clock, g.clock_sm_mhz, 1e6),
            (busy, g.utilization_percent, 0.01),
            (warm, g.temperature_c, 1.0),
        ):
            if known(value):
                family.add_metric(labels, value * unit)
        if known(g.clock_reasons):
            for bit, name in _REASONS.items():
                reason.add_metric([*labels, name], float(bool(g.clock_reasons & bit)))
        if "pcie_replays" in g.counters:
            replays.add_metric(labels, g.counters["pcie_replays"])
        for name in _HELD_BACK:
            if (ns := g.counters.get(f"{name}_ns")) is not None:
                held.add_metric([*labels, name], ns / 1e9)
        for direction, name in (("transmit", "nvlink_tx_kib"), ("receive", "nvlink_rx_kib")):
            if (kib := g.counters.get(name)) is not None:
                moved.add_metric([*labels, direction], kib * 1024)
    yield from (clock, busy, warm, lost, reason, replays, held, moved)


def _label(g: GpuReading, devices: dict[str, Device]) -> str:
    device = devices.get(g.address)
    return prometheus_label(device.label if device is not None else f"GPU{g.index}")


def _nvlinks(sample: Sample) -> Iterator[Metric]:
    up = _gauge("nvlink_up", "1 where an NVLink is up.", "bdf", "link")
    errors = _counter("nvlink_errors", "Errors of an NVLink.", "bdf", "link", "error")
    for x in sample.nvlinks:
        labels = [prometheus_label(x.address), str(x.link)]
        if known(x.active):
            up.add_metric(labels, float(x.active))
        for name, value in x.counters.items():
            errors.add_metric([*labels, prometheus_label(name)], value)
    yield from (up, errors)


def _functions(sample: Sample, devices: dict[str, Device]) -> Iterator[Metric]:
    width = _gauge("pcie_link_width_lanes", "Lanes that a link negotiated.", "bdf")
    speed = _gauge("pcie_link_speed_transfers_per_second", "Transfers per second and lane.", "bdf")
    most_width = _gauge("pcie_link_max_width_lanes", "Lanes that both ends of a link support.", "bdf")
    most_speed = _gauge("pcie_link_max_speed_transfers_per_second", "Transfers that both ends support.", "bdf")
    aer = _counter("pcie_aer_errors", "Errors that the kernel counted.", "bdf", "severity")
    for f in sample.functions:
        bdf = prometheus_label(f.address)
        if known(f.width_lanes):
            width.add_metric([bdf], f.width_lanes)
        if known(f.speed_gt_s):
            speed.add_metric([bdf], f.speed_gt_s * 1e9)
        for severity in ("correctable", "nonfatal", "fatal"):
            if (value := f.counters.get(f"aer_{severity}")) is not None:
                aer.add_metric([bdf, severity], value)
        device = devices.get(f.address)
        if device is not None and known(device.max_width_lanes):
            most_width.add_metric([bdf], device.max_width_lanes)
        if device is not None and known(device.max_speed_gt_s):
            most_speed.add_metric([bdf], device.max_speed_gt_s * 1e9)
    yield from (width, speed, most_width, most_speed, aer)


def _ports(sample: Sample) -> Iterator[Metric]:
    up = _gauge("rdma_port_up", "1 where a port is ACTIVE.", "device", "port")
    rate = _gauge("rdma_port_rate_bytes_per_second", "Rate of a port.", "device", "port")
    moved = _counter("rdma_port_data_bytes", "Bytes that a port moved.", "device", "port", "direction")
    errors = _counter("rdma_port_errors", "Errors of a port.", "device", "port", "error")
    for p in sample.ports:
        _port(p, up, rate, moved, errors)
    yield from (up, rate, moved, errors)


def _port(p: PortReading, up: Any, rate: Any, moved: Any, errors: Any) -> None:
    labels = [prometheus_label(p.device), str(p.port)]
    if known(p.state) or p.gone:
        up.add_metric(labels, float(p.state == "ACTIVE"))
    if known(p.rate_gbit_s):
        rate.add_metric(labels, p.rate_gbit_s * 1e9 / 8)
    for direction, name in (("transmit", "port_xmit_data"), ("receive", "port_rcv_data")):
        if (words := p.counters.get(name)) is not None:
            moved.add_metric([*labels, direction], words * 4)
    for name in _PORT_ERRORS:
        if (value := p.counters.get(name)) is not None:
            errors.add_metric([*labels, name], value)
