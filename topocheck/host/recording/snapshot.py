"""Recordings in a file: gzip'd JSON lines, a header and then one question with its answer per line.

    {"format":"topocheck-snapshot","format_version":1,...}
    {"q":"read:/proc/version","t":"Linux version ..."}     bytes that are UTF-8 text
    {"q":"read:/sys/.../config","b":"hkG..."}              other bytes, base64
    {"q":"nvml:DeviceGetCount","a":2}                      a plain value
    {"q":"read:/etc/nccl.conf","e":["absent","ENOENT"]}    no answer, and why

A snapshot comes from strangers: whatever is wrong with it is one SnapshotError of one line.
"""

from __future__ import annotations

import binascii
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, TypeVar

import msgspec

from topocheck.host.base import Answer, HostError
from topocheck.host.input import read_file
from topocheck.model.base import InputError, OutputError, Reason
from topocheck.model.version import __version__

FORMAT = "topocheck-snapshot"
FORMAT_VERSION = 1
MAX_FILE_BYTES = 64 << 20
MAX_BYTES = 128 << 20
MAX_LINE_BYTES = 16 << 20
MAX_ANSWERS = 1_000_000
MAX_VALUES = 6_000_000
"""Commas and opening brackets in the whole file: bounds the number of values, which take far more memory than text."""
_BLOCK_BYTES = 1 << 20


class SnapshotError(InputError):
    """A snapshot that cannot be read or written; the text is one line: file, line, what was expected."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a snapshot.

    Attributes:
        probe_set: version of the set of probes that asked.
        identifiers: kept or replaced (host/recording/anonymize.py).
        taken_at: RFC 3339, UTC.
    """

    format: str
    format_version: int
    probe_set: int
    topocheck_version: str
    identifiers: str
    taken_at: str = ""


class _Plain(msgspec.Struct, forbid_unknown_fields=True):
    """A line with a plain value, as nearly all are of a machine with many pairs."""

    q: str
    a: Any


class _Line(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    q: str
    a: Any = msgspec.UNSET
    t: str | msgspec.UnsetType = msgspec.UNSET
    b: str | msgspec.UnsetType = msgspec.UNSET
    e: tuple[Reason, str] | msgspec.UnsetType = msgspec.UNSET


L = TypeVar("L")


def save(path: str, answers: Mapping[str, Answer], *, probe_set: int, identifiers: str = "kept") -> int:
    """Write a snapshot, readable by its owner only, as host/output.py writes files; return its size in bytes.

    The same answers give the same bytes.

    Raises:
        SnapshotError: the file cannot be written.
    """
    from topocheck.host.output import PRIVATE, write_file

    packed = io.BytesIO()
    try:
        write(packed, answers, probe_set=probe_set, identifiers=identifiers)
        write_file(path, packed.getvalue(), PRIVATE)
    except OutputError as e:
        raise SnapshotError(str(e)) from None
    except ValueError as e:
        raise SnapshotError(f"{path!r}: cannot be written: {_short(e)}") from None
    return len(packed.getvalue())


def write(file: IO[bytes], answers: Mapping[str, Answer], *, probe_set: int, identifiers: str = "kept") -> None:
    """Write a snapshot to an open file."""
    now = answers.get("now:")
    header = Header(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        probe_set=probe_set,
        topocheck_version=__version__,
        identifiers=identifiers,
        taken_at=now if isinstance(now, str) else "",
    )
    encode = msgspec.json.Encoder(order="deterministic").encode
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as out:
        out.write(encode(header) + b"\n")
        for question in sorted(answers):
            out.write(encode(_line(question, answers[question])) + b"\n")


def _line(question: str, answer: Answer) -> _Line:
    if isinstance(answer, HostError):
        return _Line(question, e=(answer.reason, answer.detail))
    if isinstance(answer, bytes):
        try:
            return _Line(question, t=answer.decode())
        except UnicodeDecodeError:
            return _Line(question, b=binascii.b2a_base64(answer, newline=False).decode())
    return _Line(question, a=answer)


def is_snapshot(data: bytes) -> bool:
    """Tell whether these are the bytes of a snapshot."""
    begins = b'{"format":"%s"' % FORMAT.encode()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            return stream.read(len(begins)) == begins
    except (OSError, EOFError, zlib.error):
        return False


def load(path: str) -> tuple[Header, dict[str, Answer]]:
    """Return the header and the answers of a snapshot.

    Raises:
        SnapshotError: the file is not a snapshot that this version can read.
    """
    try:
        data = read_file(path, MAX_FILE_BYTES, "a snapshot written by topocheck", name=repr(path))
    except InputError as e:
        raise SnapshotError(str(e)) from None
    return read(io.BytesIO(data), repr(path))


def read(file: IO[bytes], name: str) -> tuple[Header, dict[str, Answer]]:
    """Return the header and the answers of a snapshot in an open file; `name` is for messages.

    Raises:
        SnapshotError: see `load`.
    """
    number = 0
    try:
        with gzip.GzipFile(fileobj=file, mode="rb") as stream:
            blocks = _blocks(stream)
            number = 1
            first = next(blocks, [b""])
            header = _header(first[0])
            answers: dict[str, Answer] = {}
            decoder, plain = msgspec.json.Decoder(_Line), msgspec.json.Decoder(_Plain)
            for lines in itertools.chain([first[1:]], blocks):
                if _all_plain(plain, lines, answers):
                    number += len(lines)
                    continue
                for line in _decoded(decoder, lines):
                    number += 1
                    if isinstance(line, bytes):
                        line = decoder.decode(line)
                    question, answer = _answer(line)
                    answers[question] = answer
                    if len(answers) != number - 1:
                        raise _BadError(f"a question that comes only once, not {question[:60]!r} again")
                if len(answers) > MAX_ANSWERS:
                    raise _BadError(f"at most {MAX_ANSWERS} answers")
    except _BadError as e:
        raise SnapshotError(f"{name}: line {number}: expected {e}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as e:
        if number == 1 and isinstance(e, gzip.BadGzipFile) and _begins_as_json(file):
            raise SnapshotError(
                f"{name}: is JSON and no snapshot; expected what `topocheck snapshot save` wrote "
                "(topocheck fleet and topocheck diff read JSON reports)"
            ) from None
        what = "is cut short" if isinstance(e, EOFError) else "is not compressed with gzip, or damaged"
        where = f"after line {number}" if number > 1 else "at its start"
        raise SnapshotError(f"{name}: {what} ({where}); expected a snapshot written by topocheck") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        # The first line is what tells a snapshot from any other file.
        expected = "the header of a snapshot" if number == 1 else "a question with its answer"
        raise SnapshotError(f"{name}: line {number}: expected {expected}: {_short(e)}") from None
    return header, answers


def _begins_as_json(file: IO[bytes]) -> bool:
    file.seek(0)
    return file.read(64).lstrip()[:1] == b"{"


class _BadError(Exception):
    """What was expected of the current line."""


def _blocks(stream: gzip.GzipFile) -> Iterator[list[bytes]]:
    """Yield the lines of a stream, as many at a time as are read at once; each and all are of bounded size.

    Raises:
        _BadError: a bound is passed, or the last line does not end.
    """
    size = values = 0
    rest = b""
    while block := stream.read(_BLOCK_BYTES):
        size += len(block)
        values += len(block) - len(block.translate(None, b",[{"))
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if len(max(lines, key=len, default=b"")) > MAX_LINE_BYTES or len(rest) > MAX_LINE_BYTES:
            raise _BadError(f"a line of at most {MAX_LINE_BYTES >> 20} MiB")
        if size > MAX_BYTES:
            raise _BadError(f"at most {MAX_BYTES >> 20} MiB when uncompressed")
        if values > MAX_VALUES:
            raise _BadError(f"at most {MAX_VALUES} values")
        if lines:
            yield lines
    if rest:
        raise _BadError("a line that ends; the file is cut short")


def _all_plain(decoder: msgspec.json.Decoder[_Plain], lines: list[bytes], answers: dict[str, Answer]) -> bool:
    """Add the answers of lines that all hold a plain value and a new question; False, and nothing added, where not."""
    found = _decoded(decoder, lines)
    if found is lines:
        return False
    more = {line.q: line.a for line in found if isinstance(line, _Plain)}
    if len(more) != len(lines) or not all(":" in q for q in more) or not answers.keys().isdisjoint(more):
        return False
    if len(answers) + len(more) > MAX_ANSWERS:
        return False
    answers.update(more)
    return True


def _decoded(decoder: msgspec.json.Decoder[L], lines: list[bytes]) -> Sequence[L | bytes]:
    """Return lines decoded together; as they are where one is wrong, so that its number can be named."""
    try:
        found = decoder.decode_lines(b"\n".join(lines))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return lines
    return found if len(found) == len(lines) else lines


def _header(line: bytes) -> Header:
    try:
        said = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _BadError("the header of a snapshot written by topocheck") from None
    if said.get("format") != FORMAT:
        raise _BadError("the header of a snapshot written by topocheck")
    version = said.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _BadError("a format_version of 1 or more")
    if version > FORMAT_VERSION:
        raise _BadError(f"format_version {FORMAT_VERSION}, not {version}: a newer topocheck wrote this; use that one")
    return msgspec.convert(said, Header)


def _answer(line: _Line) -> tuple[str, Answer]:
    question, plain, text, encoded, error = line.q, line.a, line.t, line.b, line.e
    if encoded is _UNSET and error is _UNSET and ":" in question:  # nearly all lines
        if isinstance(text, str) and plain is _UNSET:
            return question, text.encode()
        if text is _UNSET and plain is not _UNSET:
            return question, plain
    unset = (plain is _UNSET) + (text is _UNSET) + (encoded is _UNSET) + (error is _UNSET)
    if unset != 3:
        raise _BadError("exactly one of a, t, b, e beside q")
    if ":" not in question:
        raise _BadError("a question of the form kind:arguments")
    if isinstance(error, tuple):
        return question, HostError(*error)
    try:
        return question, binascii.a2b_base64(encoded if isinstance(encoded, str) else "", strict_mode=True)
    except (binascii.Error, ValueError):
        raise _BadError("base64") from None


_UNSET = msgspec.UNSET


def _short(error: Exception) -> str:
    """Return the text of an error on one line, without what could move a terminal's cursor."""
    text = error.strerror or "" if isinstance(error, OSError) else str(error)
    return "".join(c if c.isprintable() else "?" for c in text)[:200]
