"""What the README and docs/ show as printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
BLOCK = re.compile(r"^```console\n\$ topocheck ([^\n]*)\n(.+?)^```", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """Return the README and the pages of docs/."""
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def printed(arguments: str) -> str:
    """Return what a command prints, run in the repository; it ends with one newline."""
    done = subprocess.run(
        [sys.executable, "-m", "topocheck", *shlex.split(arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.strip("\n") + "\n"


CUT = "...\n"
"""The last line of a block that shows the beginning of what is printed."""


def shown(arguments: str, output: str) -> str:
    """Return what a block should hold that holds `output` now: as many lines where that is cut."""
    text = printed(arguments)
    lines = text.splitlines(keepends=True)
    kept = output.count("\n") - 1
    return "".join(lines[:kept]) + CUT if output.endswith("\n" + CUT) and kept < len(lines) else text


def renewed(page: str) -> str:
    """Return a page with what its commands print now."""
    return BLOCK.sub(lambda m: f"```console\n$ topocheck {m[1]}\n{shown(m[1], m[2])}```", page)
