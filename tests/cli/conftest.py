"""What tests of the commands share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.commands import Ran, Topocheck
from topocheck.cli import main as entry


@pytest.fixture
def topocheck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Topocheck:
    """Runs a command line through `main`, in an empty folder. An exception that leaves it fails the test."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["topocheck", *words])
        with pytest.raises(SystemExit) as ended:
            entry.main()
        said = capsys.readouterr()
        return Ran(ended.value.code or 0, said.out, said.err)

    return run
