"""Classifies the failures of an NCCL log, and finds what they point to (knowledge/data/nccl_causes.tsv)."""

from __future__ import annotations

import functools
import re

import msgspec

from topocheck.knowledge.tables import rows
from topocheck.model.address import format_cpulist
from topocheck.nccl.log_types import MAX_RANKS, LogCause, LogFailure, NcclLog

_CODES = (
    ("unhandled cuda error", re.compile(rb"ncclUnhandledCudaError|unhandled cuda error", re.IGNORECASE)),
    ("unhandled system error", re.compile(rb"ncclSystemError|unhandled system error", re.IGNORECASE)),
    ("invalid argument", re.compile(rb"ncclInvalidArgument|NCCL.*\binvalid argument", re.IGNORECASE)),
    ("invalid usage", re.compile(rb"ncclInvalidUsage|NCCL.*\binvalid usage", re.IGNORECASE)),
    ("remote error", re.compile(rb"ncclRemoteError|NCCL.*\bremote process exited|NCCL.*\bremote error", re.IGNORECASE)),
    ("internal error", re.compile(rb"ncclInternalError|NCCL.*\binternal (?:check failed|error)", re.IGNORECASE)),
)
"""NCCL's result codes as ncclGetErrorString and its callers (PyTorch, nccl-tests) word them (src/init.cc)."""

_TIMEOUT = re.compile(
    rb"Rank (\d{1,9})\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,40})"
)
"""What PyTorch says of a collective that did not end (ProcessGroupNCCL.cpp)."""

_MAX_TEXT = 300


class _Sign(msgspec.Struct, frozen=True):
    id: str
    code: str
    pattern: re.Pattern[str]
    alone: bool
    cause: str
    next: str


@functools.cache
def _signs() -> tuple[_Sign, ...]:
    return tuple(
        _Sign(r["id"], r["code"], re.compile(r["pattern"]), r["alone"] == "yes", r["cause"], r["next"])
        for r in rows("nccl_causes")
        if r["pattern"]
    )


@functools.cache
def _any_sign() -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{s.pattern.pattern})" for s in _signs()))


class FailureFinder:
    """Collects codes and signs as the lines come."""

    def __init__(self, log: NcclLog) -> None:
        self._log = log
        self._codes: dict[str, tuple[int, int, str]] = {}
        self._loud: dict[str, int] = {}
        self._timeouts: dict[int, tuple[int, str]] = {}
        self._timeout_lines: tuple[int, int] = (0, 0)

    def plain(self, line: bytes, number: int) -> None:
        """Take a line that is not NCCL's own but may tell of its failure."""
        if timeout := _TIMEOUT.search(line):
            count, first = self._timeout_lines
            self._timeout_lines = count + 1, first or number
            if len(self._timeouts) < MAX_RANKS:
                self._timeouts.setdefault(int(timeout[1]), (int(timeout[2]), timeout[3].decode()))
            return
        for code, pattern in _CODES:
            if pattern.search(line):
                self._code(code, line, number)
                break
        else:
            if b"CUDA" not in line and b"nccl" not in line.lower():
                return
        self._sign(line, number, loud=True)

    def message(self, text: bytes, number: int, *, warning: bool = False) -> None:
        """Take the text of one of NCCL's own lines."""
        for code, pattern in _CODES:
            if pattern.search(text):
                self._code(code, text, number)
                break
        self._sign(text, number, loud=warning)

    def _code(self, code: str, line: bytes, number: int) -> None:
        count, first, words = self._codes.get(code, (0, number, line.decode("utf-8", "replace").strip()[:_MAX_TEXT]))
        self._codes[code] = (count + 1, first, words)

    def _sign(self, line: bytes, number: int, *, loud: bool) -> None:
        text = line.decode("utf-8", "replace")
        if not _any_sign().search(text):
            return
        for s in _signs():
            if not s.pattern.search(text):
                continue
            if s.id not in self._log.signs:
                self._log.signs[s.id] = LogCause(
                    id=s.id, cause=s.cause, next=s.next, line=number, text=text.strip()[:_MAX_TEXT]
                )
            if loud:
                self._loud[s.id] = self._loud.get(s.id, 0) + 1

    def failures(self) -> tuple[LogFailure, ...]:
        """Return the failures in order of lines: by stated code, each with the signs of its code, then those of others.

        A warning whose sign belongs to no stated code is a failure of its own: many programs print no code.
        """
        signs = sorted(self._log.signs.values(), key=lambda s: s.line)
        known = {s.id: s for s in _signs()}
        out = []
        for code, (count, first, text) in self._codes.items():
            own = [s for s in signs if known[s.id].code == code]
            causes = own or signs or _fallback(code)
            out.append(LogFailure(code=code, count=count, line=first, text=text, causes=tuple(causes)))
        taken = {c.id for f in out for c in f.causes}
        out += [
            LogFailure(
                code=known[s.id].code, count=self._loud[s.id], line=s.line, text=s.text, causes=(s,), stated=False
            )
            for s in signs
            if s.id in self._loud and s.id not in taken and known[s.id].alone
        ]
        return tuple(sorted([*out, *self._timed_out()], key=lambda f: f.line)) + _unfinished(self._log)

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
        return [LogFailure(code=code, count=count, line=line, text=text, causes=tuple(_fallback(code)))]

    def hints(self, failures: tuple[LogFailure, ...]) -> tuple[LogCause, ...]:
        """Return what warnings point to that belongs to none of the failures, in order of lines."""
        explained = {c.id for f in failures for c in f.causes}
        signs = sorted(self._log.signs.values(), key=lambda s: s.line)
        return tuple(s for s in signs if s.id in self._loud and s.id not in explained)


def _unfinished(log: NcclLog) -> tuple[LogFailure, ...]:
    """Return a failure for the communicators whose init began for a rank and did not end in the log."""
    lines = []
    for name, comm in log.comms.items():
        waiting = comm.unfinished()
        if not waiting:
            continue
        text = f"communicator {name}: no end of init for rank {format_cpulist(waiting)} of {comm.nranks}"
        silent = sorted(set(range(min(comm.nranks, MAX_RANKS))) - comm.started - comm.completed)
        lines.append(text + (f"; no line at all of rank {format_cpulist(silent)}" if silent else ""))
    if not lines:
        return ()
    code = "init not finished"
    return (
        LogFailure(
            code=code, count=len(lines), line=0, text="; ".join(lines), causes=tuple(_fallback(code)), stated=False
        ),
    )


def _fallback(code: str) -> list[LogCause]:
    return [
        LogCause(id=r["id"], cause=r["cause"], next=r["next"])
        for r in rows("nccl_causes")
        if r["code"] == code and not r["pattern"]
    ]
