"""Where samples of `watch` go as they come: the terminal or pipe, the recording, the metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from topocheck.cli import common

if TYPE_CHECKING:
    from topocheck.overtime.types import Header, Sample


class Shown:
    """Shows, records and exports each sample.

    Args:
        header: what the recording begins with.
        record: the file of the recording.
        metrics: the file of the metrics.
        on: show samples: as a table on a terminal, else as a line each.
        no_color: no colours.
    """

    def __init__(self, header: Header, record: Path | None, metrics: Path | None, *, on: bool, no_color: bool) -> None:
        from topocheck.host.output import GrowingFile
        from topocheck.overtime.record import Writer
        from topocheck.render.formats.watch_prometheus import Exporter
        from topocheck.render.watch import Lines

        self._metrics = metrics
        self._exporter = None if metrics is None else Exporter(header)
        self._file = None if record is None else GrowingFile(record)
        self._writer = Writer(compressed=record is not None and record.suffix == ".gz")
        if self._file is not None:
            self._file.write(self._writer.header(header))
        self.on_terminal = on and common.on_terminal()
        self._screen = _Screen(header, colour=common.style(None, no_color, 0).colour) if self.on_terminal else None
        self._lines = Lines(header) if on and not self.on_terminal else None

    def each(self, sample: Sample) -> None:
        """Record and show a sample."""
        if self._file is not None and (data := self._writer.sample(sample)):
            self._file.write(data)
        if self._exporter is not None and self._metrics is not None:
            common.emit(self._exporter.text(sample), self._metrics)
        if self._screen is not None:
            self._screen.show(sample)
        if self._lines is not None:
            common.emit(self._lines.line(sample) + "\n")

    def close(self) -> None:
        """End the table and the file."""
        try:
            if self._screen is not None:
                self._screen.close()
        finally:
            if self._file is not None:
                if data := self._writer.end():
                    self._file.write(data)
                self._file.close()


class _Screen:
    """The table, and the keys that change it."""

    def __init__(self, header: Header, *, colour: bool) -> None:
        from topocheck.cli.keys import Keys
        from topocheck.render.watch_table import LiveTable

        self._table = LiveTable(header, colour=colour)
        self._keys = Keys(self._table.key)
        self.show = self._table.show

    def close(self) -> None:
        self._keys.close()
        self._table.close()
