"""Standard output and standard error that outlive their readers.

A reader may leave at any moment (`topocheck check | head -1`) or was never there (`>&-`). That is no event of this
program: what it still writes goes nowhere, and its exit code stays that of its result. Python and click would both end
with a code of their own, and complain once more when they flush at the end.
"""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False  # not from typing: loading it costs milliseconds before the driver is asked
if TYPE_CHECKING:
    from typing import Any, TextIO


class _Raw(io.RawIOBase):
    """A descriptor to write to; after an error everything goes nowhere.

    Args:
        fd: the descriptor.
        strict: errors other than a reader that left are raised, once. Of standard error nobody could read them.
    """

    def __init__(self, fd: int, *, strict: bool) -> None:
        self._fd = fd
        self._strict = strict
        self._gone = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        while not self._gone:
            try:
                return os.write(self._fd, view)
            except BlockingIOError:  # whoever shares the pipe made it non-blocking
                _wait_for(self._fd)
            except OSError as e:
                self._gone = True
                if self._strict and not isinstance(e, BrokenPipeError):
                    raise
        return len(view)


def _wait_for(fd: int) -> None:
    import select

    ready = select.poll()
    ready.register(fd, select.POLLOUT)
    ready.poll()


def guard() -> None:
    """Put such streams in the place of Python's own, and something in the place of descriptors that were closed.

    A file that is opened later must not get the number of a standard stream: a child would write into it.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
    sys.stdout = _guarded(sys.stdout, strict=True)
    sys.stderr = _guarded(sys.stderr, strict=False)


def _guarded(stream: TextIO, *, strict: bool) -> TextIO:
    """Return a stream over the same descriptor; one that is closed, or no plain stream of Python, as it is."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    # PYTHONUNBUFFERED leaves the buffer between the two out.
    if not isinstance(getattr(stream.buffer, "raw", stream.buffer), io.FileIO):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Raw(stream.fileno(), strict=strict)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
