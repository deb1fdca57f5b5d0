"""Every fact that is read is judged, shown, or has a reason to be read all the same."""

from __future__ import annotations

from tests.support.facts_page import NOT_JUDGED, PAGE, _shown, _users, facts, page, use


def test_every_fact_is_used() -> None:
    assert [f"{s}.{f}" for s, f in facts() if not use(s, f)] == []


def test_the_exceptions_are_facts_that_nothing_uses() -> None:
    known = {f"{s}.{f}": f for s, f in facts()}
    assert set(NOT_JUDGED) <= set(known)
    assert [n for n in NOT_JUDGED if known[n] in _users() or known[n] in _shown()] == []


def test_the_page_is_made_from_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.support.facts_page"
