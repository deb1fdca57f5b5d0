"""The lines in which NCCL's functions hand a return code up: `init.cc:352 -> 3`.

Each function that gets a code other than success from one that it called logs its own place and the code (CHECK macros
of src/include/checks.h), so that the lines of a thread lead from where it failed to where the program called. From 2.30
on the function stands in brackets. RCCL has the same lines with longer paths.
"""

from __future__ import annotations

import re

import msgspec

from topocheck.knowledge.nccl_causes import RESULTS, ResultCode

_RETURN = re.compile(
    rb"(?:\S{0,900}/)?([\w.-]{1,100}\.(?:cc|cpp|cu|h|hpp)):(\d{1,9}) (?:\([^)]{0,200}\) )?-> (\d{1,3})\b"
)
_MAX_THREADS = 20_000

_CLOSING = frozenset(
    "socket.cc socket.h ipcsocket.cc proxy.cc ras.cc client_support.cc client.cc rasnet.cc peers.cc".split()
)
"""Where the helper threads of a rank are when the other end of a connection is closed; with them alone a job has most
often just ended."""
_CALLS = frozenset("init.cc group.cc enqueue.cc net.cc transport.cc".split())
"""Files from which a code reaches the program, or ends a transport."""


def is_return(text: bytes) -> bool:
    """Tell whether an informational line hands a return code up."""
    return b" -> " in text and _RETURN.match(text) is not None


class Returned(msgspec.Struct):
    """Codes of a thread that were handed up one after the other."""

    code: ResultCode
    number: int
    line: int
    last_line: int
    text: str
    files: set[str]


class Returns:
    """Collects the codes by thread; bounded."""

    def __init__(self) -> None:
        self._of: dict[tuple[bytes, bytes, int], Returned] = {}

    def take(self, text: bytes, process: bytes, thread: bytes, line: int) -> ResultCode | None:
        """Take a line; return the code it states, or None where it states none.

        Args:
            text: the words of an informational line of NCCL.
            process: host and process id, as in the line.
            thread: its thread id.
            line: its number in the log.
        """
        m = _RETURN.match(text)
        code = RESULTS.get(int(m[3])) if m else None
        if m is None or code is None:
            return None
        key = process, thread, int(m[3])
        found = self._of.get(key)
        if found is None:
            if len(self._of) >= _MAX_THREADS:
                return code
            words = f"{text[:200].decode('utf-8', 'replace').strip()} (return code {int(m[3])}: {code})"
            found = self._of[key] = Returned(code, int(m[3]), line, line, words, set())
        found.last_line = line
        if len(found.files) < 64:
            found.files.add(m[1].decode())
        return code

    def failures(self, completed: dict[bytes, int]) -> tuple[dict[ResultCode, list[Returned]], int]:
        """Return the codes that ended something, by code in order of lines, and the number of threads of the others.

        Args:
            completed: process -> line of its last finished init.
        """
        ended: dict[ResultCode, list[Returned]] = {}
        harmless = 0
        for (process, _, _), r in self._of.items():
            closing = r.files <= _CLOSING and process in completed
            went_on = completed.get(process, 0) > r.last_line and not r.files & _CALLS
            if closing or went_on:
                harmless += 1
            else:
                ended.setdefault(r.code, []).append(r)
        return {c: sorted(rs, key=lambda r: r.line) for c, rs in ended.items()}, harmless
