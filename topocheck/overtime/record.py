"""Recordings as JSON lines: the header, then one sample a line. Written as they come, read with limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from topocheck.model.base import InputError
from topocheck.overtime.history import History
from topocheck.overtime.types import Header, Sample

T = TypeVar("T", Header, Sample)
FORMAT, VERSION = "topocheck watch", 1
LIMIT = 256 << 20
"""Bytes of a recording."""
MAX_LINE = 1 << 20
EXPECTED = "a recording of topocheck watch --record"


def line(part: Header | Sample) -> bytes:
    """Return one line of a recording."""
    return msgspec.json.encode(part) + b"\n"


def parse(data: bytes, name: str) -> History:
    """Return a recording. The last line may be cut off, as a machine that died leaves it.

    Raises:
        InputError: it is none; names the line.
    """
    lines = data.split(b"\n")
    header = _decode(lines[0], Header, name, 1)
    if header.format != FORMAT:
        raise InputError(f"{name}: line 1: format {header.format[:40]!r}; expected {EXPECTED}")
    if header.version != VERSION:
        raise InputError(f"{name}: line 1: version {header.version}; this topocheck reads version {VERSION}")
    whole, rest = lines[1:-1], lines[-1]
    samples = [_decode(text, Sample, name, n) for n, text in enumerate(whole, 2)]
    if rest and not samples:
        samples = [_decode(rest, Sample, name, len(lines))]
    return History(header=header, samples=_in_order(samples, name))


def _in_order(samples: Iterable[Sample], name: str) -> tuple[Sample, ...]:
    out: list[Sample] = []
    for n, s in enumerate(samples, 2):
        if not abs(s.at_s) < 1e12 or (out and s.at_s < out[-1].at_s):
            raise InputError(f"{name}: line {n}: at_s {s.at_s:g} is before the line above; expected samples in order")
        out.append(s)
    return tuple(out)


def _decode(text: bytes, form: type[T], name: str, number: int) -> T:
    if len(text) > MAX_LINE:
        raise InputError(f"{name}: line {number}: more than {MAX_LINE >> 10} KiB; expected {EXPECTED}")
    try:
        return msgspec.json.decode(text, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise InputError(f"{name}: line {number}: {e}; expected {EXPECTED}") from None
