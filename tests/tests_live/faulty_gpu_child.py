"""A child whose driver engine flips one byte of each destination after the copies of a sample."""

from __future__ import annotations

from topocheck.bandwidth.cases import CopyRow
from topocheck.tests_live.copies.child import main
from topocheck.tests_live.copies.driver import DriverEngine
from topocheck.tests_live.copies.driver_copy import DriverRow
from topocheck.tests_live.copies.measure import Progress, Sample

PLACE = 33_333_333


class FaultyRow(DriverRow):
    def sample(self) -> Sample:
        out = super().sample()
        for lane in self.lanes:
            self.engine.current(lane.transfer.destination)
            call = self.engine.driver.call
            want = lane.pattern.expected(PLACE, 1)[0]
            call("cuMemsetD8", int(lane.destination) + PLACE, want ^ 1, 1)
            call("cuCtxSynchronize")
        return out


class FaultyEngine(DriverEngine):
    def prepare(self, row: CopyRow, progress: Progress) -> FaultyRow:
        return FaultyRow(self, row, progress)


if __name__ == "__main__":
    main(lambda group: FaultyEngine())
