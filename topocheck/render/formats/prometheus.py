"""Metrics for node_exporter's textfile collector, in the classic text format, written by prometheus-client.

No timestamps (one sample with a timestamp and the collector drops the file), HELP always, base units, and labels of
closed vocabularies, bus addresses and subjects of findings. Alert on `time() - node_textfile_mtime_seconds` for a run
that stopped.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from topocheck.model.base import InputError, State
from topocheck.render.formats.rates import link_rates
from topocheck.render.quoting import prometheus_label

if TYPE_CHECKING:
    from topocheck.checks.result import Outcome
    from topocheck.pipeline import Report

STATUS = {State.OK: 0, State.NOTE: 0, State.WARN: 1, State.FAIL: 2, State.UNKNOWN: 3}


def _seconds(taken_at: str) -> float | None:
    """Return a date in seconds since the epoch; None where a recording holds none, or one that is no date."""
    try:
        return datetime.fromisoformat(taken_at).timestamp()
    except (ValueError, OverflowError):
        return None


def render(outcome: Outcome, report: Report) -> str:
    """Return the metrics.

    Raises:
        InputError: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, Gauge, generate_latest
    except ImportError:
        raise InputError("Prometheus metrics need prometheus-client: pip install 'topocheck-gpu[formats]'") from None
    import topocheck

    registry = CollectorRegistry()

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"topocheck_{name}", text, labels, registry=registry)

    gauge("build_info", "Version of topocheck that wrote this; always 1.", "version").labels(topocheck.__version__).set(
        1
    )
    moment = _seconds(outcome.taken_at)
    if moment is not None:
        gauge("run_timestamp_seconds", "When the node was looked at, in seconds since the epoch.").set(moment)
    gauge("exit_code", "Exit code of the run: 0 healthy, 1 failed, 3 could not tell what must be known.").set(
        outcome.exit_code
    )
    gauge("policy_readable", "1 where the policy could be read, 0 where the built-in one took its place.").set(
        outcome.policy_readable
    )
    gauge("required_unknown", "Number of things that the policy requires and that could not be determined.").set(
        len(outcome.required_unknown)
    )
    status = gauge("check_status", "State of a check: 0 ok, 1 warning, 2 failed, 3 unknown.", "check", "scope")
    applicable = gauge("check_applicable", "0 where a check has nothing to judge on this node.", "check", "scope")
    for r in outcome.results:
        applicable.labels(r.id, r.scope).set(r.state is not State.NOT_APPLICABLE)
        if r.state in STATUS:
            status.labels(r.id, r.scope).set(STATUS[r.state])
    finding = gauge("finding_info", "A finding and what it is about; always 1.", "check", "subject", "state")
    for f in outcome.findings:
        finding.labels(f.id, prometheus_label(f.subject), f.state.value).set(1)
    _links(gauge, report)
    spent = gauge("probe_duration_seconds", "Wall time that a probe took.", "probe")
    worked = gauge("probe_success", "1 where a probe ended well, 0 where it failed or ran out of time.", "probe")
    for p in report.node.probes:
        spent.labels(p.name).set(p.ms / 1000)
        worked.labels(p.name).set(p.state in ("ok", "empty"))
    return generate_latest(registry).decode("utf-8")


def _links(gauge: object, report: Report) -> None:
    assert callable(gauge)
    now = gauge(
        "pcie_link_bytes_per_second",
        "Theoretical rate of a PCIe link in one direction as it runs while its device works, "
        "by the function at its lower end.",
        "bdf",
        "role",
    )
    best = gauge(
        "pcie_link_max_bytes_per_second",
        "Theoretical rate of a PCIe link in one direction at what both its ends can do.",
        "bdf",
        "role",
    )
    for link in link_rates(report.topology):
        now.labels(prometheus_label(link.address), link.role).set(link.now_gb_s * 1e9)
        if link.max_gb_s is not None:
            best.labels(prometheus_label(link.address), link.role).set(link.max_gb_s * 1e9)
