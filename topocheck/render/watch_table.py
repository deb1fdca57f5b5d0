"""The table of `watch` on a terminal: renewed with each sample, sorted and frozen by keys."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from topocheck.model.names import natural_key
from topocheck.render.quoting import one_line
from topocheck.render.watch import HEAD, Rates, Row, rows

if TYPE_CHECKING:
    from rich.table import Table

    from topocheck.overtime.types import Header, Sample

HELP = "s sort by the next column   r reverse   f freeze   q quit"


class LiveTable:
    """The table on a terminal; what is shown last stays. Samples and keys may come from two threads."""

    def __init__(self, header: Header, *, colour: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self._header = header
        self._rates = Rates()
        self._rows: list[Row] = []
        self._title = ""
        self._column, self._reverse, self._frozen = 0, False, False
        self._lock = threading.Lock()
        self._live = Live(console=Console(no_color=not colour, highlight=False, markup=False), auto_refresh=False)
        self._live.start()

    def show(self, sample: Sample) -> None:
        """Show a sample; while frozen, it is only counted in."""
        with self._lock:
            found = rows(sample, self._header, self._rates)
            if not self._frozen:
                self._rows = found
                self._title = f"{sample.at_s:.0f} s" + "".join(f"  {s}: {why}" for s, why in sample.silent.items())
                self._draw()

    def key(self, key: str) -> None:
        """Sort, reverse or freeze."""
        with self._lock:
            if key == "s":
                self._column, self._reverse = (self._column + 1) % len(HEAD), self._column + 1 in _NUMBERS
            elif key == "r":
                self._reverse = not self._reverse
            elif key == "f":
                self._frozen = not self._frozen
            else:
                return
            self._draw()

    def _draw(self) -> None:
        self._live.update(self._table(), refresh=True)

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, title=Text(one_line(self._title)), title_justify="left", caption_justify="left")
        for i, name in enumerate(HEAD):
            mark = (" ▼" if self._reverse else " ▲") if i == self._column else ""
            table.add_column(Text(name + mark, "bold"))
        for row in sorted(self._rows, key=lambda r: natural_key(r[self._column]), reverse=self._reverse):
            table.add_row(*(Text(one_line(c), style="yellow" if i == len(HEAD) - 1 else "") for i, c in enumerate(row)))
        table.caption = Text(("FROZEN   " if self._frozen else "") + HELP, "dim")
        return table

    def close(self) -> None:
        """Leave the terminal as it is."""
        self._live.stop()


_NUMBERS = tuple(HEAD.index(name) for name in ("clock", "temp", "load", "GB/s", "PCIe GB/s"))
"""Columns that are sorted from the highest."""
