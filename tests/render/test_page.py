"""Tables with texts of any length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.work import lines_run
from topocheck.render.page import _NARROWEST, MAX_CHARS, Page, Style, _fit, shortened


def one_by_one(widths: list[int], room: int, least: list[int]) -> None:
    """What `_fit` says it does."""
    while sum(widths) > room:
        able = [i for i, w in enumerate(widths) if w > max(least[i], _NARROWEST)]
        if not able:
            return
        widths[max(able, key=widths.__getitem__)] -= 1


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 30)), max_size=6), st.integers(0, 120))
def test_columns_are_narrowed_as_one_character_at_a_time_would(columns: list[tuple[int, int]], room: int) -> None:
    least = [low for _, low in columns]
    found, expected = [w for w, _ in columns], [w for w, _ in columns]
    _fit(found, room, least)
    one_by_one(expected, room, least)
    assert found == expected


def test_a_cell_of_a_million_characters_takes_no_more_steps_than_the_page_is_wide() -> None:
    runs = lines_run(lambda: _fit([1_000_000, 20], 100, [10, 10]))
    assert sum(runs.values()) < 1000


def test_a_text_of_more_than_anybody_reads_is_cut_and_says_so() -> None:
    assert shortened("x" * MAX_CHARS) == "x" * MAX_CHARS
    assert shortened("x" * 1_000_000) == "x" * MAX_CHARS + "... (1000000 characters)"


@pytest.mark.parametrize("width", [50, 60, 72, 80])
def test_a_table_never_cuts_a_pci_address(width: int) -> None:
    page = Page(Style(width=width))
    head = ("", "address", "link now", "link max", "GB/s", "NUMA", "nearest NIC", "state")
    rows = [(f"GPU{i}", f"0000:{i}8:00.0", "gen5 x16", "gen5 x16", "63.0", "0", "mlx5_0 PIX", "ok") for i in range(3)]
    page.table(head, rows, right=frozenset({4}), spare=3)
    lines = page.render().splitlines()
    assert max(map(len, lines)) <= max(width, 57)
    for i in range(3):
        assert any(f"0000:{i}8:00.0" in line for line in lines)
    assert ("max" in page.render()) == (width >= 60)  # 44 columns of words, 16 between them
