"""The table of docs/validation.md, brought up to date.

Rows of new checks are added and those of checks that are gone taken out; `on hardware` is what the recording says. What
stands under `fires on` is somebody's judgment and stays; so does the test, while it is about the check.
"""

from __future__ import annotations

import re
from pathlib import Path

from topocheck.checks import all_checks
from topocheck.host.base import Host, RecordedBackend
from topocheck.host.recording.snapshot import load
from topocheck.model.base import State
from topocheck.pipeline import build_report

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "validation.md"
RECORDING = TESTS / "recordings" / "h100_x2_vm.snap"
_WORDS = {State.OK: "ok", State.NOT_APPLICABLE: "-"}
_OF_ALL = ("test_lost_evidence.py", "test_healthy.py", "test_cases_hardware.py", "test_cases_software.py")
"""Tests that name checks and are about all of them."""


def rows(page: str) -> dict[str, list[str]]:
    """Return id -> what stands under on hardware, fires on, test."""
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| `")]
    return {r[0].strip("`"): r[1:] for r in cells}


def on_hardware() -> dict[str, str]:
    """Return id -> `ok`, `finding` or `-`, as the recording of real hardware says it."""
    report = build_report(Host(RecordedBackend(load(str(RECORDING))[1]), RECORDING.stem))
    return {r.id: _WORDS.get(r.state, "finding") for r in report.results}


def is_about(test: str, id_: str) -> bool:
    """Tell whether a file below tests/ names a check."""
    path = TESTS / test
    return path.is_file() and f'"{id_}"' in path.read_text(encoding="utf-8")


def _test_of(id_: str) -> str:
    """Return the file below tests/ that names a check most often, one of the tests of checks if there is any."""
    found = [
        (path.parent.name == "checks", times, str(path.relative_to(TESTS)))
        for path in TESTS.rglob("test_*.py")
        if path.name not in _OF_ALL and (times := path.read_text(encoding="utf-8").count(f'"{id_}"'))
    ]
    return max(found)[2] if found else "none"


def renewed(page: str) -> str:
    """Return a page with one row for each check, by id."""
    old, hardware, lines = rows(page), on_hardware(), []
    for check in all_checks():
        seen, fires_on, test = old.get(check.id, ["-", "described", ""])
        test = test if is_about(test, check.id) else _test_of(check.id)
        lines.append(f"| `{check.id}` | {hardware.get(check.id, seen)} | {fires_on} | {test} |\n")
    return re.sub(r"(^\| `.*\n)+", lambda _: "".join(lines), page, count=1, flags=re.MULTILINE)
