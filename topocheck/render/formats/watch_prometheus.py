"""Samples as Prometheus metrics for node_exporter's textfile collector, in the classic text format.

Base units and `_total` as Prometheus asks (https://prometheus.io/docs/practices/naming/); counters are the device's
own, so that Prometheus sees their resets and works out the rates. Labels are bus addresses and closed vocabularies.
"""

from __future__ import annotations

from collections import Counter

from topocheck.model.base import NOT_RECORDED, known
from topocheck.overtime.history import last_known
from topocheck.overtime.types import SLOWDOWNS, Device, GpuEvent, GpuReading, Header, PortReading, Sample
from topocheck.render.formats.metrics import GPU, Families, Metric, gpu_labels

_PORT = ("device", "port")
METRICS = (
    Metric("watch_sample_timestamp_seconds", "When the last sample was taken."),
    Metric("watch_source_up", "0 where a source did not answer.", ("source",)),
    Metric("gpu_sm_clock_hertz", "SM clock.", GPU, alike="DCGM_FI_DEV_SM_CLOCK (MHz)"),
    Metric("gpu_utilization_ratio", "Share of the time in which a kernel ran.", GPU, alike="DCGM_FI_DEV_GPU_UTIL (%)"),
    Metric("gpu_temperature_celsius", "Temperature of the GPU.", GPU, alike="DCGM_FI_DEV_GPU_TEMP"),
    Metric("gpu_lost", "1 where NVML says that the GPU is lost.", GPU),
    Metric("gpu_slowdown", "1 where the clocks are held back for this reason.", (*GPU, "reason")),
    Metric("gpu_pcie_replays", "PCIe replays.", GPU, counter=True, alike="DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
    Metric(
        "gpu_held_back_seconds",
        "Time for which the clocks were held back.",
        (*GPU, "reason"),
        counter=True,
        alike="DCGM_FI_DEV_POWER_VIOLATION, DCGM_FI_DEV_THERMAL_VIOLATION (ns)",
    ),
    Metric(
        "gpu_xid_errors",
        "Xids since watch began, by number; one that has not come has no series.",
        (*GPU, "xid"),
        counter=True,
        alike="DCGM_EXP_XID_ERRORS_TOTAL; DCGM_FI_DEV_XID_ERRORS has the number of the last",
    ),
    Metric(
        "gpu_fault_events",
        "Other faults since watch began, by the driver's name of the event.",
        (*GPU, "event"),
        counter=True,
    ),
    Metric(
        "gpu_nvlink_bytes",
        "Bytes over all NVLinks of the GPU.",
        (*GPU, "direction"),
        counter=True,
        alike="DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL (a rate)",
    ),
    Metric("nvlink_up", "1 where an NVLink is up.", (*GPU, "link")),
    Metric(
        "nvlink_errors",
        "Errors of an NVLink.",
        (*GPU, "link", "error"),
        counter=True,
        alike="DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL and others, of all links of a GPU",
    ),
    Metric("pcie_link_width_lanes", "Lanes that a link negotiated.", ("bdf",)),
    Metric("pcie_link_speed_transfers_per_second", "Transfers per second and lane.", ("bdf",)),
    Metric("pcie_link_max_width_lanes", "Lanes that both ends of a link support.", ("bdf",)),
    Metric("pcie_link_max_speed_transfers_per_second", "Transfers that both ends support.", ("bdf",)),
    Metric(
        "pcie_aer_errors",
        "Errors that the kernel counted.",
        ("bdf", "severity"),
        counter=True,
        alike="node_aer_* (by network interface)",
    ),
    Metric("rdma_port_up", "1 where a port is ACTIVE.", _PORT, alike="node_infiniband_state_id (4 is ACTIVE)"),
    Metric("rdma_port_rate_bytes_per_second", "Rate of a port.", _PORT, alike="node_infiniband_rate_bytes_per_second"),
    Metric(
        "rdma_port_data_bytes",
        "Bytes that a port moved.",
        (*_PORT, "direction"),
        counter=True,
        alike="node_infiniband_port_data_transmitted_bytes_total, ..._received_bytes_total",
    ),
    Metric(
        "rdma_port_errors",
        "Errors of a port.",
        (*_PORT, "error"),
        counter=True,
        alike="node_infiniband_link_downed_total, node_infiniband_port_errors_received_total and others",
    ),
)
_EVENTS = {
    0x2: "double_bit_ecc_error",
    0x200: "single_bit_ecc_error_storm",
    0x400: "dram_retirement",
    0x800: "dram_retirement_failure",
    0x1000: "non_fatal_poison_error",
    0x2000: "fatal_poison_error",
    0x4000: "gpu_unavailable_error",
    0x8000: "gpu_recovery_action",
}
"""Bits of nvmlEventType* under their names in nvml.h."""
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
_MAX_KINDS = 4096
"""Pairs of a GPU and a kind of event: more than 256 GPUs with every Xid of the hardware would have."""
_HELD_BACK = ("sw_power_cap", "sw_thermal", "hw_thermal", "hw_power_brake")
_REASONS = {reason: name.replace(" ", "_") for reason, name in SLOWDOWNS.items()}


class Exporter:
    """Keeps the latest value of each counter, as not every sample has all of them, and counts the events."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._devices = {d.address: d for d in header.devices}
        self._latest: Sample | None = None
        self._events: Counter[tuple[str, str, str]] = Counter()

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
        self._count(sample.events)
        for (metric, address, what), times in self._events.items():
            made.add(metric, times, *labels.get(address, (address, "", "")), what)
        _nvlinks(made, self._latest, labels)
        _functions(made, self._latest, self._devices)
        for p in self._latest.ports:
            _port(made, p)
        return made.text()

    def _count(self, events: tuple[GpuEvent, ...]) -> None:
        """Add events. Their kinds are limited: a driver that invents numbers does not fill the file."""
        for e in events:
            xid = e.xid
            what = _EVENTS.get(e.type, f"0x{e.type:x}") if xid is None else str(xid)
            key = ("gpu_fault_events" if xid is None else "gpu_xid_errors", e.address, what)
            if key in self._events or len(self._events) < _MAX_KINDS:
                self._events[key] += 1

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
