"""Files that people name: opened so that nothing waits for ever, read up to a limit. What is wrong is one line.

A FIFO is read where somebody writes to it, so that `<(zcat x.gz)` of a shell works; folders, devices and sockets are
refused.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from topocheck.model.base import InputError

STANDARD_INPUT = "-"
"""The name by which standard input is given where a command takes it."""
WAIT_S = 60.0
"""Seconds for a whole file of bounded size, or for the next piece of one without a bound."""
WRITER_S = 2.0
"""Seconds in which somebody must have opened the other end of a FIFO."""
CHUNK_BYTES = 1 << 20
MAX_DEPTH = 64
"""Levels of folders that are gone into."""

_KINDS = {
    stat.S_IFDIR: "is a folder",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
    stat.S_IFSOCK: "is a socket",
}


def read_file(path: str | Path, limit: int, expected: str, *, name: str = "", regular: bool = False) -> bytes:
    """Return all of a file.

    Args:
        path: of the file.
        limit: bytes that it may have.
        expected: what it should be, for messages (`a short TOML file`).
        name: how the file is called in messages; its path where empty.
        regular: a FIFO is refused too.

    Raises:
        InputError: it cannot be read, is larger than `limit`, is no file, or nothing came within WAIT_S.
    """
    name = name or str(path)
    out: list[bytes] = []
    size = 0
    end = time.monotonic() + WAIT_S
    for chunk in _chunks(path, name, expected, end, regular=regular, limit=limit):
        out.append(chunk)
        size += len(chunk)
        if size > limit:
            raise too_large(name, limit, expected)
    return b"".join(out)


def read_input(path: str | Path, limit: int, expected: str) -> bytes:
    """Return all of a file, or of standard input where the path is `-`; arguments and errors as for `read_file`."""
    if str(path) != STANDARD_INPUT:
        return read_file(path, limit, expected)
    data = read_standard_input(limit + 1)
    if len(data) > limit:
        raise too_large("standard input", limit, expected)
    return data


def chunks_of(path: str | Path, expected: str) -> Iterator[bytes]:
    """Yield a file of any size, or standard input where the path is `-`, in pieces of at most CHUNK_BYTES.

    Raises:
        InputError: it cannot be read, is no file, or nothing more came within WAIT_S.
    """
    if str(path) == STANDARD_INPUT:
        return standard_input()
    return _chunks(path, str(path), expected, None, regular=False, limit=None)


def standard_input() -> Iterator[bytes]:
    """Yield standard input in pieces, however long it takes to come: somebody may be typing.

    A descriptor that does not block is waited for.

    Raises:
        InputError: it is closed, or cannot be read.
    """
    if sys.stdin is None:
        raise InputError("standard input is closed; expected a text there, or give a file")
    # Not by the buffer, which cannot tell the end from a descriptor that has nothing yet and does not block.
    stream = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    try:
        while (piece := stream.read(1 << 16)) != b"":
            if piece is None:
                select.select([stream], [], [])
            else:
                yield piece
    except OSError as e:
        raise InputError(f"standard input: cannot be read: {e.strerror}") from None


def read_standard_input(most: int) -> bytes:
    """Return what standard input holds, cut at `most` bytes.

    Raises:
        InputError: as `standard_input`.
    """
    out = bytearray()
    for piece in standard_input():
        out += piece
        if len(out) >= most:
            break
    return bytes(out[:most])


def too_large(name: str, limit: int, expected: str) -> InputError:
    """Return the error for a file of more than `limit` bytes."""
    size = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit >> 10} KiB"
    return InputError(f"{name}: larger than {size}; expected {expected}")


def _kind_of(path: str | Path) -> str:
    """Return what a path is that cannot be opened, in words."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except OSError as e:
        return f"cannot be read: {e.strerror}"
    return _KINDS.get(kind, f"cannot be read: {os.strerror(errno.ENXIO)}")


def _chunks(
    path: str | Path, name: str, expected: str, end: float | None, *, regular: bool, limit: int | None
) -> Iterator[bytes]:
    try:
        # Not blocking: to open a FIFO, or to read some files of the kernel, would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as e:
        # open(2): ENXIO is a socket, or a device that is not there, such as the terminal of a process without one.
        odd = e.errno == errno.ENXIO
        why = _kind_of(path) if odd else f"cannot be read: {e.strerror}"
        raise InputError(f"{name}: {why}" + (f"; expected {expected}" if odd else "")) from None
    except ValueError as e:  # a NUL in the path
        raise InputError(f"{name}: cannot be read: {e}") from None
    try:
        status = os.fstat(fd)
        kind = stat.S_IFMT(status.st_mode)
        if kind in _KINDS:
            hint = "; for standard input give -" if kind == stat.S_IFCHR else f"; expected {expected}"
            raise InputError(f"{name}: {_KINDS[kind]}{hint}")
        if kind == stat.S_IFIFO and regular:
            raise InputError(f"{name}: is a FIFO; expected {expected}")
        if limit is not None and status.st_size > limit:
            raise too_large(name, limit, expected)
        yield from _read(fd, name, end, fifo=kind == stat.S_IFIFO)
    except OSError as e:
        raise InputError(f"{name}: cannot be read: {e.strerror}") from None
    finally:
        os.close(fd)


def _read(fd: int, name: str, end: float | None, *, fifo: bool) -> Iterator[bytes]:
    """Yield what comes until the end of the file; `end` is the time by which it must have come."""
    ready = select.poll()
    ready.register(fd, select.POLLIN)
    began = time.monotonic()
    until = end if end is not None else began + WAIT_S
    found = left = False
    while True:
        try:
            chunk: bytes | None = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            chunk = None
        if chunk:
            found = True
            yield chunk
            if end is not None and time.monotonic() > end:
                raise _late(name)
            until = end if end is not None else time.monotonic() + WAIT_S
            continue
        if chunk == b"":
            if found or left or not fifo:
                return
            # Nobody writes, or nobody does yet: the kernel tells the two apart only once somebody did.
            left = any(event & select.POLLHUP for _, event in ready.poll(0))
            if left:
                continue  # what they wrote may have come after that read
            if time.monotonic() > began + WRITER_S:
                raise InputError(f"{name}: is a FIFO without a writer")
            time.sleep(_POLL_MS / 1000)
            continue
        left_s = until - time.monotonic()
        if left_s <= 0 or not ready.poll(left_s * 1000):
            raise _late(name)


_POLL_MS = 20


def _late(name: str) -> InputError:
    return InputError(f"{name}: no end of it within {WAIT_S:g} s; whatever writes it is stuck or too slow")


def walk(folder: str | os.PathLike[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (path, folders, files) of a folder and of those below it, as os.walk does; links are not followed.

    Raises:
        InputError: folders are nested deeper than MAX_DEPTH; os.walk calls itself for each level.
    """
    top = os.fspath(folder)
    for at, folders, names in os.walk(top, followlinks=False):
        yield at, folders, names
        if folders and at[len(top) :].count(os.sep) >= MAX_DEPTH:
            raise InputError(f"{top}: folders nested more than {MAX_DEPTH} deep; name the folder that holds the files")
