"""Samples as Prometheus metrics for node_exporter's textfile collector, in the classic text format.

Base units and `_total` as Prometheus asks (https://prometheus.io/docs/practices/naming/); counters are the device's
own, so that Prometheus sees their resets and works out the rates. Labels are bus addresses and closed vocabularies.
"""

from __future__ import annotations

from topocheck.model.base import NOT_RECORDED, known
from topocheck.overtime.history import last_known
from topocheck.overtime.types import SLOWDOWNS, Device, GpuReading, Header, PortReading, Sample
from topocheck.render.formats.metrics import GPU, Families, Metric, gpu_labels

_PORT = ("device", "port")
METRICS = (
    Metric("watch_sample_timestamp_seconds", "When the last sample was taken."),
    Metric("watch_source_up", "0 where a source did not answer.", ("source",)),
    Metric("gpu_sm_clock_hertz", "SM clock.", GPU),
    Metric("gpu_utilization_ratio", "Share of the time in which a kernel ran.", GPU),
    Metric("gpu_temperature_celsius", "Temperature of the GPU.", GPU),
    Metric("gpu_lost", "1 where NVML says that the GPU is lost.", GPU),
    Metric("gpu_slowdown", "1 where the clocks are held back for this reason.", (*GPU, "reason")),
    Metric("gpu_pcie_replays", "PCIe replays.", GPU, counter=True),
    Metric("gpu_held_back_seconds", "Time for which the clocks were held back.", (*GPU, "reason"), counter=True),
    Metric("gpu_nvlink_bytes", "Bytes over all NVLinks of the GPU.", (*GPU, "direction"), counter=True),
    Metric("nvlink_up", "1 where an NVLink is up.", (*GPU, "link")),
    Metric("nvlink_errors", "Errors of an NVLink.", (*GPU, "link", "error"), counter=True),
    Metric("pcie_link_width_lanes", "Lanes that a link negotiated.", ("bdf",)),
    Metric("pcie_link_speed_transfers_per_second", "Transfers per second and lane.", ("bdf",)),
    Metric("pcie_link_max_width_lanes", "Lanes that both ends of a link support.", ("bdf",)),
    Metric("pcie_link_max_speed_transfers_per_second", "Transfers that both ends support.", ("bdf",)),
    Metric("pcie_aer_errors", "Errors that the kernel counted.", ("bdf", "severity"), counter=True),
    Metric("rdma_port_up", "1 where a port is ACTIVE.", _PORT),
    Metric("rdma_port_rate_bytes_per_second", "Rate of a port.", _PORT),
    Metric("rdma_port_data_bytes", "Bytes that a port moved.", (*_PORT, "direction"), counter=True),
    Metric("rdma_port_errors", "Errors of a port.", (*_PORT, "error"), counter=True),
)
_PORT_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "carrier_down_count",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "packet_seq_err",
    "local_ack_timeout_err",
)
_HELD_BACK = ("sw_power_cap", "sw_thermal", "hw_thermal", "hw_power_brake")
_REASONS = {reason: name.replace(" ", "_") for reason, name in SLOWDOWNS.items()}


class Exporter:
    """Keeps the latest value of each counter, as not every sample has all of them."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._devices = {d.address: d for d in header.devices}
        self._latest: Sample | None = None

    def text(self, sample: Sample) -> str:
        """Return all metrics after one more sample."""
        self._latest = last_known([sample] if self._latest is None else [self._latest, sample])
        made = Families(METRICS)
        made.add("watch_sample_timestamp_seconds", self._header.begun_unix_s + sample.at_s)
        for source in ("nvml", "sysfs"):
            made.add("watch_source_up", source not in sample.silent, source)
        labels = {g.address: self._labels(g) for g in self._latest.gpus}
        for g in self._latest.gpus:
            _gpu(made, g, labels[g.address])
        _nvlinks(made, self._latest, labels)
        _functions(made, self._latest, self._devices)
        for p in self._latest.ports:
            _port(made, p)
        return made.text()

    def _labels(self, g: GpuReading) -> tuple[str, str, str]:
        device = self._devices.get(g.address)
        return gpu_labels(g.address, g.index, device.uuid if device is not None else NOT_RECORDED)


def _gpu(made: Families, g: GpuReading, labels: tuple[str, ...]) -> None:
    made.add("gpu_lost", g.lost, *labels)
    for name, value, unit in (
        ("gpu_sm_clock_hertz", g.clock_sm_mhz, 1e6),
        ("gpu_utilization_ratio", g.utilization_percent, 0.01),
        ("gpu_temperature_celsius", g.temperature_c, 1.0),
    ):
        if known(value):
            made.add(name, value * unit, *labels)
    if known(g.clock_reasons):
        for bit, reason in _REASONS.items():
            made.add("gpu_slowdown", bool(g.clock_reasons & bit), *labels, reason)
    if "pcie_replays" in g.counters:
        made.add("gpu_pcie_replays", g.counters["pcie_replays"], *labels)
    for reason in _HELD_BACK:
        if (ns := g.counters.get(f"{reason}_ns")) is not None:
            made.add("gpu_held_back_seconds", ns / 1e9, *labels, reason)
    for direction, counter in (("transmit", "nvlink_tx_kib"), ("receive", "nvlink_rx_kib")):
        if (kib := g.counters.get(counter)) is not None:
            made.add("gpu_nvlink_bytes", kib * 1024, *labels, direction)


def _nvlinks(made: Families, sample: Sample, gpus: dict[str, tuple[str, str, str]]) -> None:
    for x in sample.nvlinks:
        labels = (*gpus.get(x.address, (x.address, "", "")), str(x.link))
        if known(x.active):
            made.add("nvlink_up", x.active, *labels)
        for name, value in x.counters.items():
            made.add("nvlink_errors", value, *labels, name)


def _functions(made: Families, sample: Sample, devices: dict[str, Device]) -> None:
    for f in sample.functions:
        if known(f.width_lanes):
            made.add("pcie_link_width_lanes", f.width_lanes, f.address)
        if known(f.speed_gt_s):
            made.add("pcie_link_speed_transfers_per_second", f.speed_gt_s * 1e9, f.address)
        for severity in ("correctable", "nonfatal", "fatal"):
            if (value := f.counters.get(f"aer_{severity}")) is not None:
                made.add("pcie_aer_errors", value, f.address, severity)
        device = devices.get(f.address)
        if device is not None and known(device.max_width_lanes):
            made.add("pcie_link_max_width_lanes", device.max_width_lanes, f.address)
        if device is not None and known(device.max_speed_gt_s):
            made.add("pcie_link_max_speed_transfers_per_second", device.max_speed_gt_s * 1e9, f.address)


def _port(made: Families, p: PortReading) -> None:
    labels = (p.device, str(p.port))
    if known(p.state) or p.gone:
        made.add("rdma_port_up", p.state == "ACTIVE", *labels)
    if known(p.rate_gbit_s):
        made.add("rdma_port_rate_bytes_per_second", p.rate_gbit_s * 1e9 / 8, *labels)
    for direction, counter in (("transmit", "port_xmit_data"), ("receive", "port_rcv_data")):
        if (words := p.counters.get(counter)) is not None:
            made.add("rdma_port_data_bytes", words * 4, *labels, direction)
    for name in _PORT_ERRORS:
        if (value := p.counters.get(name)) is not None:
            made.add("rdma_port_errors", value, *labels, name)
