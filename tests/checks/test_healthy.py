"""What holds for every hardware check: quiet where nothing is wrong, explained, tested both ways."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checks.support import hardware_checks, healthy, rows, variant
from tests.machines.builder import case_names, healthy_names
from topocheck.checks import registry
from topocheck.model.base import State

_IN_WORDS = frozenset(
    {"consistency.smi-matrix-differs", "consistency.sources-differ", "probe.answers-lost", "probe.failed"}
)
"""Checks whose tests are functions of their own: test_consistency.py, test_lost_evidence.py, readers/test_files.py."""

_FAULTY_CASES = frozenset(
    "h02_gpu_is_lost h03_nvml_crashes h06_h100_nvl_links_down h08_fabric_insufficient h09b_gb200_no_fabric "
    "h10_fabric_in_progress h10b_fabric_mixed h12_acs_redirect h13_iommu_translates h22_mixed_gpus h40_device_cgroup "
    "h41_nvml_hangs h43_bridge_window h45_peer_access_offered h46_task_of_one_gpu h49_acs_above_nics "
    "h51_b200_no_umad h52_b200_one_outside h56_bridge_half_seated h58_dra_imex h63_acs_below_switch "
    "h64_maxq_acs_and_iommu h65_busy_at_gen1 h68_one_bridge_of_eight h70_nic_in_gen4_slot h71_behind_chipset "
    "h72_nodes_across_sockets".split()
)
"""Cases whose fault is one of hardware, driver or device order; the verdicts stand in test_cases_hardware.py."""


def _loud(name: str, **overrides: Any) -> list[tuple[str, str]]:
    results = registry.run(hardware_checks(), variant(name, **overrides) if overrides else healthy(name))
    return [(f.id, f.title) for _, found in results for f in found if f.state in (State.FAIL, State.WARN)]


@pytest.mark.parametrize("name", healthy_names())
def test_a_healthy_machine_is_quiet(name: str) -> None:
    """No failure and no warning on any machine that has nothing wrong with it."""
    assert _loud(name) == []


@pytest.mark.parametrize("name", ["hgx_h100_cx7", "dgx_a100", "rtx6000ada_x4", "h100_x2_vm", "gb200_tray"])
@pytest.mark.parametrize(
    "less",
    [{"system": {"root": False}}, {"cuda": {"state": "absent"}}, {"nvml": {"*": {"error": "NoPermission"}}}],
    ids=["no root", "no CUDA", "NVML refuses"],
)
def test_what_cannot_be_read_is_no_fault(name: str, less: dict[str, Any]) -> None:
    """Less to look at gives unknowns, never a failure or a warning."""
    assert _loud(name, **less) == []


@pytest.mark.parametrize("name", [n for n in case_names() if n not in _FAULTY_CASES])
def test_a_case_about_something_else_is_quiet(name: str) -> None:
    """A machine whose trouble is a setting, a limit or nothing at all gives these checks nothing to say."""
    assert _loud(name) == []


@pytest.mark.parametrize("name", [*healthy_names(), *case_names()])
def test_no_check_breaks(name: str) -> None:
    """Whatever the machine lacks, a check answers by its own means."""
    for result, _ in registry.run(hardware_checks(), healthy(name)):
        assert "own fault" not in result.detail


@pytest.mark.parametrize("check", hardware_checks(), ids=lambda c: c.id)
def test_every_check_is_explained(check: registry.Check) -> None:
    """The explanation has its four sections and repeats the title; the id names an area and a problem."""
    for section in ("Looks at:", "Why it matters:", "Fix:", "Does not apply:"):
        assert check.doc.count(section) == 1, section
    assert check.doc.startswith(check.title)
    assert check.reads
    assert check.id.count(".") == 1


@pytest.mark.parametrize("id_", [c.id for c in hardware_checks() if c.id not in _IN_WORDS])
def test_every_check_is_tried_both_ways(id_: str) -> None:
    """At least one machine where it speaks, and one look-alike where it does not."""
    own = [r for r in rows() if r.id == id_]
    assert any(r.state is not None for r in own)
    assert any(r.state is None and r.applies for r in own)
