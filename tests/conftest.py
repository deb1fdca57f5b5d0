"""Shared by all tests."""

from __future__ import annotations

import os
import shutil

import pytest


def require_program(*names: str) -> None:
    """Skip the test where a program is absent; fail where TOPOCHECK_REQUIRE_SERVICES=1 promises it."""
    absent = [n for n in names if shutil.which(n, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is None]
    if not absent:
        return
    text = f"needs {', '.join(absent)}, not installed here"
    if os.environ.get("TOPOCHECK_REQUIRE_SERVICES") == "1":
        pytest.fail(text)
    pytest.skip(text)
