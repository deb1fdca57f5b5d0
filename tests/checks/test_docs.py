"""docs/nccl_issues_map.md names every pattern once, and only checks that exist."""

from __future__ import annotations

import re
from pathlib import Path

import topocheck.checks.policy.expectations  # noqa: F401 - registers its checks
from topocheck.checks import all_checks
from topocheck.checks.registry import CHECKS

PAGE = Path(__file__).parents[2] / "docs" / "nccl_issues_map.md"
PATTERNS = 57


def rows() -> list[list[str]]:
    """Return the cells of each row of the tables that begins with a number."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [r for r in cells if r[0].isdigit()]


def test_every_pattern_stands_there_once_in_order() -> None:
    assert [int(r[0]) for r in rows()] == list(range(1, PATTERNS + 1))


def test_every_pattern_has_a_check_or_a_reason() -> None:
    for number, pattern, seen, answer in rows():
        assert len(pattern) > 20, number
        assert seen, number
        assert re.search(r"`[a-z0-9]+\.[a-z0-9-]+`", answer) or len(answer) > 30, number


def test_every_check_it_names_exists() -> None:
    all_checks()
    named = set(re.findall(r"`([a-z0-9]+\.[a-z0-9-]+)`", PAGE.read_text(encoding="utf-8")))
    assert named
    assert sorted(named - set(CHECKS)) == []
