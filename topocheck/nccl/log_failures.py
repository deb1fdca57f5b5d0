"""Classifies the failures of an NCCL log, and finds what they point to (knowledge/data/nccl_causes.tsv)."""

from __future__ import annotations

import functools
import re

from topocheck.knowledge.tables import rows
from topocheck.nccl.log_types import LogCause, LogFailure, NcclLog

_CODES = (
    ("unhandled cuda error", re.compile(rb"ncclUnhandledCudaError|unhandled cuda error", re.IGNORECASE)),
    ("unhandled system error", re.compile(rb"ncclSystemError|unhandled system error", re.IGNORECASE)),
    ("invalid argument", re.compile(rb"ncclInvalidArgument|NCCL.*\binvalid argument", re.IGNORECASE)),
    ("invalid usage", re.compile(rb"ncclInvalidUsage|NCCL.*\binvalid usage", re.IGNORECASE)),
    ("remote error", re.compile(rb"ncclRemoteError|NCCL.*\bremote process exited|NCCL.*\bremote error", re.IGNORECASE)),
    ("internal error", re.compile(rb"ncclInternalError|NCCL.*\binternal (?:check failed|error)", re.IGNORECASE)),
)
"""NCCL's result codes as ncclGetErrorString and its callers (PyTorch, nccl-tests) word them (src/init.cc)."""

_MAX_TEXT = 300


@functools.cache
def _signs() -> tuple[tuple[str, str, re.Pattern[str], str, str], ...]:
    return tuple(
        (r["id"], r["code"], re.compile(r["pattern"]), r["cause"], r["next"])
        for r in rows("nccl_causes")
        if r["pattern"]
    )


@functools.cache
def _any_sign() -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{p.pattern})" for _, _, p, _, _ in _signs()))


class FailureFinder:
    """Collects codes and signs as the lines come."""

    def __init__(self, log: NcclLog) -> None:
        self._log = log
        self._codes: dict[str, tuple[int, int, str]] = {}

    def plain(self, line: bytes, number: int) -> None:
        """Take a line that is not NCCL's own but may tell of its failure."""
        for code, pattern in _CODES:
            if pattern.search(line):
                self._code(code, line, number)
                break
        else:
            if b"CUDA" not in line and b"nccl" not in line.lower():
                return
        self._sign(line, number)

    def message(self, text: bytes, number: int) -> None:
        """Take the text of one of NCCL's own lines."""
        for code, pattern in _CODES:
            if pattern.search(text):
                self._code(code, text, number)
                break
        self._sign(text, number)

    def _code(self, code: str, line: bytes, number: int) -> None:
        count, first, words = self._codes.get(code, (0, number, line.decode("utf-8", "replace").strip()[:_MAX_TEXT]))
        self._codes[code] = (count + 1, first, words)

    def _sign(self, line: bytes, number: int) -> None:
        text = line.decode("utf-8", "replace")
        if not _any_sign().search(text):
            return
        for id_, _, pattern, cause, following in _signs():
            if id_ not in self._log.signs and pattern.search(text):
                self._log.signs[id_] = LogCause(
                    id=id_, cause=cause, next=following, line=number, text=text.strip()[:_MAX_TEXT]
                )

    def failures(self) -> tuple[LogFailure, ...]:
        """Return the failures by code, each with the signs of its code, then those of the others, in order of lines."""
        signs = sorted(self._log.signs.values(), key=lambda s: s.line)
        code_of = {id_: code for id_, code, _, _, _ in _signs()}
        out = []
        for code, (count, first, text) in sorted(self._codes.items(), key=lambda x: x[1][1]):
            own = [s for s in signs if code_of[s.id] == code]
            causes = own or signs or _fallback(code)
            out.append(LogFailure(code=code, count=count, line=first, text=text, causes=tuple(causes)))
        return tuple(out)


def _fallback(code: str) -> list[LogCause]:
    return [
        LogCause(id=r["id"], cause=r["cause"], next=r["next"])
        for r in rows("nccl_causes")
        if r["code"] == code and not r["pattern"]
    ]
