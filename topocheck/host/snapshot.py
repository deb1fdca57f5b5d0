"""Recordings in a file: gzip'd JSON lines, a header and then one question with its answer per line.

    {"format":"topocheck-snapshot","format_version":1,...}
    {"q":"read:/proc/version","t":"Linux version ..."}     bytes that are UTF-8 text
    {"q":"read:/sys/.../config","b":"hkG..."}              other bytes, base64
    {"q":"nvml:DeviceGetCount","a":2}                      a plain value
    {"q":"read:/etc/nccl.conf","e":["absent","ENOENT"]}    no answer, and why

A snapshot comes from strangers: whatever is wrong with it is one SnapshotError of one line.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import os
import stat
import tempfile
import zlib
from collections.abc import Mapping
from typing import IO, Any

import msgspec

import topocheck
from topocheck.host.base import Answer, HostError
from topocheck.model.base import InputError, Reason

FORMAT = "topocheck-snapshot"
FORMAT_VERSION = 1
MAX_FILE_BYTES = 64 << 20
MAX_BYTES = 256 << 20
MAX_LINE_BYTES = 16 << 20
MAX_ANSWERS = 2_000_000
MAX_VALUES = 8_000_000
"""Commas in the whole file: bounds the number of values, which take far more memory than text."""


class SnapshotError(InputError):
    """A snapshot that cannot be read or written; the text is one line: file, line, what was expected."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a snapshot.

    Attributes:
        probe_set: version of the set of probes that asked.
        identifiers: kept or replaced (host/anonymize.py).
        taken_at: RFC 3339, UTC.
    """

    format: str
    format_version: int
    probe_set: int
    topocheck_version: str
    identifiers: str
    taken_at: str = ""


class _Line(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    q: str
    a: Any = msgspec.UNSET
    t: str | msgspec.UnsetType = msgspec.UNSET
    b: str | msgspec.UnsetType = msgspec.UNSET
    e: tuple[Reason, str] | msgspec.UnsetType = msgspec.UNSET


def save(path: str, answers: Mapping[str, Answer], *, probe_set: int, identifiers: str = "kept") -> None:
    """Write a snapshot, readable by its owner only; `path` is replaced whole or not at all.

    The same answers give the same bytes.

    Raises:
        SnapshotError: the file cannot be written.
    """
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise SnapshotError(f"{path!r}: exists and is no regular file; give the name of a new file")
        fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".topocheck-")
        try:
            with os.fdopen(fd, "wb") as file:
                write(file, answers, probe_set=probe_set, identifiers=identifiers)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except (OSError, ValueError) as e:
        raise SnapshotError(f"{path!r}: cannot be written: {_short(e)}") from None


def write(file: IO[bytes], answers: Mapping[str, Answer], *, probe_set: int, identifiers: str = "kept") -> None:
    """Write a snapshot to an open file."""
    now = answers.get("now:")
    header = Header(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        probe_set=probe_set,
        topocheck_version=topocheck.__version__,
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
            return _Line(question, b=base64.b64encode(answer).decode())
    return _Line(question, a=answer)


def load(path: str) -> tuple[Header, dict[str, Answer]]:
    """Return the header and the answers of a snapshot.

    Raises:
        SnapshotError: the file is not a snapshot that this version can read.
    """
    try:
        # Not blocking: opening a FIFO would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise SnapshotError(f"{path!r}: no regular file; expected a snapshot written by topocheck")
            if status.st_size > MAX_FILE_BYTES:
                raise SnapshotError(f"{path!r}: larger than {MAX_FILE_BYTES >> 20} MiB; expected a snapshot")
            return read(file, repr(path))
    except (OSError, ValueError) as e:  # ValueError: a NUL in the path
        raise SnapshotError(f"{path!r}: cannot be read: {_short(e)}") from None


def read(file: IO[bytes], name: str) -> tuple[Header, dict[str, Answer]]:
    """Return the header and the answers of a snapshot in an open file; `name` is for messages.

    Raises:
        SnapshotError: see `load`.
    """
    number = 0
    try:
        with gzip.GzipFile(fileobj=file, mode="rb") as stream:
            lines = _Lines(io.BufferedReader(stream, 1 << 18))
            number = 1
            header = _header(lines.next())
            answers: dict[str, Answer] = {}
            decode = msgspec.json.Decoder(_Line).decode
            while line := lines.next():
                number += 1
                question, answer = _answer(decode(line))
                if question in answers:
                    raise _BadError(f"a question that comes only once, not {question[:60]!r} again")
                answers[question] = answer
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


class _Lines:
    """Lines of a stream, each and all of bounded size."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._bytes = 0
        self._values = 0

    def next(self) -> bytes:
        """Return the next line without its end; empty at the end of the file."""
        line = self._stream.readline(MAX_LINE_BYTES + 1)
        self._bytes += len(line)
        self._values += line.count(b",")
        if len(line) > MAX_LINE_BYTES:
            raise _BadError(f"a line of at most {MAX_LINE_BYTES >> 20} MiB")
        if self._bytes > MAX_BYTES:
            raise _BadError(f"at most {MAX_BYTES >> 20} MiB when uncompressed")
        if self._values > MAX_VALUES:
            raise _BadError(f"at most {MAX_VALUES} values")
        if line and not line.endswith(b"\n"):
            raise _BadError("a line that ends; the file is cut short")
        return line


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
    given = [f for f in (line.a, line.t, line.b, line.e) if f is not msgspec.UNSET]
    if len(given) != 1:
        raise _BadError("exactly one of a, t, b, e beside q")
    if ":" not in line.q:
        raise _BadError("a question of the form kind:arguments")
    if isinstance(line.e, tuple):
        return line.q, HostError(*line.e)
    if isinstance(line.t, str):
        return line.q, line.t.encode()
    if isinstance(line.b, str):
        try:
            return line.q, base64.b64decode(line.b, validate=True)
        except (binascii.Error, ValueError):
            raise _BadError("base64") from None
    return line.q, line.a


def _short(error: Exception) -> str:
    """Return the text of an error on one line, without what could move a terminal's cursor."""
    text = error.strerror or "" if isinstance(error, OSError) else str(error)
    return "".join(c if c.isprintable() else "?" for c in text)[:200]
