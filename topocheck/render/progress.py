"""A live line of progress on a terminal; silence in a pipe."""

from __future__ import annotations

import sys
from typing import Any

from topocheck.render.quoting import one_line


class Progress:
    """Shows how far a run is on standard error, if that is a terminal."""

    def __init__(self, *, enabled: bool) -> None:
        self._bar: Any = None
        self._task: Any = None
        if enabled and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                BarColumn(24),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeElapsedColumn(),
                TextColumn("{task.description}", markup=False),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("start", total=1.0)
            self._bar.start()

    def tell(self, kind: str, words: str, share: float) -> None:
        """Show what goes on; failures stay on the screen."""
        if self._bar is None:
            return
        if kind == "failed":
            self._bar.console.print(one_line(words), markup=False, highlight=False)
        self._bar.update(self._task, completed=share, description=one_line(words[:60]))

    def close(self) -> None:
        """Take the line away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
