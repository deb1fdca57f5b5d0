"""Frames on a pipe: a length of four bytes, then that many bytes; never more of either than was agreed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct

LENGTH = Struct("<I")


class FrameError(Exception):
    """What came is no frame, or larger than was agreed; says which."""


class FrameReader:
    """Cuts what comes from a child into frames.

    Args:
        frame_limit: bytes of one frame.
        total_limit: bytes of all frames together; None for no limit.
    """

    def __init__(self, frame_limit: int, total_limit: int | None = None) -> None:
        self.frame_limit, self.total_limit = frame_limit, total_limit
        self.total = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take in what was read and yield the frames that are whole by now.

        Raises:
            FrameError: the next frame, or all together, are larger than was agreed.
        """
        self.total += len(data)
        if self.total_limit is not None and self.total > self.total_limit:
            raise FrameError(f"more than {self.total_limit >> 20} MiB in all")
        self._buffer += data
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if length > self.frame_limit:
                raise FrameError(f"a frame of {length} bytes; the limit is {self.frame_limit >> 20} MiB")
            end = LENGTH.size + length
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[LENGTH.size : end])
            del self._buffer[:end]
            yield frame

    def restart(self) -> None:
        """Forget half a frame: a new child begins anew. What was read before still counts."""
        self._buffer.clear()


def write_frame(fd: int, data: bytes) -> None:
    """Write a frame to a pipe that blocks.

    Raises:
        OSError: nobody reads it any more.
    """
    view = memoryview(LENGTH.pack(len(data)) + data)
    while view:
        view = view[os.write(fd, view) :]


def read_frame(fd: int) -> bytes | None:
    """Return the next frame of a pipe that blocks, or None at its end."""
    head = _exactly(fd, LENGTH.size)
    return None if head is None else _exactly(fd, LENGTH.unpack(head)[0])


def _exactly(fd: int, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = os.read(fd, min(count - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)
