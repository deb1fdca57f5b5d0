"""Recordings: JSON lines, of which each says what changed since the one before; compressed where the name ends .gz.

    {"format":"topocheck watch","version":2,...}            the header
    {"series":[{"of":"gpu","id":{...},"field":"clock_sm_mhz"},...],"has":[0,1,2],"v":{"0":true,"1":1980,...}}
    {"ms":1000,"d":[2,-15,3,219]}        1 s later: series 1 (the second) is 15 lower, series 4 (3 further) 219 higher

A sample has the series of the line before unless `has` gives others; a list that was there before is named by its
number (`set`). Samples are read back as they were, with traffic rounded down to 16 MiB.
A week of them would not fit into memory: of a long recording those are kept that overtime/thinning.py chooses.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from topocheck.model.base import InputError
from topocheck.overtime.history import History
from topocheck.overtime.series import Key, Series, Shape, flat, series_of
from topocheck.overtime.thinning import Kept
from topocheck.overtime.types import GpuEvent, Header, Sample

T = TypeVar("T")
FORMAT, VERSION = "topocheck watch", 2
LIMIT = 2 << 30
"""Bytes of a recording, after decompression."""
MAX_LINE = 4 << 20
MAX_SAMPLES, MAX_SERIES, MAX_SHAPES = 8_000_000, 16_384, 4_096
EXPECTED = "a recording of topocheck watch --record"
GZIP = b"\x1f\x8b"
"""RFC 1952, 2.3.1."""
_FLUSH_S = 10.0
"""Compressed lines reach the file at least this often, in seconds of the samples."""


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One sample, as it differs from the one before.

    Attributes:
        ms: since the line before.
        series: those that were not there before; they are numbered from 0 as they come.
        has: the series of this sample and of those that follow, by number.
        set: likewise, by the number of an earlier `has`, from 1; 0 for none.
        d: how many series further, counted from the one before the first, and by how much that one changed, in turn.
        v: number of a series -> its value, where it is no whole number or was none before.
    """

    ms: int = 0
    series: tuple[Series, ...] = ()
    has: tuple[int, ...] = ()
    set: int = -1
    d: list[int] = []
    v: dict[int, Any] = {}
    silent: dict[str, str] = {}
    events: tuple[GpuEvent, ...] = ()


class Deltas:
    """Samples as lines, each by what changed since the one before."""

    def __init__(self) -> None:
        self._numbers: dict[Key, int] = {}
        self._tells: list[int] = []
        self._units: list[int] = []
        self._values: list[Any] = []
        self._shapes: dict[tuple[int, ...], int] = {(): 0}
        self._now: tuple[int, ...] = ()
        self._ms = 0

    def line(self, sample: Sample) -> tuple[_Line, bool]:
        """Return the next line, and whether a state or an error counter changed."""
        new: list[Series] = []
        changes: list[tuple[int, int]] = []
        values: dict[int, Any] = {}
        changed = bool(sample.silent or sample.events)
        members = []
        for key, value in flat(sample).items():
            i = self._numbers.get(key)
            if i is None:
                i = self._numbers[key] = len(self._numbers)
                new.append(x := series_of(key))
                self._tells.append(x.tells())
                self._units.append(x.unit)
                self._values.append(None)
            members.append(i)
            old = self._values[i]
            if self._units[i] != 1 and type(value) is int:
                value //= self._units[i]
            if type(value) is int and type(old) is int:
                if value != old:
                    changes.append((i, value - old))
                    changed = changed or bool((value ^ old) & self._tells[i])
            elif value != old or type(value) is not type(old):
                values[i] = value
                changed = changed or bool(self._tells[i])
            self._values[i] = value
        shape = tuple(members)
        has: tuple[int, ...] = ()
        number = -1
        if shape != self._now:
            number = self._shapes.get(shape, -1)
            if number < 0:
                self._shapes[shape] = len(self._shapes)
                has = shape
        self._now = shape
        ms = round(sample.at_s * 1000)
        since, self._ms = ms - self._ms, ms
        found = _Line(since, tuple(new), has, number, _gaps(changes), values, sample.silent, sample.events)
        return found, changed


def _gaps(changes: list[tuple[int, int]]) -> list[int]:
    """Return (number, change) as gaps between the numbers, each followed by its change: small numbers compress well."""
    out: list[int] = []
    before = -1
    for i, by in sorted(changes):
        out += (i - before, by)
        before = i
    return out


class Writer:
    """The bytes of a recording, as samples come."""

    def __init__(self, *, compressed: bool) -> None:
        self._deltas = Deltas()
        self._zip = zlib.compressobj(6, zlib.DEFLATED, 31) if compressed else None
        self._flushed_s = 0.0

    def header(self, header: Header) -> bytes:
        """Return the first line."""
        return self._out(msgspec.json.encode(header) + b"\n", flush=True)

    def sample(self, sample: Sample) -> bytes:
        """Return a sample's line; of a compressed recording, what is full of it, every ten seconds all."""
        found, _ = self._deltas.line(sample)
        flush = sample.at_s - self._flushed_s >= _FLUSH_S
        if flush:
            self._flushed_s = sample.at_s
        return self._out(msgspec.json.encode(found) + b"\n", flush=flush)

    def end(self) -> bytes:
        """Return what is left."""
        return b"" if self._zip is None else self._zip.flush()

    def _out(self, data: bytes, *, flush: bool) -> bytes:
        if self._zip is None:
            return data
        return self._zip.compress(data) + (self._zip.flush(zlib.Z_SYNC_FLUSH) if flush else b"")


def written(history: History, *, compressed: bool = False) -> bytes:
    """Return a whole recording."""
    writer = Writer(compressed=compressed)
    parts = [writer.header(history.header), *(writer.sample(s) for s in history.samples), writer.end()]
    return b"".join(parts)


def is_recording(start: bytes) -> bool:
    """Tell by its first bytes whether a file is a recording, compressed or not."""
    if start.startswith(GZIP):
        try:
            start = zlib.decompressobj(31).decompress(start, 256)
        except zlib.error:
            return False
    return start.startswith(b'{"format":"topocheck watch"')


def parse(chunks: Iterable[bytes], name: str) -> History:
    """Return a recording, thinned where it is long. The last line may be cut off, as a machine that died leaves it.

    Args:
        chunks: its bytes.
        name: how messages call it.

    Raises:
        InputError: it is none; names the line.
    """
    lines = _lines(chunks, name)
    _, first = next(lines, (1, b""))
    header = _decode(first, Header, name, 1)
    if header.format != FORMAT:
        raise InputError(f"{name}: line 1: format {header.format[:40]!r}; expected {EXPECTED}")
    if header.version != VERSION:
        raise InputError(f"{name}: line 1: version {header.version}; this topocheck reads version {VERSION}")
    reader = _Reader()
    for number, text in lines:
        try:
            reader.take(_decode(text, _Line, name, number))
        except (TypeError, ValueError, msgspec.ValidationError) as e:
            raise InputError(f"{name}: line {number}: {e}; expected {EXPECTED}") from None
    try:
        return History(header=header, samples=reader.samples())
    except msgspec.ValidationError as e:
        raise InputError(f"{name}: {e}; expected {EXPECTED}") from None


class _Moment(msgspec.Struct, frozen=True):
    """The values of all series in one sample, which is made only where it is kept."""

    shape: Shape
    values: list[Any]
    at_s: float
    silent: dict[str, str]
    events: tuple[GpuEvent, ...]

    def sample(self) -> Sample:
        return self.shape.sample(self.values, self.at_s, self.silent, self.events)


class _Reader:
    """Lines in, samples out."""

    def __init__(self) -> None:
        self._series: list[Series] = []
        self._tells: list[int] = []
        self._values: list[Any] = []
        self._shape = Shape([], ())
        self._shapes = [self._shape]
        self._ms = self._count = 0
        self._kept: Kept[_Moment] = Kept()

    def take(self, line: _Line) -> None:
        """Read one more sample.

        Raises:
            ValueError, TypeError: it does not follow from those before.
        """
        if line.series:
            self._series += line.series
            self._tells += [s.tells() for s in line.series]
            self._values += [None] * len(line.series)
        self._shape = self._shape_of(line)
        self._count += 1
        if len(self._series) > MAX_SERIES or self._count > MAX_SAMPLES:
            raise ValueError(f"more than {MAX_SERIES} series or {MAX_SAMPLES} samples")
        if not 0 <= line.ms < 1 << 40:
            raise ValueError(f"{line.ms} ms since the line above")
        self._ms += line.ms
        changed = self._apply(line) or bool(line.silent or line.events)
        moment = _Moment(self._shape, self._values.copy(), self._ms / 1000, line.silent, line.events)
        self._kept.add(moment, changed=changed)

    def _shape_of(self, line: _Line) -> Shape:
        if line.has:
            if max(line.has) >= len(self._series) or min(line.has) < 0 or len(self._shapes) >= MAX_SHAPES:
                raise ValueError("`has` names a series that is not there, or there are too many of them")
            self._shapes.append(Shape(self._series, line.has))
            return self._shapes[-1]
        if line.set >= len(self._shapes):
            raise ValueError(f"`set` {line.set} of {len(self._shapes)}")
        return self._shapes[line.set] if line.set >= 0 else self._shape

    def _apply(self, line: _Line) -> bool:
        """Change the values; tell whether a state or an error counter is among them."""
        values, tells, changed = self._values, self._tells, False
        if line.d and min(line.d[::2]) < 1:
            raise ValueError("the numbers of series do not rise")
        changes, i = iter(line.d), -1
        try:
            for further, by in zip(changes, changes, strict=True):
                i += further
                old = values[i]
                values[i] = new = old + by
                if tells[i] and (old ^ new) & tells[i]:
                    changed = True
            for i, value in line.v.items():
                values[i] = value
                changed = changed or bool(tells[i])
        except IndexError:
            raise ValueError("the number of a series that is not there") from None
        return changed

    def samples(self) -> tuple[Sample, ...]:
        """Return the samples that are kept."""
        return tuple(m.sample() for m in self._kept.items())


def _lines(chunks: Iterable[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) of all lines that are whole; the first even where it is not."""
    number, rest = 0, b""
    for chunk in _plain(chunks, name):
        *whole, rest = (rest + chunk).split(b"\n")
        for text in whole:
            number += 1
            yield number, text
        if len(rest) > MAX_LINE:
            raise InputError(f"{name}: line {number + 1}: more than {MAX_LINE >> 20} MiB; expected {EXPECTED}")
    if rest and number == 0:
        yield 1, rest


def _plain(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield the chunks without their compression; what ends in the middle ends there."""
    size, unzip, start = 0, None, b""
    for part in chunks:
        rest = start + part
        if size == 0 and unzip is None:
            if len(rest) < len(GZIP):
                start = rest
                continue
            start = b""
            if rest.startswith(GZIP):
                unzip = zlib.decompressobj(31)
        while rest:
            try:
                out, rest = (rest, b"") if unzip is None else (unzip.decompress(rest, 1 << 20), unzip.unconsumed_tail)
            except zlib.error as e:
                raise InputError(f"{name}: {e}; expected {EXPECTED}") from None
            size += len(out)
            if size > LIMIT:
                raise InputError(f"{name}: larger than {LIMIT >> 30} GiB; expected {EXPECTED}")
            yield out


def _decode(text: bytes, form: type[T], name: str, number: int) -> T:
    try:
        return msgspec.json.decode(text, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise InputError(f"{name}: line {number}: {e}; expected {EXPECTED}") from None
