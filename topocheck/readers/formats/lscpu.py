"""Text of `lscpu` (util-linux 2.23 to 2.40): the processor, and whether a hypervisor runs it."""

from __future__ import annotations

import re

from topocheck.model.address import format_cpulist
from topocheck.probes.cpuinfo import CPUINFO_BYTES
from topocheck.readers.base import Answers, Reader, numbered
from topocheck.readers.lscpu_words import english

_NODES = "/sys/devices/system/node"
_LINE = re.compile(r"^[ \t]*([^\W0-9_«][^:：\n]{1,48}?) ?[:：](?:\s+(\S.*?))?\s*$")
_MACHINE = re.compile(r"(x86_64|i[3-6]86|aarch64|ppc64le|ppc64|s390x|riscv64)$")
_NODES_OF = re.compile(r"^.{0,40}NUMA.{0,30}[:：][ \t]+[0-9,\-]+[ \t]*$", re.M)
_X86 = (("Vendor ID", "vendor_id"), ("CPU family", "cpu family"), ("Model", "model"), ("Model name", "model name"),
        ("Core(s) per socket", "cpu cores"))  # fmt: skip
"""lscpu's words -> those of /proc/cpuinfo on x86."""


def recognise(text: str) -> bool:
    """Tell whether lscpu's first lines, in any language, or its lines about NUMA nodes stand in the text."""
    first = (
        r"^[ \t]*[^:：\n]{2,24}[:：][ \t]+(?:x86_64|i[3-6]86|aarch64|ppc64le|ppc64|s390x|riscv64)[ \t]*\n"
        r"(?:.*\n){0,3}?.*(?:(?:Little|Big) Endian|32-bit, 64-bit)"
    )
    if re.search(first, text, re.M) is not None:
        return True
    return any(
        english(m[0].strip().partition(":")[0].partition("：")[0]) != "NUMA node(s)" and _node(m[0]) is not None
        for m in _NODES_OF.finditer(text)
    )


def _node(line: str) -> int | None:
    m = _LINE.match(line)
    of = re.fullmatch(r"NUMA node([0-9]{1,4}) CPU\(s\)", english(m[1])) if m else None
    return int(of[1]) if of else None


def read(text: str) -> Answers:
    """Return architecture, model, online CPUs and NUMA nodes."""
    found = Answers()
    told: dict[str, tuple[str, int]] = {}
    architecture, at = "", 1
    for number, line in numbered(text):
        if m := _LINE.match(line):
            told.setdefault(english(m[1]), (m[2] or "", number))
            if not architecture and _MACHINE.match(m[2] or "") and len(told) < 4:
                architecture, at = m[2], number
    if architecture:
        found.file(at, "/proc/sys/kernel/arch", architecture)
    if "On-line CPU(s) list" in told:
        found.file(told["On-line CPU(s) list"][1], "/sys/devices/system/cpu/online", told["On-line CPU(s) list"][0])
    if architecture in ("x86_64", "i686"):
        _cpuinfo(found, told, at)
    nodes = []
    for name, (value, number) in told.items():
        # A node without CPUs has a blank: Grace has a node for each GPU's memory.
        if (m := re.fullmatch(r"NUMA node([0-9]{1,4}) CPU\(s\)", name)) and re.fullmatch(r"[0-9,\-]*", value):
            nodes.append(int(m[1]))
            found.file(number, f"{_NODES}/node{int(m[1])}/cpulist", value)
    if nodes and told.get("NUMA node(s)", ("", 0))[0] == str(len(nodes)):
        found.file(told["NUMA node(s)"][1], f"{_NODES}/online", format_cpulist(nodes))
        found.soft.add(f"read:{_NODES}/online")
    return found


def _cpuinfo(found: Answers, told: dict[str, tuple[str, int]], line: int) -> None:
    """Give the first processor's block, as far as lscpu has it; nothing where the text ends within it."""
    if next(reversed(told), "") in dict(_X86):
        return
    rows = ["processor\t: 0"]
    rows += [f"{kernel}\t: {told[name][0]}" for name, kernel in _X86 if name in told]
    named = told.get("Hypervisor vendor")
    if named is not None:
        found.hypervisor(named[1], named[0].split()[0])
    if named is not None or " hypervisor" in f" {told.get('Flags', ('', 0))[0]} ":
        rows.append("flags\t: hypervisor")
    elif "Flags" in told:
        rows.append("flags\t: fpu")
    if len(rows) > 1:
        found.put(line, ("\n".join(rows) + "\n").encode(), "read", "/proc/cpuinfo", CPUINFO_BYTES)


READER = Reader(name="lscpu", tells="the processor, NUMA nodes, hypervisor", recognise=recognise, read=read)
