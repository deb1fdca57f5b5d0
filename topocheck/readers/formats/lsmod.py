"""Text of `lsmod` (kmod): the kernel's modules. Only the whole list: of one that grep cut, no module is absent."""

from __future__ import annotations

import re

from topocheck.probes.modules import MODULES
from topocheck.readers.base import Answers, Reader, numbered

_HEAD = re.compile(r"^Module[ \t]+Size[ \t]+Used by[ \t]*$", re.M)
_ROW = re.compile(r"(\w{1,64})\s+([0-9]{1,12})\s+(-?[0-9]{1,9})(?:\s+(\S{1,2000}))?\s*$")
MAX_MODULES = 1 << 12


def recognise(text: str) -> bool:
    """Tell whether the heading of the list stands in the text."""
    return _HEAD.search(text) is not None


def read(text: str) -> Answers:
    """Return the lines of /proc/modules that are asked for."""
    found = Answers()
    lines: list[str] = []
    start = 0
    for number, line in numbered(text):
        if _HEAD.match(line):
            start = number
        elif start and (m := _ROW.match(line)) and len(lines) < MAX_MODULES:
            lines.append(f"{m[1]} {m[2]} {m[3]} {m[4] + ',' if m[4] else '-'} Live 0x0")
    asked = [f"{m} " for m in MODULES]
    if lines:
        found.put(start, [x for x in lines if x.startswith(tuple(asked))], "lines", "/proc/modules", *asked)
    return found


READER = Reader(name="lsmod", tells="kernel modules", recognise=recognise, read=read)
