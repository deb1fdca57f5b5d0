"""Variables of a launcher that cannot be a rank's are wrong use of `placement`, not a job without ranks."""

from __future__ import annotations

import pytest

from tests.cli.commands import run
from topocheck.cli.placement import placement


def test_a_rank_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = run(placement)
    assert result.code == 2
    assert "RANK='x' with size '2' is not a rank and a count" in result.error
