"""The last line of `topocheck check`."""

from __future__ import annotations

import pytest

from topocheck.checks.registry import CheckResult
from topocheck.checks.result import Outcome
from topocheck.model.base import Finding, State
from topocheck.policy.types import Policy
from topocheck.render.checks import sum_up


@pytest.mark.parametrize(("notes", "told"), [(1, "1 note"), (3, "3 notes")])
def test_notes_are_counted_in_english(notes: int, told: str) -> None:
    states = [State.FAIL, State.WARN, State.WARN, *[State.NOTE] * notes]
    findings = tuple(Finding(id="x", state=s, subject="node", title="t") for s in states)
    outcome = Outcome(
        source="live", taken_at="", hostname="n", policy=Policy(), state=State.FAIL, exit_code=1, findings=findings,
        results=(CheckResult(id="x", scope="node", state=State.FAIL),),
    )  # fmt: skip
    assert sum_up(outcome) == f"FAIL: 1 fail, 2 warn, {told} by 1 check (policy {outcome.policy.source})"
