"""docs/validation.md names every check once, says of real hardware what the recording says, and names real tests."""

from __future__ import annotations

import re

import pytest

from tests.machines.builder import case_names
from tests.support import validation_page
from tests.support.renew import RENEW

PAGE = validation_page.PAGE.read_text(encoding="utf-8")
ROWS = validation_page.rows(PAGE)


def test_the_page_is_up_to_date() -> None:
    assert validation_page.renewed(PAGE) == PAGE, f"renew it: {RENEW}"


@pytest.mark.parametrize("id_", ROWS)
def test_the_test_it_names_is_about_it(id_: str) -> None:
    on_hardware, fires_on, test = ROWS[id_]
    assert on_hardware in ("ok", "finding", "-")
    assert validation_page.is_about(test, id_), f'no file below tests/ has "{id_}": write its test'
    kind, _, names = fires_on.partition(": ")
    assert kind in ("reported", "network", "described")
    short = {n.split("_")[0] for n in case_names()}
    assert all(n in short for n in re.findall(r"[^, ]+", names))
    assert bool(names) is (kind == "reported")


def test_new_rows_are_made_and_old_ones_taken_out() -> None:
    id_, row = next(i for i in ROWS.items() if i[0] == "pcie.link-width")
    line = f"| `{id_}` | {' | '.join(row)} |\n"
    assert line in PAGE
    page = PAGE.replace(line, "| `pcie.gone` | ok | described | none |\n")
    assert validation_page.renewed(page) == validation_page.renewed(PAGE)
