"""Limits of a process and its shared memory: `ulimit -a`, /proc/self/limits, `df`, `mount` and /proc/mounts."""

from __future__ import annotations

import re

from topocheck.host.base import key
from topocheck.readers.base import Answers, Reader, numbered

SHM = "/dev/shm"
_LIMITS_HEAD = re.compile(r"^Limit +Soft Limit +Hard Limit +Units[ \t]*$", re.M)
_ULIMIT = re.compile(
    r"[ \t]*(?:-\w: )?(?P<name>max locked memory|open files|stack size|max user processes"
    r"|locked-in-memory size|file descriptors|processes|stack size)"
    r"(?:\s*\((?:(?P<unit>[a-z]+), )?-[a-z]\)|\s*\((?P<of>[a-z]+)\))?\s+(?P<value>unlimited|[0-9]{1,18})\s*$"
)
_FILES = {
    "max locked memory": "Max locked memory", "locked-in-memory size": "Max locked memory",
    "open files": "Max open files", "file descriptors": "Max open files", "stack size": "Max stack size",
    "max user processes": "Max processes", "processes": "Max processes",
}  # fmt: skip
"""Name of a limit in bash's, dash's or zsh's `ulimit -a` -> its name in /proc/self/limits."""
_UNITS = {"kbytes": 1024, "kb": 1024, "blocks": 512, "mbytes": 1 << 20}
_AMOUNT = r"[0-9.,]{1,20}[KMGTP]?i?"
_DF = re.compile(
    rf"[ \t]*\S{{1,256}}[ \t]+(?P<total>{_AMOUNT})[ \t]+{_AMOUNT}[ \t]+(?P<free>{_AMOUNT})[ \t]+[0-9]{{1,3}}%"
    rf"[ \t]+{SHM}[ \t]*$"
)
_MOUNT = re.compile(
    rf"[ \t]*\S{{1,256}} (?:on )?{SHM} (?:type )?tmpfs \(?(?:[^\s()]{{1,400}},)?size=([0-9]{{1,18}})([kmg%]?)[,)\s]"
)
"""A line of `mount`, or of /proc/mounts, that limits the size; without `size=` it is half of the memory."""
_DF_BLOCKS = re.compile(r"\b(1K|1024|1M|1048576|512)-\w")
_BLOCKS = {"1K": 1 << 10, "1024": 1 << 10, "1M": 1 << 20, "1048576": 1 << 20, "512": 512}
_SIZES = {"K": 10, "M": 20, "G": 30, "T": 40, "P": 50}


def recognise(text: str) -> bool:
    """Tell whether a limit or a size of /dev/shm stands in the text."""
    return (
        _LIMITS_HEAD.search(text) is not None
        or re.search(rf"^(?:{_DF.pattern}|{_MOUNT.pattern})", text, re.M) is not None
        or _is_ulimit(text)
    )


def _is_ulimit(text: str) -> bool:
    return (
        "ulimit" in text[:400]
        or re.search(r"^[ \t]*(?:-\w: )?(?:core file size|max locked memory)\b", text, re.M) is not None
    )


def read(text: str) -> Answers:
    """Return the soft limits, and total and free bytes of /dev/shm. `df -h` rounds sizes up to two or three digits."""
    found = Answers()
    limits: dict[str, str] = {}
    in_limits = False
    first = 0
    blocks = 0
    mounted: tuple[int, int] | None = None
    for at, line in numbered(text):
        if _LIMITS_HEAD.match(line):
            in_limits, first = True, first or at
        elif in_limits and (m := re.match(r"(Max \S+(?: \S+)*?)\s{2,}(?:unlimited|[0-9]{1,20})\s", line)):
            limits.setdefault(m[1], line.rstrip())
        elif m := _ULIMIT.match(line):
            limit = _limit(m)
            if limit:
                limits.setdefault(_FILES[m["name"]], limit)
                first = first or at
        elif m := _DF.match(line):
            total, free = _size(m["total"], blocks), _size(m["free"], blocks)
            if total is not None and free is not None:
                found.put(at, [total, min(free, total)], "statvfs", SHM)
        elif (m := _MOUNT.match(line + " ")) and m[2] != "%":
            mounted = mounted or (at, int(m[1]) << _SIZES.get(m[2].upper(), 0))
        elif m := _DF_BLOCKS.search(line):
            blocks = _BLOCKS[m[1]]
    question = key("statvfs", (SHM,))
    if mounted is not None and question not in found.answers:  # df says more
        found.put(mounted[0], [mounted[1], None], "statvfs", SHM)
        found.soft.add(question)
    if limits:
        found.file(first, "/proc/self/limits", "\n".join(limits.values()))
    return found


def _limit(m: re.Match[str]) -> str:
    """Return a line of /proc/self/limits; the shell prints the soft limit, and that one is taken for both."""
    name = _FILES[m["name"]]
    unit = m["unit"] or m["of"]
    value = m["value"]
    if value != "unlimited":
        # bash prints KiB where it says so; a number without a unit is a count.
        counted = name in ("Max open files", "Max processes")
        if not counted and unit not in _UNITS:
            return ""
        value = str(int(value) * (1 if counted else _UNITS[str(unit)]))
    return f"{name:<25} {value:<20} {value:<20} {'bytes' if 'memory' in name or 'stack' in name else ''}".rstrip()


def _size(text: str, blocks: int) -> int | None:
    m = re.fullmatch(r"([0-9]{1,18}(?:[.,][0-9]{1,3})?)([KMGTP]?)i?", text)
    if m is None or (not m[2] and m[1] != "0" and not blocks):
        return None
    return round(float(m[1].replace(",", ".")) * (1 << _SIZES[m[2]] if m[2] else blocks or 1))


READER = Reader(
    name="ulimit -a, df, mount", tells="limits of processes, the size of /dev/shm", recognise=recognise, read=read
)
