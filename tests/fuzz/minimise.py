"""Makes the case of a finding smaller, as long as the finding stays."""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Callable, Iterator

import msgspec

from tests.fuzz.case import Case, Finding

Check = Callable[[Case], list[Finding]]


def minimise(case: Case, finding: Finding, check: Check, seconds: float = 20.0) -> Case:
    """Return a smaller case that still shows the finding; greedy, and done when the time is."""
    until = time.monotonic() + seconds

    def shows(candidate: Case) -> bool:
        return any(f.kind == finding.kind and f.key == finding.key for f in check(candidate))

    for part in (*(f"file {n}" for n in case.files), "stdin"):
        case = _shrunk(case, part, shows, until)
    for smaller in _without(case):
        if time.monotonic() < until and shows(smaller):
            case = smaller
    return case


def _without(case: Case) -> Iterator[Case]:
    """Yield the case without one of its variables, odd files or options; only options that stand alone."""
    for name in case.env:
        yield msgspec.structs.replace(case, env={k: v for k, v in case.env.items() if k != name})
    for name in case.odd:
        yield msgspec.structs.replace(case, odd={k: v for k, v in case.odd.items() if k != name})


def _shrunk(case: Case, part: str, shows: Callable[[Case], bool], until: float) -> Case:
    data = case.stdin if part == "stdin" else case.files[part.removeprefix("file ")]
    packed = data[:2] == b"\x1f\x8b"
    try:
        text = gzip.decompress(data) if packed else data
    except (OSError, EOFError, zlib.error):
        text, packed = data, False

    def put(pieces: list[bytes], join: bytes) -> Case:
        made = join.join(pieces)
        made = gzip.compress(made, 1, mtime=0) if packed else made
        if part == "stdin":
            return msgspec.structs.replace(case, stdin=made)
        return msgspec.structs.replace(case, files={**case.files, part.removeprefix("file "): made})

    for join in (b"\n", b""):
        current = data if not packed else text
        pieces = current.split(b"\n") if join else [current[i : i + 1] for i in range(len(current))]
        if len(pieces) > (200_000 if join else 400):
            continue
        pieces = _fewer(pieces, lambda some, join=join: shows(put(some, join)), until)  # type: ignore[misc]
        text = join.join(pieces)
        data = text if not packed else data
    return put([text], b"")


def _fewer(pieces: list[bytes], shows: Callable[[list[bytes]], bool], until: float) -> list[bytes]:
    """Return fewer pieces that still show it: halves, quarters, ... single ones are left out in turn."""
    size = max(len(pieces) // 2, 1)
    while pieces:
        at = 0
        while at < len(pieces):
            if time.monotonic() > until:
                return pieces
            candidate = pieces[:at] + pieces[at + size :]
            if candidate and shows(candidate):
                pieces = candidate
            else:
                at += size
        if size == 1:
            return pieces
        size //= 2
    return pieces
