"""A child whose engine is the host's, with one fault the tests ask for by the row's id."""

from __future__ import annotations

import ctypes
import os
import time

from topocheck.bandwidth.cases import CopyRow
from topocheck.tests_live.copies.child import main
from topocheck.tests_live.copies.host import HostEngine, HostRow
from topocheck.tests_live.copies.measure import Progress, UnsupportedRowError


class FaultyRow(HostRow):
    def copy(self) -> None:
        super().copy()
        if "flip" in self.row.id:
            at = self.target.pointer + 3_000_001
            byte = ctypes.string_at(at, 1)[0]
            ctypes.memset(at, byte ^ 0x10, 1)
        if "hang" in self.row.id:
            time.sleep(600)
        if "crash" in self.row.id:
            os.abort()


class FaultyEngine(HostEngine):
    def prepare(self, row: CopyRow, progress: Progress) -> FaultyRow:
        if "raise" in row.id:
            raise RuntimeError("cuMemAlloc said no")
        if "refuse" in row.id:
            raise UnsupportedRowError("this device cannot")
        return FaultyRow(row, progress)


if __name__ == "__main__":
    main(lambda group: FaultyEngine())
