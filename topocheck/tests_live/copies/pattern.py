"""The bytes that are moved, and the comparison of what arrived.

The pattern is a stretch of SHAKE-256 output (so that it cannot be compressed and no two runs or pairs share it). A
buffer is made of blocks of 2 MiB; block `i` begins at another place of the stretch than its neighbours, so that a block
that landed in the place of another one is seen too. Comparison is of every byte. One core writes and compares more
slowly than a GPU copies, so a few share the work.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

BLOCK = 2 << 20
THREADS = 8
"""At most: the rest of the node may have other work."""
_SHARE = 16 * BLOCK
"""Bytes for which another thread is worth its start."""

T = TypeVar("T")

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcmp.restype = ctypes.c_int


def _shared(size: int, work: Callable[[int, int], T]) -> list[T]:
    """Call `work(start, end)` for stretches of whole blocks that make up `size` bytes, side by side; in order."""
    workers = max(1, min(THREADS, len(os.sched_getaffinity(0)), size // _SHARE))
    step = -(-size // (workers * BLOCK)) * BLOCK
    stretches = [(start, min(start + step, size)) for start in range(0, size, step)]
    if len(stretches) < 2:
        return [work(*s) for s in stretches]
    # memmove, memset and memcmp let go of the interpreter's lock: ctypes does for every foreign function.
    with ThreadPoolExecutor(len(stretches)) as pool:
        return list(pool.map(lambda s: work(*s), stretches))


def wipe(pointer: int, value: int, size: int) -> None:
    """Set `size` bytes of host memory to `value`."""
    _shared(size, lambda start, end: ctypes.memset(pointer + start, value, end - start))


@functools.lru_cache(maxsize=2)
def _stretch_of(run: str) -> ctypes.Array[ctypes.c_char]:
    """Return the bytes of one run; making them takes 12 ms."""
    return ctypes.create_string_buffer(hashlib.shake_256(run.encode()).digest(2 * BLOCK), 2 * BLOCK)


class Pattern:
    """A pseudo-random pattern that depends on `run` and `name` alone; any two differ in nearly every byte.

    Patterns of one run begin at different places of its bytes.
    """

    def __init__(self, run: str, name: str = "") -> None:
        self._stretch = _stretch_of(run)
        self._start = ctypes.addressof(self._stretch)
        self._shift = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") * 8

    def _block(self, index: int) -> int:
        # 40503 is odd, so consecutive blocks walk through 2^18 places before one repeats.
        return self._start + (index * 40503 * 8 + self._shift) % BLOCK

    def fill(self, pointer: int, size: int) -> None:
        """Write the pattern to `size` bytes of host memory."""

        def write(start: int, end: int) -> None:
            for offset in range(start, end, BLOCK):
                ctypes.memmove(pointer + offset, self._block(offset // BLOCK), min(BLOCK, end - offset))

        _shared(size, write)

    def expected(self, offset: int, count: int) -> bytes:
        """Return `count` bytes of the pattern from `offset`; they must not cross a block."""
        return ctypes.string_at(self._block(offset // BLOCK) + offset % BLOCK, count)

    def first_difference(self, pointer: int, size: int) -> int | None:
        """Compare `size` bytes of host memory with the pattern; return the offset of the first wrong byte."""

        def compare(start: int, end: int) -> int | None:
            for offset in range(start, end, BLOCK):
                count = min(BLOCK, end - offset)
                if _memcmp(pointer + offset, self._block(offset // BLOCK), count):
                    return offset + _first_in_block(pointer + offset, self._block(offset // BLOCK), count)
            return None

        return next((at for at in _shared(size, compare) if at is not None), None)

    def describe_difference(self, pointer: int, size: int) -> str:
        """Return the empty text when `size` bytes equal the pattern, else a sentence about what differs."""
        at = self.first_difference(pointer, size)
        if at is None:
            return ""
        got, want = ctypes.string_at(pointer + at, 1)[0], self.expected(at, 1)[0]
        wrong = self._count_wrong(pointer, size)
        return f"{wrong} of {size} bytes are wrong; the first at offset {at}: expected 0x{want:02x}, got 0x{got:02x}"

    def _count_wrong(self, pointer: int, size: int) -> int:
        wrong = 0
        for offset in range(0, size, BLOCK):
            count = min(BLOCK, size - offset)
            if _memcmp(pointer + offset, self._block(offset // BLOCK), count):
                wrong += _wrong_in_block(pointer + offset, self._block(offset // BLOCK), count)
        return wrong


def _first_in_block(a: int, b: int, count: int) -> int:
    low, high = 0, count
    while high - low > 1:
        mid = (low + high) // 2
        if _memcmp(a + low, b + low, mid - low):
            high = mid
        else:
            low = mid
    return low


def _wrong_in_block(a: int, b: int, count: int) -> int:
    left, right = ctypes.string_at(a, count), ctypes.string_at(b, count)
    differ = int.from_bytes(left, "little") ^ int.from_bytes(right, "little")
    return count - differ.to_bytes(count, "little").count(0)
