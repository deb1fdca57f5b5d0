"""Files that are of topocheck, given to a command that reads another kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Topocheck

SNAPSHOT = Path(__file__).parents[2] / "docs/examples/machines/no_gpu.snap"


@pytest.mark.parametrize(
    ("command", "what"),
    [(("bw", "--from"), "topocheck bw --plan --from"), (("watch", "--from"), "topocheck check --from")],
)
def test_a_snapshot_is_named_and_the_command_that_reads_it(
    topocheck: Topocheck, command: tuple[str, ...], what: str
) -> None:
    """One line: what the file is, what was expected, which command reads it."""
    done = topocheck(*command, str(SNAPSHOT))
    assert done.code == 2
    assert "a snapshot of a machine" in done.error
    assert what in done.error
