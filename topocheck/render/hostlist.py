"""Slurm's short form of host names: `gpu[01-18,20]`."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.*?)(\d{1,9})", re.DOTALL)


def compress(names: Iterable[str]) -> str:
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
