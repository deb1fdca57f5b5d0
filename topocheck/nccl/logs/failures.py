"""Classifies the failures of an NCCL log, and finds what they point to (knowledge/data/nccl_causes.tsv)."""

from __future__ import annotations

import functools
import re

import msgspec

from topocheck.knowledge.nccl_causes import Cause, FailureCode, ResultCode
from topocheck.model.address import format_cpulist
from topocheck.nccl.logs.last_warnings import LastWarnings
from topocheck.nccl.logs.phrases import Phrases
from topocheck.nccl.logs.returns import Returns
from topocheck.nccl.logs.signs import fallback, ranked, rows, signs_in
from topocheck.nccl.logs.tracebacks import Tracebacks
from topocheck.nccl.logs.types import MAX_RANKS, LogCause, LogFailure, NcclLog

_WORDS: tuple[tuple[ResultCode, str], ...] = (
    ("unhandled cuda error", r"ncclUnhandledCudaError|unhandled (cuda|hip) error"),
    ("unhandled system error", r"ncclSystemError|unhandled system error"),
    ("invalid argument", r"ncclInvalidArgument|NCCL.*\binvalid argument"),
    ("invalid usage", r"ncclInvalidUsage|NCCL.*\binvalid usage"),
    ("remote error", r"ncclRemoteError|NCCL.*\bremote process exited|NCCL.*\bremote error"),
    ("internal error", r"ncclInternalError|NCCL.*\binternal (?:check failed|error)"),
    ("timeout", r"ncclTimeout\b"),
)
_CODES = tuple((code, Phrases(pattern, re.IGNORECASE)) for code, pattern in _WORDS)
"""NCCL's result codes as ncclGetErrorString and its callers (PyTorch, nccl-tests) word them (src/init.cc)."""

_TIMEOUT = re.compile(
    rb"Rank (\d{1,9})\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,40})"
)
"""What PyTorch says of a collective that did not end (ProcessGroupNCCL.cpp)."""
_OF_NCCL = re.compile(rb"CUDA|NVRM|HIP|[Nn][Cc][Cc][Ll]|NET/(?:IB|Socket|OFI)|cuda[A-Z]|Cuda (?:error|failure)")

_MAX_TEXT = 300
_MAX_COMMS = 16


class _Warned(msgspec.Struct, frozen=True):
    """A warning, or a loud line of a program, and the signs in it."""

    line: int
    text: str
    ids: tuple[str, ...]


class _Stated(msgspec.Struct):
    """A code that lines of the log state."""

    count: int
    line: int
    text: str
    near: _Warned | None
    """The warning nearest before the first of them."""
    same_process: bool = False
    """Whether that warning is of the process that states the code."""


@functools.lru_cache(maxsize=1 << 10)
def _code_in(text: str) -> ResultCode | None:
    return next((code for code, pattern in _CODES if pattern.search(text)), None)


class FailureFinder:
    """Collects codes and signs as the lines come."""

    def __init__(self, log: NcclLog) -> None:
        self._log = log
        self._codes: dict[FailureCode, _Stated] = {}
        self._loud: dict[str, int] = {}
        self._near: dict[tuple[bytes, bool], _Warned] = {}
        self._returns = Returns()
        self._last = LastWarnings()
        self._tracebacks = Tracebacks()
        self._returned_near: dict[ResultCode, tuple[_Warned | None, bool]] = {}
        self._timeouts: dict[int, tuple[int, str]] = {}
        self._timeout_lines: tuple[int, int] = (0, 0)

    def program(self, line: bytes, number: int) -> None:
        """Take any line that is not NCCL's own, before `plain` takes those that may tell of a failure."""
        self._tracebacks.take(line, number)

    def destroyed(self, number: int) -> None:
        """Take note of a line by which NCCL says that a communicator was taken down in good order."""
        self._tracebacks.destroyed(number)

    def plain(self, line: bytes, number: int) -> None:
        """Take a line that is not NCCL's own but may tell of its failure."""
        if timeout := _TIMEOUT.search(line):
            count, first = self._timeout_lines
            self._timeout_lines = count + 1, first or number
            if len(self._timeouts) < MAX_RANKS:
                self._timeouts.setdefault(int(timeout[1]), (int(timeout[2]), timeout[3].decode()))
            return
        text = line.decode("utf-8", "replace")
        code = _code_in(text)
        if code is not None:
            self._code(code, text, number)
        found = signs_in(text, program=code is None and _OF_NCCL.search(line) is None)
        self._keep(found, text, number, loud=True)
        if found:
            self._warned(b"", found, text, number)

    def message(
        self,
        line: bytes,
        number: int,
        *,
        warning: bool = False,
        process: bytes = b"",
        thread: bytes = b"",
        where: bytes = b"",
    ) -> None:
        """Take the text of one of NCCL's own lines; `where` is the source file and line that a warning states."""
        text = line.decode("utf-8", "replace")
        code = _code_in(text)
        if code is not None:
            self._code(code, text, number)
        found = signs_in(f"{where.decode('utf-8', 'replace')} {text}" if where else text)
        self._keep(found, text, number, loud=warning)
        if warning:
            self._warned(process, found, text, number)
            self._last.warning(text.strip()[:_MAX_TEXT], number, process, thread)

    def last_error(self, line: bytes, number: int) -> None:
        """Take the line that follows `Last error:` in PyTorch's message: NCCL's own last warning."""
        text = line.decode("utf-8", "replace")
        found = signs_in(text)
        self._keep(found, text, number, loud=True)
        self._warned(b"", found, text, number)
        for stated in self._codes.values():
            if stated.near is None:
                stated.near = self._nearest(b"")[0]

    def returned(self, text: bytes, number: int, process: bytes, thread: bytes) -> bool:
        """Take an informational line; tell whether it hands a return code up."""
        code = self._returns.take(text, process, thread, number)
        if code is not None and code not in self._returned_near:
            self._returned_near[code] = self._nearest(process)
        return code is not None

    @property
    def wants_info(self) -> bool:
        """Whether an informational line of a thread would change what is thought of its last warning."""
        return self._last.waiting()

    def info(self, text: bytes, process: bytes, thread: bytes) -> None:
        """Take an informational line that hands no code up."""
        self._last.info(text, process, thread)

    def _code(self, code: FailureCode, text: str, number: int) -> None:
        found = self._codes.get(code)
        if found is None:
            self._codes[code] = _Stated(1, number, text.strip()[:_MAX_TEXT], self._nearest(b"")[0])
        else:
            found.count += 1

    def _keep(self, found: tuple[Cause, ...], text: str, number: int, *, loud: bool) -> None:
        for s in found:
            if s.id not in self._log.signs:
                self._log.signs[s.id] = LogCause(
                    id=s.id, cause=s.cause, next=s.next, line=number, text=text.strip()[:_MAX_TEXT]
                )
            if loud:
                self._loud[s.id] = self._loud.get(s.id, 0) + 1

    def _warned(self, process: bytes, found: tuple[Cause, ...], text: str, number: int) -> None:
        after = bool(found) and all(s.kind == "consequence" for s in found)
        warned = _Warned(number, text.strip()[:_MAX_TEXT], tuple(s.id for s in found))
        for key in {(b"", after), (process, after)}:
            if key in self._near or len(self._near) < MAX_RANKS:
                self._near[key] = warned

    def _nearest(self, process: bytes) -> tuple[_Warned | None, bool]:
        """Return the last warning of a process, else of any, and whether it is of that process.

        A warning of a consequence counts only without others.
        """
        keys = [(process, False), (process, True), (b"", False), (b"", True)]
        key = next((k for k in keys if k in self._near), None)
        return (None, False) if key is None else (self._near[key], key[0] != b"")

    def failures(self, completed: dict[bytes, int]) -> tuple[LogFailure, ...]:
        """Return the failures in order of lines: by stated code, each with its causes, then those of signs alone.

        A warning whose sign belongs to no stated code is a failure of its own: many programs print no code.

        Args:
            completed: process -> line of its last finished init.
        """
        self._count_returned(completed)
        signs = sorted(self._log.signs.values(), key=lambda s: s.line)
        out = [self._stated(code, s, signs) for code, s in self._codes.items()]
        out += self._alone(signs, out)
        out = sorted([*out, *self._timed_out()], key=lambda f: f.line)
        out = out or list(self._last.failures(self._log, completed))
        out = self._with_exceptions(out, completed)
        waiting = _unfinished(self._log)
        if out and waiting is not None:
            self._log.notes.append(f"init did not complete: {waiting.text}")
        return tuple(out) if out or waiting is None else (waiting,)

    def _with_exceptions(self, out: list[LogFailure], completed: dict[bytes, int]) -> list[LogFailure]:
        """Add the exceptions by which programs ended, after what is known of NCCL; they explain a launcher's words."""
        raised, went_on = self._tracebacks.failures(_is_told, completed.values(), alone=not out)
        if went_on:
            self._log.notes.append(
                f"{went_on} Python traceback{'s' * (went_on != 1)} after which the job went on: not counted as a"
                " failure"
            )
        if any(c.id == "death_signal" for f in out for c in f.causes):
            raised = [f for f in raised if not f.text.startswith("KeyboardInterrupt")]  # SIGINT, that is said
        if raised:
            out = [f for f in out if {c.id for c in f.causes} != {"killed"} or f.stated]
        return [*out, *raised]

    def _count_returned(self, completed: dict[bytes, int]) -> None:
        ended, harmless = self._returns.failures(completed)
        for code, threads in ended.items():
            first = threads[0]
            stated = self._codes.get(code)
            if stated is None or first.line < stated.line:
                count = max(len(threads), stated.count if stated else 0)
                text = stated.text if stated else first.text
                self._codes[code] = _Stated(count, first.line, text, *self._returned_near[code])
        if harmless:
            self._log.notes.append(
                f"{harmless} thread{'s' * (harmless != 1)} returned an error after or before an init that completed, as"
                " at the end of a job:"
                " not counted as a failure"
            )

    def _stated(self, code: FailureCode, stated: _Stated, signs: list[LogCause]) -> LogFailure:
        table = rows()
        near = stated.near.ids if stated.near else ()
        own = [s for s in signs if table[s.id].code == code]
        of_code = tuple(id_ for id_ in near if table[id_].code == code)
        # A line of a program names no process: a warning of another code may be of another rank.
        near = of_code or (() if own and not stated.same_process else near)
        causes = ranked(near, own or ([] if near else signs), self._log.signs)
        if stated.near is not None and not stated.near.ids:
            after = fallback(code)
            causes.insert(
                0,
                LogCause(
                    id="warning",
                    cause="the warning nearest before it says what failed",
                    next=after[0].next if after else "",
                    line=stated.near.line,
                    text=stated.near.text,
                ),
            )
        return LogFailure(
            code=code,
            count=stated.count,
            line=stated.line,
            text=stated.text,
            causes=tuple(causes or fallback(code)),
        )

    def _alone(self, signs: list[LogCause], stated: list[LogFailure]) -> list[LogFailure]:
        """Return a failure for each line with loud signs that explain no stated code."""
        table = rows()
        taken = {c.id for f in stated for c in f.causes}
        lines = {c.line for f in stated for c in f.causes if c.line}
        wrong = {x for s in signs if s.id in self._loud for x in table[s.id].instead_of}
        open_: dict[tuple[int, FailureCode], list[LogCause]] = {}
        for s in signs:
            loud = s.id in self._loud and table[s.id].kind in ("failure", "general")
            if loud and s.id not in taken and s.id not in wrong and s.line not in lines:
                open_.setdefault((s.line, table[s.id].code), []).append(s)
        all_open = {(s.id, code) for (_, code), found in open_.items() for s in found}
        out = []
        for (line, code), found in open_.items():
            causes = tuple(ranked((s.id for s in found), (), self._log.signs))
            first = causes[0].id if causes else ""
            if first not in {s.id for s in found} and (first, code) in all_open:
                continue  # what a launcher says of a process that another line tells of
            count = max(self._loud[s.id] for s in found)
            text = found[0].text
            out.append(LogFailure(code=code, count=count, line=line, text=text, causes=causes, stated=False))
        return out

    def _timed_out(self) -> list[LogFailure]:
        """Return a failure for the collectives that did not end, with who waited in which and who did not."""
        if not self._timeouts:
            return []
        waiting: dict[tuple[int, str], list[int]] = {}
        for rank, call in self._timeouts.items():
            waiting.setdefault(call, []).append(rank)
        parts = [f"rank {format_cpulist(ranks)} in {op}, SeqNum {seq}" for (seq, op), ranks in sorted(waiting.items())]
        text = f"waited in vain: {'; '.join(parts[:8])}{' and others' if len(parts) > 8 else ''}"
        silent = sorted(set(range(min(self._log.nranks or 0, MAX_RANKS))) - set(self._timeouts))
        if silent:
            text += f"; rank {format_cpulist(silent)} reports no timeout"
        count, line = self._timeout_lines
        code = "collective timeout"
        return [LogFailure(code=code, count=count, line=line, text=text, causes=tuple(fallback(code)))]

    def hints(self, failures: tuple[LogFailure, ...]) -> tuple[LogCause, ...]:
        """Return what warnings point to that belongs to none of the failures, in order of lines."""
        explained = {c.id for f in failures for c in f.causes}
        lines = {c.line for f in failures for c in f.causes}
        table = rows()
        wrong = {x for id_ in explained & table.keys() for x in table[id_].instead_of}
        signs = sorted(self._log.signs.values(), key=lambda s: s.line)
        at = {(s.id, s.line) for s in signs}
        # One that stands for another only where its own code is stated: of that nothing is said here.
        wrong |= {s.id for s in signs for x in table[s.id].instead_of if (x, s.line) in at and x not in wrong}
        return tuple(s for s in signs if s.id in self._loud and s.id not in explained | wrong and s.line not in lines)


def _is_told(text: str) -> bool:
    """Tell whether the text of an exception makes a failure by its code or by its signs."""
    if _code_in(text) is not None or _TIMEOUT.search(text.encode()):
        return True
    found = signs_in(text, program=_OF_NCCL.search(text.encode()) is None)
    return any(s.kind in ("failure", "general") for s in found)


def _unfinished(log: NcclLog) -> LogFailure | None:
    """Return a failure for the communicators whose init began for a rank and did not end in the log."""
    lines = []
    count = 0
    for name, comm in log.comms.items():
        waiting = comm.unfinished()
        count += bool(waiting)
        if not waiting or count > _MAX_COMMS:
            continue
        text = f"communicator {name}: no end of init for rank {format_cpulist(waiting)} of {comm.nranks}"
        silent = sorted(set(range(min(comm.nranks, MAX_RANKS))) - comm.started - comm.completed)
        lines.append(text + (f"; no line at all of rank {format_cpulist(silent)}" if silent else ""))
    if not lines:
        return None
    if count > _MAX_COMMS:
        lines.append(f"and {count - _MAX_COMMS} communicators more")
    code = "init not finished"
    return LogFailure(code=code, count=count, line=0, text="; ".join(lines), causes=tuple(fallback(code)), stated=False)
