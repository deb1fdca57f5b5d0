"""What the README and docs/ show as printed is what is printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
_BLOCK = re.compile(r"^```console\n\$ topocheck ([^\n]*)\n(.+?)^```", re.MULTILINE | re.DOTALL)


def _shown() -> list[tuple[str, str, str]]:
    """Return (file, arguments, output) of every console block with a command and its output."""
    files = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    return [(f.name, *m.groups()) for f in files for m in _BLOCK.finditer(f.read_text())]


SHOWN = _shown()


def test_the_first_screen_shows_what_the_tool_prints() -> None:
    assert [s[0] for s in SHOWN].count("README.md") == 2


@pytest.mark.parametrize(("file", "arguments", "output"), SHOWN, ids=[f"{s[0]}: {s[1]}" for s in SHOWN])
def test_it_is_printed(file: str, arguments: str, output: str) -> None:
    assert "--from" in arguments, f"{file} shows the output of a machine that nobody else has"
    done = subprocess.run(
        [sys.executable, "-m", "topocheck", *shlex.split(arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.stdout.strip("\n") == output.strip("\n"), done.stderr
