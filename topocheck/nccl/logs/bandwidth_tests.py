"""Tables that bandwidth tests print into a log: nccl-tests' and nvbandwidth's.

nccl-tests (src/common.cu, src/util.cu) prints its columns' names, a row for each size, and two lines of summary; a
launcher may put something before each line. nvbandwidth prints `Running NAME.`, a matrix and `SUM NAME VALUE`.
"""

from __future__ import annotations

import re

from topocheck.nccl.logs.types import LogTest, NcclLog

_MAX_TESTS = 200
_NAME = re.compile(rb"# (?:Collective test starting: |nccl-tests .*?)?([a-z_]{3,40}_perf)\b")
_AVERAGE = re.compile(rb"# Avg bus bandwidth +: (\d{1,9}(?:\.\d{1,9})?(?:e[+-]\d{1,3})?)\b")
_SUM = re.compile(rb"(?:^|\s)SUM ([a-z0-9_]{3,100}) (\d{1,12}(?:\.\d{1,9})?)\s*$")
_NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:e[+-]?[0-9]{1,3})?")


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


class BandwidthTests:
    """Takes the lines that are not NCCL's own."""

    def __init__(self, log: NcclLog) -> None:
        self._log = log
        self._columns: list[str] = []
        self._name = ""
        self._open = False

    def take(self, line: bytes) -> str | None:
        """Take a line; return what to report where a row holds wrong values."""
        if b"#" in line:
            self._comment(line[line.index(b"#") :])
            return None
        line = line.rstrip()
        if self._columns and line and (line[-1:] in b"0123456789" or line.endswith(b"N/A")):
            return self._row(line)
        if b"SUM " in line and (m := _SUM.search(line)):
            self._add(LogTest(program="nvbandwidth", name=m[1].decode(), sum_gb_s=float(m[2])))
        return None

    def _add(self, test: LogTest) -> None:
        if len(self._log.tests) < _MAX_TESTS:
            self._log.tests.append(test)

    def _comment(self, text: bytes) -> None:
        if m := _NAME.match(text):
            self._name = m[1].decode()
        elif b"busbw" in text and b"algbw" in text:
            self._columns = text[1:].decode("utf-8", "replace").split()[:64]
            self._open = False
        elif (m := _AVERAGE.match(text)) and self._open:
            self._log.tests[-1].average_gb_s = float(m[1])
            self._columns, self._open = [], False

    def _row(self, line: bytes) -> str | None:
        """Take a row of the table. Cells count from the right: what is empty in some collectives is on the left."""
        cells = line.decode("utf-8", "replace").split()
        columns = self._columns
        rates = [n for i, name in enumerate(columns) if name == "busbw" and (n := _cell(cells, columns, i)) is not None]
        size = next((n for c in cells if (n := _number(c.rpartition(":")[2])) is not None), None)
        if len(cells) < 8 or len(cells) > 80 or not rates or size is None or size < 0:
            return None
        if not self._open:
            self._add(LogTest(program="nccl-tests", name=self._name))
            self._open = True
        test = self._log.tests[-1]
        test.rows += 1
        if max(rates) > test.peak_gb_s:
            test.peak_gb_s, test.peak_bytes = max(rates), int(size)
        wrong = [n for i, name in enumerate(columns) if name == "#wrong" and (n := _cell(cells, columns, i))]
        if not any(n > 0 for n in wrong):
            return None
        test.wrong_rows += 1
        return f"#wrong={max(wrong):.0f} at {size:.0f} bytes, busbw {max(rates):g} GB/s"


def _cell(cells: list[str], columns: list[str], index: int) -> float | None:
    """Return the number below a column's name."""
    place = len(columns) - index
    return _number(cells[-place]) if place <= len(cells) else None
