"""A lab that is asked to stop prints what it has."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from tests.render.test_lab import REPORT
from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.render.words import not_measured_lines
from topocheck.tests_live.labs.bench import Told
from topocheck.tests_live.labs.plans.common import LabOptions, Rows
from topocheck.tests_live.labs.rank import measurement
from topocheck.tests_live.labs.run import Runner
from topocheck.tests_live.launch.lab_job import LabRow
from topocheck.tests_live.training.report_types import JobLayout

ROWS = Rows(lab=tuple(LabRow(id=f"r{i}", work="halo", backend="gloo", ranks=2) for i in range(3)))


def test_what_was_measured_before_an_interrupt_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_then_stop(runner: Runner, rows: Rows) -> Iterator[Measurement]:
        yield measurement(rows.lab[0], Told("time", [1.0]))
        raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "_measure", one_then_stop)
    runner = Runner(JobLayout(ranks=2), LabOptions(), None)
    got = runner._outcomes(ROWS)
    assert [o.id for o in got] == ["r0:time", "r1", "r2"]
    assert all(isinstance(o, NotMeasured) and o.required and o.reason == "interrupted" for o in got[1:])
    assert runner.interrupted


def test_rows_of_one_reason_are_one_line() -> None:

    missing = [NotMeasured(id=f"r{i}", reason="interrupted", required=True) for i in range(3)]
    missing.append(NotMeasured(id="x", reason="hung", required=True, next_step="look at the log"))
    report = msgspec.structs.replace(REPORT, not_measured=tuple(missing))
    assert not_measured_lines(report.not_measured) == ["r0 and 2 more rows: interrupted", "x: hung (look at the log)"]
