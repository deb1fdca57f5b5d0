"""The examples of docs/python.md: a block of Python, and after it what it prints."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.support.printed import REPOSITORY
from tests.support.waiting import PATIENCE_S

PAGE = REPOSITORY / "docs" / "python.md"
EXAMPLE = re.compile(r"^```python\n(.+?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(code: str) -> str:
    """Return what Python code prints, run in the repository."""
    argv = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        argv, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=PATIENCE_S, stdin=subprocess.DEVNULL
    )
    return done.stdout + done.stderr


def renewed(page: str) -> str:
    """Return a page with what its examples print now."""
    return EXAMPLE.sub(lambda m: f"```python\n{m[1]}```\n\n```text\n{run(m[1])}```", page)
