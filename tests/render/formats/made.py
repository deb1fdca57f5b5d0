"""Outcomes and reports made by hand for the tests of formats."""

from __future__ import annotations

import functools
from typing import Any

from tests.machines.builder import machine
from topocheck.checks import all_checks
from topocheck.checks.registry import CheckResult
from topocheck.checks.result import Outcome, conclude
from topocheck.model.base import Evidence, Finding, State
from topocheck.pipeline import Report, build_report
from topocheck.policy.types import Policy

all_checks()  # registers their titles, which formats use

WIDTH = Finding(
    id="pcie.link-width",
    state=State.FAIL,
    subject="0000:5c:00.0 GPU3",
    title="GPU3 PCIe x8 of x16: link between 0000:5c:00.0 and 0000:5b:00.0",
    consequence="GPU3 copies at half rate",
    evidence=(Evidence("/sys/bus/pci/devices/0000:5c:00.0/current_link_width", "8"), Evidence("NVML GPU3", "x8")),
    rule="x8 < x16",
    fix="reseat the card",
)
WARNING = Finding(id="numa.node-missing", state=State.WARN, subject="node", title="no device tells its node")
UNSURE = Finding(id="p2p.acs-redirect", state=State.UNKNOWN, subject="GPU0 -> GPU1", title="needs root to read")
NOTE = Finding(id="numa.nps", state=State.NOTE, subject="node", title="two NUMA nodes per socket")


@functools.cache
def report(name: str = "hgx_h100_cx7") -> Report:
    """Return the report of a described machine, with no checks run."""
    return build_report(machine(name).host(), checks=())


@functools.cache
def half_report() -> Report:
    """Return the report of HGX H100 with the link of GPU3 at x8 of x16."""
    return build_report(machine("hgx_h100_cx7", patch={"GPU3": {"now": "5x8"}}).host(), checks=())


def outcome(*findings: Finding, strict: bool = False, on: Report | None = None, **more: Any) -> Outcome:
    """Return the outcome of findings, beside one check that is well and one that does not apply."""
    ids = {f.id for f in findings}
    results = [CheckResult(id=i, scope="node", state=State.OK) for i in sorted(ids | {"pcie.aer-errors"})]
    results.append(CheckResult(id="p2p.mig", scope="node", state=State.NOT_APPLICABLE, detail="no MIG here"))
    return conclude((on or report()).node, findings, results, Policy(strict=strict), **more)
