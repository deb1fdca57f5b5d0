"""docs/validation.md names every check once, says of real hardware what the recording says, and names real tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.machines.builder import case_names
from topocheck.checks import all_checks
from topocheck.host.base import Host, RecordedBackend
from topocheck.host.snapshot import load
from topocheck.model.base import State
from topocheck.pipeline import build_report

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "validation.md").read_text(encoding="utf-8")
ROWS = [[c.strip() for c in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")]


def test_every_check_has_one_row_in_order() -> None:
    assert [r[0].strip("`") for r in ROWS] == [c.id for c in all_checks()]


def test_on_hardware_is_what_the_recording_of_it_says() -> None:
    answers = load(str(TESTS / "recordings" / "h100_x2_vm.snap"))[1]
    report = build_report(Host(RecordedBackend(answers), "h100_x2_vm"))
    word = {State.OK: "ok", State.NOT_APPLICABLE: "-"}
    said = {r.id: word.get(r.state, "finding") for r in report.results}
    assert {r[0].strip("`"): r[1] for r in ROWS if r[0].strip("`") in said} == said


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r[0].strip("`"))
def test_the_test_it_names_is_about_it(row: list[str]) -> None:
    id_, on_hardware, fires_on, test = row[0].strip("`"), *row[1:]
    assert on_hardware in ("ok", "finding", "-")
    assert f'"{id_}"' in (TESTS / test).read_text(encoding="utf-8")
    kind, _, names = fires_on.partition(": ")
    assert kind in ("reported", "network", "described")
    short = {n.split("_")[0] for n in case_names()}
    assert all(n in short for n in re.findall(r"[^, ]+", names))
    assert bool(names) is (kind == "reported")
