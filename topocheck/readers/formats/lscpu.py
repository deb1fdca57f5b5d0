"""Text of `lscpu` (util-linux 2.23 to 2.40): the processor, and whether a hypervisor runs it."""

from __future__ import annotations

import re

from topocheck.model.address import format_cpulist
from topocheck.probes.cpuinfo import CPUINFO_BYTES
from topocheck.readers.base import Answers, Reader, numbered

_NODES = "/sys/devices/system/node"
_LINE = re.compile(r"^[ \t]*([A-Z][\w() \-/]{1,40}?):\s+(\S.*?)\s*$")
_X86 = (("Vendor ID", "vendor_id"), ("CPU family", "cpu family"), ("Model", "model"), ("Model name", "model name"),
        ("Core(s) per socket", "cpu cores"))  # fmt: skip
"""lscpu's words -> those of /proc/cpuinfo on x86."""


def recognise(text: str) -> bool:
    """Tell whether lscpu's first lines stand in the text."""
    return (
        re.search(
            r"^[ \t]*Architecture:[ \t]+\w+[ \t]*\n(?:.*\n){0,3}?[ \t]*(?:Byte Order|CPU op-mode\(s\)):", text, re.M
        )
        is not None
    )


def read(text: str) -> Answers:
    """Return architecture, model, online CPUs and NUMA nodes."""
    found = Answers()
    told: dict[str, tuple[str, int]] = {}
    for number, line in numbered(text):
        if m := _LINE.match(line):
            told.setdefault(m[1], (m[2], number))
    architecture, at = told.get("Architecture", ("", 1))
    if architecture:
        found.file(at, "/proc/sys/kernel/arch", architecture)
    if "On-line CPU(s) list" in told:
        found.file(told["On-line CPU(s) list"][1], "/sys/devices/system/cpu/online", told["On-line CPU(s) list"][0])
    if architecture in ("x86_64", "i686"):
        _cpuinfo(found, told, at)
    nodes = []
    empty = {}
    for number, line in numbered(text):
        if m := re.match(r"\s*NUMA node([0-9]{1,4}) CPU\(s\):\s*$", line):  # Grace has a node for each GPU's memory
            empty[int(m[1])] = number
    for name, (value, number) in told.items():
        if (m := re.fullmatch(r"NUMA node([0-9]{1,4}) CPU\(s\)", name)) and re.fullmatch(r"[0-9,\-]+", value):
            nodes.append(int(m[1]))
            found.file(number, f"{_NODES}/node{int(m[1])}/cpulist", value)
    for node, number in empty.items():
        nodes.append(node)
        found.file(number, f"{_NODES}/node{node}/cpulist", "")
    if nodes and told.get("NUMA node(s)", ("", 0))[0] == str(len(nodes)):
        found.file(told["NUMA node(s)"][1], f"{_NODES}/online", format_cpulist(nodes))
        found.soft.add(f"read:{_NODES}/online")
    return found


def _cpuinfo(found: Answers, told: dict[str, tuple[str, int]], line: int) -> None:
    """Give the first processor's block, as far as lscpu has it."""
    rows = ["processor\t: 0"]
    rows += [f"{kernel}\t: {told[name][0]}" for name, kernel in _X86 if name in told]
    named = told.get("Hypervisor vendor")
    if named is not None:
        found.hypervisor(named[1], named[0].split()[0])
    if "Flags" in told:
        rows.append("flags\t: hypervisor" if " hypervisor" in f" {told['Flags'][0]} " else "flags\t: fpu")
    elif named is not None:
        rows.append("flags\t: hypervisor")
    if len(rows) > 1:
        found.put(line, ("\n".join(rows) + "\n").encode(), "read", "/proc/cpuinfo", CPUINFO_BYTES)


READER = Reader(name="lscpu", tells="the processor, NUMA nodes, hypervisor", recognise=recognise, read=read)
