"""Text of `lsmod` (kmod): the kernel's modules; whole, or the rows that grep left of it.

Of rows without the heading of the list no module is absent: they are what somebody looked for.
"""

from __future__ import annotations

import re

from topocheck.probes.modules import MODULES
from topocheck.readers.base import Answers, Reader, numbered

_HEAD = re.compile(r"^[ \t]*Module[ \t]+Size[ \t]+Used by[ \t]*$", re.M)
_ROW = re.compile(r"[ \t]*(\w{1,64})\s+([0-9]{1,12})\s+(-?[0-9]{1,9})(?:\s+([\w,\-]{1,2000}|\[permanent\]))?\s*$")
_KNOWN = re.compile(
    rf"^[ \t]*(?:{'|'.join(MODULES)})[ \t]+[0-9]{{4,12}}[ \t]+-?[0-9]{{1,9}}(?:[ \t]+[\w,\-]+)?[ \t]*$", re.M
)
MAX_MODULES = 1 << 12


def recognise(text: str) -> bool:
    """Tell whether the heading of the list, or the row of a module that is asked for, stands in the text."""
    return _HEAD.search(text) is not None or _KNOWN.search(text) is not None


def read(text: str) -> Answers:
    """Return the lines of /proc/modules that are asked for; of single rows the names."""
    found = Answers()
    lines: dict[str, str] = {}
    heading = 0
    first = 0
    for number, line in numbered(text):
        if _HEAD.match(line):
            heading = heading or number
        elif (m := _ROW.match(line)) and len(lines) < MAX_MODULES and int(m[2]) >= _SMALLEST:
            lines.setdefault(m[1], f"{m[1]} {m[2]} {m[3]} {m[4] + ',' if m[4] else '-'} Live 0x0")
            first = first or number
    asked = [f"{m} " for m in MODULES]
    if heading and lines:
        found.put(heading, [x for x in lines.values() if x.startswith(tuple(asked))], "lines", "/proc/modules", *asked)
    elif known := [m for m in lines if m in MODULES]:
        found.names(first, "/sys/module", known, whole=False)
    return found


_SMALLEST = 4096
"""Bytes: a module has at least a page, so that other tables of numbers are none."""

READER = Reader(name="lsmod", tells="kernel modules", recognise=recognise, read=read)
