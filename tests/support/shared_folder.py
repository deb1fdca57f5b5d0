"""A folder that every user can write to: pytest's own are closed to others whenever another pytest starts."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """Give a folder of mode 0777, and remove it."""
    with tempfile.TemporaryDirectory(prefix="topocheck-test-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder
