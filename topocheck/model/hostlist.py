"""Slurm's short form of many host names: `gpu[01-03,7],login`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

MAX_HOSTS = 1 << 16
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})", re.DOTALL)


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
    if not re.fullmatch(r"\[[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*\]", text):
        return [text]
    out: list[str] = []
    for piece in text[1:-1].split(","):
        first, _, last = piece.partition("-")
        low, high = int(first), int(last or first)
        if high - low >= MAX_HOSTS:
            return [text]
        out += [f"{n:0{len(first)}d}" for n in range(low, high + 1)]
    return out


def compress_hostlist(names: Iterable[str]) -> str:
    """Return host names as one hostlist expression, sorted; names of other forms stand as they are.

    Numbers of different width are kept apart, since `n[1-10]` and `n[01-10]` are different hosts.
    """
    plain: list[str] = []
    groups: dict[tuple[str, int], set[int]] = {}
    for name in sorted(set(names)):
        m = _NUMBERED.fullmatch(name)
        if not m:
            plain.append(name)
            continue
        padded = m[2].startswith("0") and len(m[2]) > 1
        # Width 0 stands for numbers without leading zeros, whatever their length.
        groups.setdefault((m[1], len(m[2]) if padded else 0), set()).add(int(m[2]))
    # A number without a leading zero belongs to the padded ones of its width: gpu08, gpu09, gpu10.
    for (prefix, width), numbers in list(groups.items()):
        if width:
            free = groups.get((prefix, 0), set())
            full = {n for n in free if len(str(n)) == width}
            numbers |= full
            free -= full
    out = list(plain)
    for (prefix, width), numbers in groups.items():
        if numbers:
            out.append(prefix + _bracket(sorted(numbers), width))
    return ",".join(sorted(out))


def _bracket(numbers: list[int], width: int) -> str:
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    texts = [f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in runs]
    return texts[0] if len(numbers) == 1 else f"[{','.join(texts)}]"
