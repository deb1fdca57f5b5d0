"""The bytes that are moved, and the comparison of what arrived.

The pattern is a stretch of SHAKE-256 output (so that it cannot be compressed and no two runs or pairs share it). A
buffer is made of blocks of 2 MiB; block `i` begins at another place of the stretch than its neighbours, so that a block
that landed in the place of another one is seen too. Comparison is of every byte.
"""

from __future__ import annotations

import ctypes
import hashlib

BLOCK = 2 << 20

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcmp.restype = ctypes.c_int


class Pattern:
    """A pseudo-random pattern that depends on `seed` alone; any two seeds differ in nearly every byte."""

    def __init__(self, seed: str) -> None:
        self._stretch = ctypes.create_string_buffer(hashlib.shake_256(seed.encode()).digest(2 * BLOCK), 2 * BLOCK)
        self._start = ctypes.addressof(self._stretch)

    def _block(self, index: int) -> int:
        # 40503 is odd, so consecutive blocks walk through 2^18 places before one repeats.
        return self._start + index * 40503 * 8 % BLOCK

    def fill(self, pointer: int, size: int) -> None:
        """Write the pattern to `size` bytes of host memory."""
        for offset in range(0, size, BLOCK):
            ctypes.memmove(pointer + offset, self._block(offset // BLOCK), min(BLOCK, size - offset))

    def expected(self, offset: int, count: int) -> bytes:
        """Return `count` bytes of the pattern from `offset`; they must not cross a block."""
        return ctypes.string_at(self._block(offset // BLOCK) + offset % BLOCK, count)

    def first_difference(self, pointer: int, size: int) -> int | None:
        """Compare `size` bytes of host memory with the pattern; return the offset of the first wrong byte."""
        for offset in range(0, size, BLOCK):
            count = min(BLOCK, size - offset)
            if _memcmp(pointer + offset, self._block(offset // BLOCK), count):
                return offset + _first_in_block(pointer + offset, self._block(offset // BLOCK), count)
        return None

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
