"""Text of `numactl -H` (`--hardware`): nodes, their CPUs, sizes and distances."""

from __future__ import annotations

import re

from topocheck.model.address import format_cpulist, parse_cpulist
from topocheck.readers.base import Answers, Reader, numbered

_NODES = "/sys/devices/system/node"
_AVAILABLE = re.compile(r"^available: ([0-9]{1,4}) nodes? \(([0-9,\-]+)\)", re.M)


def recognise(text: str) -> bool:
    """Tell whether the first line stands in the text."""
    return _AVAILABLE.search(text) is not None


def read(text: str) -> Answers:
    """Return nodes, CPUs, sizes (numactl rounds them down to MiB) and distances.

    Where a text ends before the last node, its last row may be cut, and nothing is said of the machine as a whole.
    """
    found = Answers()
    cpus: dict[int, list[int]] = {}
    sizes: dict[int, dict[str, int]] = {}
    at: dict[int, int] = {}
    in_distances = False
    available = 0
    for number, line in numbered(text):
        if m := _AVAILABLE.match(line):
            found.file(number, f"{_NODES}/online", m[2])
            available = available or int(m[1])
        elif m := re.match(r"node ([0-9]{1,4}) cpus:((?: [0-9]{1,5})*)\s*$", line):
            cpus[int(m[1])] = [int(c) for c in m[2].split()]
            at[int(m[1])] = number
        elif m := re.match(
            r"node ([0-9]{1,4}) cpus: ([0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9\-]+)*)(?: \([0-9]+\))?\s*$", line
        ):
            cpus[int(m[1])] = _compressed(m[2])
            at[int(m[1])] = number
        elif m := re.match(r"node ([0-9]{1,4}) (size|free): ([0-9]{1,10}) MB", line):
            sizes.setdefault(int(m[1]), {})[m[2]] = int(m[3])
            at.setdefault(int(m[1]), number)
        elif line.startswith("node distances"):
            in_distances = True
        elif in_distances and (m := re.match(r"\s*([0-9]{1,4}):((?:\s+[0-9]{1,4})+)\s*$", line)):
            if len(m[2].split()) < available:
                continue  # the text ends within the row
            found.file(number, f"{_NODES}/node{int(m[1])}/distance", " ".join(m[2].split()))
    whole = len(sizes) >= available
    if cpus and not whole and (last := max(at, key=lambda n: at[n])) not in sizes:
        del cpus[last], at[last]  # each node's size follows its CPUs
    for node, listed in cpus.items():
        found.file(at[node], f"{_NODES}/node{node}/cpulist", format_cpulist(listed))
    _memory(found, sizes, at, whole=whole)
    if cpus and whole:
        first = min(at.values())
        found.file(first, f"{_NODES}/has_cpu", format_cpulist(n for n, c in cpus.items() if c))
        every = [c for listed in cpus.values() for c in listed]
        if every:
            found.file(first, "/sys/devices/system/cpu/online", format_cpulist(every))
    return found


def _compressed(text: str) -> list[int]:
    """Return the CPUs of `--cpu-compress`: `0-15` and the like."""
    try:
        return sorted(parse_cpulist(text))
    except ValueError:
        return []


def _memory(found: Answers, sizes: dict[int, dict[str, int]], at: dict[int, int], *, whole: bool) -> None:
    for node, size in sizes.items():
        names = (("MemTotal", "size"), ("MemFree", "free"))
        lines = [f"Node {node} {name}: {size[key] * 1024} kB" for name, key in names if key in size]
        asked = [f"Node {node} {name}" for name, _ in names]
        found.put(at[node], lines, "lines", f"{_NODES}/node{node}/meminfo", *asked)
    if sizes and whole:
        with_memory = [n for n, size in sizes.items() if size.get("size")]
        found.file(min(at.values()), f"{_NODES}/has_memory", format_cpulist(with_memory))


READER = Reader(name="numactl -H", tells="NUMA nodes, their CPUs, memory and distances", recognise=recognise, read=read)
