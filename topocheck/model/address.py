"""PCI addresses and kernel CPU lists: the two spellings everything is joined on."""

from __future__ import annotations

import re
from collections.abc import Iterable

from topocheck.model.base import small_number

_ADDRESS = re.compile(r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
_NO_DOMAIN = 1 << 32
"""Beyond every domain: those have 32 bits."""


def normalize_address(text: str) -> str | None:
    """Return `dddd:bb:dd.f`, lower case, for any spelling of a PCI address, or None if `text` is none.

    NVML writes eight upper-case digits of domain; the kernel at least four and, behind Intel VMD or Hyper-V,
    more.
    """
    m = _ADDRESS.fullmatch(text.strip())
    if not m:
        return None
    return f"{int(m[1], 16):04x}:{m[2].lower()}:{m[3].lower()}.{m[4]}"


def address_key(address: str) -> tuple[int, int, int, int]:
    """Return (domain, bus, device, function) as numbers, for sorting.

    A name that stands for an address that was not reported (`nvml:3`) comes after all addresses, by its number.
    """
    m = _ADDRESS.fullmatch(address)
    if not m:
        return _NO_DOMAIN, small_number(address.rpartition(":")[2]) or 0, 0, 0
    return int(m[1], 16), int(m[2], 16), int(m[3], 16), int(m[4])


MAX_NUMBERS = 1 << 13
"""As many as any kernel counts: NR_CPUS ends at 8192 (Linux arch/x86/Kconfig), NODES_SHIFT at 10."""
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


def parse_cpulist(text: str) -> frozenset[int]:
    """Return the numbers of a kernel list such as `0-3,8,10-11`; empty for an empty list.

    Raises:
        ValueError: the text is not a kernel list, or names numbers that no kernel gives a CPU or node
            (`MAX_NUMBERS` and above), which would cost memory and time without end.
    """
    out: set[int] = set()
    for lo, hi in _ranges(text):
        out.update(range(lo, hi + 1))
    return frozenset(out)


def _ranges(text: str) -> list[tuple[int, int]]:
    """Return (first, last) of each part of a kernel list, as they stand there.

    Raises:
        ValueError: see `parse_cpulist`.
    """
    out = []
    said = 0
    for part in text.strip().split(",", MAX_NUMBERS):
        part = part.strip()
        if not part:
            continue
        m = _RANGE.fullmatch(part)
        lo, hi = (int(m[1]), int(m[2] or m[1])) if m else (0, -1)
        said += hi - lo + 1
        if hi < lo or hi >= MAX_NUMBERS or said > MAX_NUMBERS:
            raise ValueError(f"not a kernel list: {text.strip()[:60]!r}")
        out.append((lo, hi))
    return out


def short_cpulist(text: str) -> str:
    """Return a kernel list in its shortest form, without a look at every number in it.

    Raises:
        ValueError: see `parse_cpulist`.
    """
    runs: list[list[int]] = []
    for lo, hi in sorted(_ranges(text)):
        if runs and lo <= runs[-1][1] + 1:
            runs[-1][1] = max(runs[-1][1], hi)
        else:
            runs.append([lo, hi])
    return _written(runs)


def format_cpulist(numbers: Iterable[int]) -> str:
    """Return the kernel's list form of a set of numbers; the empty text for the empty set."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return _written(runs)


def _written(runs: Iterable[list[int]]) -> str:
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
