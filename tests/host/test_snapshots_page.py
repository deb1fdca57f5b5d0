"""docs/snapshots.md says what the code does."""

from __future__ import annotations

from tests.support.renew import RENEW
from tests.support.snapshots_page import BEGIN, END, PAGE, renewed
from topocheck.probes.kept.table import ROWS


def test_the_table_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    assert text == renewed(text), f"renew it, and check what changed: {RENEW}"


def test_every_row_says_what_stays() -> None:
    assert [row.subject for row in ROWS if not row.stays] == []
