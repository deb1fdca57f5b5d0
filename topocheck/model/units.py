"""Sizes, times and measured values as a person reads them."""

from __future__ import annotations


def size_text(size_bytes: float) -> str:
    """Return a size with a binary unit: `128 MiB`, `1.5 KiB`, `16 B`."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def time_text(time_us: float) -> str:
    """Return a time in microseconds with the unit that fits it: `12.3 us`, `40.7 ms`, `1.5 s`."""
    value = float(time_us)
    for unit in ("us", "ms"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} s" if value < 999.5 else f"{value:.0f} s"


def value_text(value: float, unit: str) -> str:
    """Return a measured value: `us` with the unit that fits it, any other with four digits."""
    return time_text(value) if unit == "us" else f"{value:.4g} {unit}"
