"""Metrics for node_exporter's textfile collector, in the classic text format, written by prometheus-client.

No timestamps (one sample with a timestamp and the collector drops the file), HELP always, base units, and labels of
closed vocabularies, bus addresses and subjects of findings. Alert on `time() - node_textfile_mtime_seconds` for a run
that stopped. No name is one of `watch_prometheus.py`: the collector refuses one metric from two files.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from topocheck.model.base import Missing, State, known
from topocheck.render.formats.metrics import GPU, Families, Metric, gpu_labels
from topocheck.render.formats.rates import link_rates
from topocheck.topology.nvlink import link_rate

if TYPE_CHECKING:
    from topocheck.checks.result import Outcome
    from topocheck.pipeline import Report
    from topocheck.topology.types import Gpu, Nic

STATUS = {State.OK: 0, State.NOTE: 0, State.WARN: 1, State.FAIL: 2, State.UNKNOWN: 3}
_LINK = ("role", *GPU)
_PORT = ("bdf", "device", "port")
METRICS = (
    Metric("build_info", "Version of topocheck that wrote this; always 1.", ("version",)),
    Metric("run_timestamp_seconds", "When the node was looked at, in seconds since the epoch."),
    Metric("exit_code", "Exit code of the run: 0 healthy, 1 failed, 3 a required fact could not be determined."),
    Metric("policy_readable", "1 where the policy could be read, 0 where the built-in one took its place."),
    Metric("required_unknown", "Number of things that the policy requires and that could not be determined."),
    Metric("check_status", "State of a check: 0 ok, 1 warning, 2 failed, 3 unknown.", ("check", "scope")),
    Metric("check_applicable", "0 where a check has nothing to judge on this node.", ("check", "scope")),
    Metric("finding_info", "A finding and what it is about; always 1.", ("check", "subject", "state")),
    Metric(
        "pcie_link_bytes_per_second",
        "Theoretical rate of a PCIe link in one direction as it runs while its device works, "
        "by the function at its lower end.",
        _LINK,
    ),
    Metric(
        "pcie_link_max_bytes_per_second",
        "Theoretical rate of a PCIe link in one direction at what both its ends can do.",
        _LINK,
    ),
    Metric("nvlink_links", "NVLinks that a GPU has.", GPU),
    Metric("nvlink_links_up", "NVLinks of a GPU that are up.", GPU),
    Metric(
        "nvlink_bytes_per_second",
        "Theoretical rate of all NVLinks of a GPU that are up, in one direction.",
        GPU,
    ),
    Metric("nic_port_active", "1 where a port of an RDMA NIC is ACTIVE.", _PORT),
    Metric("nic_port_bytes_per_second", "Rate of a port of an RDMA NIC as it runs.", _PORT),
    Metric("probe_duration_seconds", "Wall time that a probe took.", ("probe",)),
    Metric("probe_success", "1 where a probe ended well, 0 where it failed or ran out of time.", ("probe",)),
)


def _seconds(taken_at: str) -> float | None:
    """Return a date in seconds since the epoch; None where a recording holds none, or one that is no date."""
    try:
        return datetime.fromisoformat(taken_at).timestamp()
    except (ValueError, OverflowError):
        return None


def render(outcome: Outcome, report: Report) -> str:
    """Return the metrics."""
    from topocheck.model.version import __version__

    made = Families(METRICS)
    made.add("build_info", 1, __version__)
    moment = _seconds(outcome.taken_at)
    if moment is not None:
        made.add("run_timestamp_seconds", moment)
    made.add("exit_code", outcome.exit_code)
    made.add("policy_readable", outcome.policy_readable)
    made.add("required_unknown", len(outcome.required_unknown))
    for r in outcome.results:
        made.add("check_applicable", r.state is not State.NOT_APPLICABLE, r.id, r.scope)
        if r.state in STATUS:
            made.add("check_status", STATUS[r.state], r.id, r.scope)
    for f in outcome.findings:
        made.add("finding_info", 1, f.id, f.subject, f.state.value)
    _links(made, report)
    for gpu in report.topology.gpus:
        _nvlinks(made, gpu)
    for nic in report.topology.nics:
        _ports(made, nic)
    for p in report.node.probes:
        made.add("probe_duration_seconds", p.ms / 1000, p.name)
        made.add("probe_success", p.state in ("ok", "empty"), p.name)
    return made.text()


def _links(made: Families, report: Report) -> None:
    gpus = {g.address: gpu_labels(g.address, g.index, g.uuid) for g in report.topology.gpus}
    for link in link_rates(report.topology):
        labels = (link.role, *gpus.get(link.address, (link.address, "", "")))
        made.add("pcie_link_bytes_per_second", link.now_gb_s * 1e9, *labels)
        if link.max_gb_s is not None:
            made.add("pcie_link_max_bytes_per_second", link.max_gb_s * 1e9, *labels)


def _nvlinks(made: Families, gpu: Gpu) -> None:
    """Add a GPU's NVLinks, where the driver named any and said of each whether it is up."""
    links = gpu.nvml.nvlinks if gpu.nvml is not None else ()
    if not links or any(isinstance(x.active, Missing) for x in links):
        return
    labels = gpu_labels(gpu.address, gpu.index, gpu.uuid)
    up = [x for x in links if x.active]
    made.add("nvlink_links", len(links), *labels)
    made.add("nvlink_links_up", len(up), *labels)
    rate = link_rate(up) if up else 0.0
    if known(rate):
        made.add("nvlink_bytes_per_second", rate * 1e9, *labels)


def _ports(made: Families, nic: Nic) -> None:
    for port in nic.rdma.ports if nic.rdma is not None else ():
        labels = (nic.address, nic.label, str(port.port))
        if known(port.state):
            made.add("nic_port_active", port.state == "ACTIVE", *labels)
        if known(port.rate_gbit_s):
            made.add("nic_port_bytes_per_second", port.rate_gbit_s * 1e9 / 8, *labels)
