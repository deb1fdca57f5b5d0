"""Short texts for a drawing: rates, products, addresses, CPU lists."""

from __future__ import annotations

import re
from collections.abc import Iterable

from topocheck.model.base import Missing

_BRACKETS = re.compile(r"\[([^\]]+)\]\s*$")
_MAKERS = re.compile(r"^(NVIDIA|Mellanox Technologies|Advanced Micro Devices,? Inc\.?|Intel(\(R\))?( Corporation)?)\s+")


def rate(gb_s: float | Missing) -> str:
    """Return `63 GB/s`, `7.9 GB/s`; empty where the rate is not known."""
    if isinstance(gb_s, Missing):
        return ""
    return f"{gb_s:.0f} GB/s" if gb_s >= 20 else f"{gb_s:.1f}".removesuffix(".0") + " GB/s"


def product(name: str | Missing) -> str:
    """Return the trade name: pci.ids puts it in brackets (`MT2910 Family [ConnectX-7]`); the maker is left out."""
    if isinstance(name, Missing):
        return ""
    found = _BRACKETS.search(name)
    return _MAKERS.sub("", found[1] if found else name).strip()


def short_address(address: str, domains: int) -> str:
    """Return an address, without its domain where the node has one only."""
    return address.removeprefix("0000:") if domains == 1 else address


def numbers(values: Iterable[int]) -> str:
    """Return numbers as a kernel list: `0-3,8`."""
    runs: list[list[int]] = []
    for v in sorted(set(values)):
        if runs and v == runs[-1][1] + 1:
            runs[-1][1] = v
        else:
            runs.append([v, v])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def named(labels: list[str], most: int = 3) -> str:
    """Return some labels, the first and the last of many."""
    return ", ".join(labels) if len(labels) <= most else f"{labels[0]} ... {labels[-1]}"
