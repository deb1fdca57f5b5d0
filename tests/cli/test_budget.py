"""`--budget`: a driver that hangs costs no more than the budget, and what was not judged is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stubs.build import build_library
from tests.support.waiting import PATIENCE_S
from topocheck.checks.registry import CHECKS, CheckResult, MissingData
from topocheck.checks.result import conclude, late_sources, settle
from topocheck.model.base import Finding, Missing, Reason, State
from topocheck.model.gpu import NvmlFacts
from topocheck.model.node import Node, PciFacts
from topocheck.policy.types import Policy

REPOSITORY = Path(__file__).parents[2]
BUDGET_S = 6
"""Less than the 10 s that NVML has without a budget."""


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    stub = build_library("nvml_stub.c", tmp_path_factory.mktemp("nvml"), "libnvidia-ml.so.1")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "TOPOCHECK_"))}
    return {
        **environment,
        "PYTHONPATH": str(REPOSITORY),
        "LD_LIBRARY_PATH": str(stub),
        "NVML_STUB_SLEEP": "nvmlInitWithFlags",
    }


def check(environment: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    code = "from topocheck.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "check", "--budget", str(BUDGET_S), "--scope", "node", *args],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_hung_driver_leaves_its_checks_unknown_by_name(hung: dict[str, str]) -> None:
    said = json.loads(check(hung, "--only", "nvlink", "--format", "json").stdout)
    by_id = {c["id"]: c for c in said["checks"]}
    assert by_id["nvlink.links-down"]["state"] == "unknown"
    detail = by_id["nvlink.links-down"]["detail"]
    assert detail.startswith(MissingData.OVERDUE)
    # "no answer in 4.2 s": the budget less what was gone before the question, and less what judging needs.
    assert float(re.findall(r"([0-9.]+) s\b", detail)[-1]) < BUDGET_S


@pytest.mark.slow
def test_hung_driver_that_must_answer(hung: dict[str, str], tmp_path: Path) -> None:
    policy = tmp_path / "p.toml"
    policy.write_text('require_probes = ["pci", "nvml"]\n')
    done = check(hung, "--only", "nvlink", "--policy", str(policy))
    assert done.returncode == 3
    assert "nvlink.links-down" in done.stdout
    assert "probe nvml: timed out" in " ".join(done.stdout.split())


LATE = Missing(Reason.TIMED_OUT, "nvml:DeviceGetCount: no answer in 3 s")


def test_only_late_facts_make_a_check_unknown() -> None:
    assert late_sources(Node(source="x", nvml=NvmlFacts(gpus=LATE))) == {"NVML": LATE.detail}
    assert late_sources(Node(source="x", nvml=NvmlFacts(gpus=Missing(Reason.ABSENT)), pci=PciFacts(devices=()))) == {}


def test_what_was_found_stays_found() -> None:
    from topocheck.checks import all_checks

    all_checks()
    id_ = "nvlink.links-down"
    assert any(r.startswith("NVML") for r in CHECKS[id_].reads)
    node = Node(source="x", nvml=NvmlFacts(gpus=LATE))
    for before in (State.OK, State.NOT_APPLICABLE):
        (after,) = settle(node, (), (CheckResult(id=id_, scope="node", state=before),))
        assert after.state is State.UNKNOWN
        assert LATE.detail in after.detail
    failed = Finding(id=id_, state=State.FAIL, subject="GPU0", title="x")
    (after,) = settle(node, (failed,), (CheckResult(id=id_, scope="node", state=State.FAIL),))
    assert after.state is State.FAIL


def test_overdue_is_not_ok_but_fails_only_where_required_or_strict() -> None:
    from topocheck.checks import all_checks

    all_checks()
    node = Node(source="x", nvml=NvmlFacts(gpus=LATE))
    results = (CheckResult(id="nvlink.links-down", scope="node", state=State.OK),)
    free = Policy(require_probes=())
    assert conclude(node, (), results, free).state is State.UNKNOWN
    assert conclude(node, (), results, free).exit_code == 0
    assert conclude(node, (), results, free).overdue == ("nvlink.links-down",)
    assert conclude(node, (), results, Policy(require_probes=(), strict=True)).exit_code == 1
    assert conclude(node, (), results, Policy(require_probes=("nvml",))).exit_code == 3
