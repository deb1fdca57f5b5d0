"""Warnings of NCCL after which an error is returned, where nothing in the log shows that the job went on.

A log made with NCCL_DEBUG=WARN holds no return codes, and a program may print none: then the warning is all that is
left of a job that died. A thread that goes on says so in its next informational lines, a process by an init that
completes, nccl-tests by the end of its table.
"""

from __future__ import annotations

import msgspec

from topocheck.knowledge.nccl_warnings import Warned, warning_of
from topocheck.nccl.logs.signs import fallback, signs_in
from topocheck.nccl.logs.types import MAX_RANKS, LogCause, LogFailure, NcclLog


class _Last(msgspec.Struct):
    row: Warned
    line: int
    text: str
    count: int = 1


class LastWarnings:
    """The last warning of each thread that has said nothing since; bounded."""

    def __init__(self) -> None:
        self._of: dict[tuple[bytes, bytes], _Last] = {}
        self._rows: dict[str, Warned | None] = {}

    def warning(self, text: str, line: int, process: bytes, thread: bytes) -> None:
        """Take a warning. One with a sign of its own (nccl_causes.tsv) is judged by that."""
        if text not in self._rows:
            if len(self._rows) >= MAX_RANKS:
                return
            self._rows[text] = None if signs_in(text) else warning_of(text)
        row = self._rows[text]
        key = process, thread
        found = self._of.get(key)
        if row is None:
            return
        if found is not None and found.row is row:
            found.count += 1
        elif found is None and len(self._of) < MAX_RANKS:
            self._of[key] = _Last(row, line, text)

    def info(self, text: bytes, process: bytes, thread: bytes) -> None:
        """Take an informational line that hands no code up: its thread went on, unless it ends the communicator."""
        if self._of and b"Abort" not in text and b"Destroy" not in text:
            self._of.pop((process, thread), None)

    def waiting(self) -> bool:
        """Tell whether there is any."""
        return bool(self._of)

    def failures(self, log: NcclLog, completed: dict[bytes, int]) -> list[LogFailure]:
        """Return a failure for each code, from the first warning with it."""
        if log.tests and all(t.average_gb_s is not None or t.program != "nccl-tests" for t in log.tests):
            return []
        by_code: dict[str, list[_Last]] = {}
        for (process, _), last in self._of.items():
            if completed.get(process, 0) < last.line:
                by_code.setdefault(last.row.code, []).append(last)
        out = []
        for code, found in by_code.items():
            first = min(found, key=lambda x: x.line)
            cause = f"NCCL returns an error to the program after this warning ({code}); no later line shows it going on"
            after = fallback(code)
            step = after[0].next if after else ""
            named = LogCause(id="warning", cause=cause, next=step, line=first.line, text=first.text)
            count = sum(x.count for x in found)
            out.append(
                LogFailure(code=code, count=count, line=first.line, text=first.text, causes=(named,), stated=False)
            )
        return out
