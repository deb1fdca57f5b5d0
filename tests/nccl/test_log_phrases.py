"""Patterns with gaps are found as Python's `re` finds them, without its time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topocheck.knowledge.nccl_causes import causes
from topocheck.nccl.logs.failures import _CODES
from topocheck.nccl.logs.phrases import Phrases

PATTERNS = [r.pattern for r in causes() if r.pattern is not None]
OTHERS = [
    "a.*b",
    "a.*b.*a",
    r"a\.*b",
    "[.*]a",
    "(a|b).*c",
    "a.*(?:b|c)",
    "ab|ba.*c",
    "a",
]


@pytest.mark.parametrize("pattern", OTHERS)
@given(text=st.text("abcx.*", max_size=12))
def test_small_patterns(pattern: str, text: str) -> None:
    assert Phrases(pattern).search(text) is (re.search(pattern, text) is not None)


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=20)
@given(data=st.data())
def test_the_signs_of_a_log(pattern: str, data: st.DataObject) -> None:
    """Texts made of what the pattern is made of, which fit it or nearly."""
    pieces = [re.sub(r"[\\^]|\(\?[:!]", "", x) for x in re.split(r"\.\*|[|()]", pattern)]
    text = data.draw(st.lists(st.sampled_from([*pieces, " ", "x", "0"]), max_size=8).map("".join))
    assert Phrases(pattern).search(text) is (re.search(pattern, text) is not None)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_part_has_a_gap_that_is_tried_from_every_place(pattern: str) -> None:
    assert gaps(Phrases(pattern)) == []


def test_the_codes_have_none_either() -> None:
    assert [gaps(p) for _, p in _CODES] == [[] for _ in _CODES]


def gaps(phrases: Phrases) -> list[str]:
    """Return the patterns given to `re` that repeat anything without a bound."""
    given_to_re = [p.pattern for a in phrases._rest for p in a.parts]
    if phrases._whole is not None:
        given_to_re.append(phrases._whole.__self__.pattern)  # type: ignore[attr-defined]
    return [p for p in given_to_re if re.search(r"(?<!\\)\.[*+]|\)[*+]", p)]
