"""Slurm's short form of many host names: `gpu[01-03,7],login`."""

from __future__ import annotations

import itertools
import re

MAX_HOSTS = 1 << 16


def expand_hostlist(text: str) -> list[str]:
    """Return the hosts of a list, in order; at most MAX_HOSTS. What is not of the known form stays as it is.

    Numbers keep their leading zeros; a host may have several brackets (`rack[1-2]node[1-4]`).
    """
    out: list[str] = []
    for word in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text):
        parts = [_range(p) for p in re.split(r"(\[[^\]]*\])", word.strip()) if p]
        size = 1
        for part in parts:
            size *= len(part)
        if parts and size <= MAX_HOSTS - len(out):
            out += ["".join(p) for p in itertools.product(*parts)]
    return out


def _range(text: str) -> list[str]:
    if not re.fullmatch(r"\[\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*\]", text):
        return [text]
    out: list[str] = []
    for piece in text[1:-1].split(","):
        first, _, last = piece.partition("-")
        low, high = int(first), int(last or first)
        if high - low >= MAX_HOSTS:
            return [text]
        out += [f"{n:0{len(first)}d}" for n in range(low, high + 1)]
    return out
