"""The file of NCCL_GRAPH_FILE: what a version of NCCL would make of it.

Where it is set, init reads it for each of its searches and ends with an error wherever the file does not hold what it
needs (src/graph/search.cc, ncclTopoGetGraphFromXmlSub; src/graph/xml.cc, ncclTopoXmlGraphLoadGraphs).
"""

from __future__ import annotations

import re

import msgspec

from topocheck.knowledge.nccl import Version
from topocheck.knowledge.nccl_rules import has, number
from topocheck.nccl.rules.values import read_integer
from topocheck.nccl.topofile.xml import Element, NcclXmlError, parse

_ALWAYS_SEARCHED = (0, 1)
"""`graph->id` of ring and tree (src/init.cc); those of CollNet and NVLS are searched on some machines alone."""
_SEARCHED = range(5)
_NEEDED = ("crossnic", "pattern", "nchannels", "speedintra", "speedinter", "typeintra", "typeinter", "samechannels")
_CHANNEL = ("net", "gpu")


class GraphFile(msgspec.Struct, frozen=True):
    """What NCCL takes from a graph file.

    Attributes:
        devices: device numbers that it looks up among the GPUs of the communicator, in ascending order.
        fatal: why init ends whatever the machine is, with the line; empty where it does not.
        graphs: how many graphs the file has; of a file without any NCCL takes nothing.
    """

    devices: tuple[int, ...]
    fatal: str = ""
    graphs: int = 0


def read_graphs(text: str, version: Version) -> GraphFile:
    """Return what a version of NCCL would make of the text of a graph file; any text gives an answer."""
    try:
        document = parse(text)
    except NcclXmlError as e:
        return GraphFile((), str(e))
    stops = next((f"line {r.line}: {r.text}" for r in document.remarks if r.fatal), "")
    root = document.root
    if root.name != "graphs":
        return GraphFile((), stops)
    graphs = list(root.having("graph"))
    fatal = stops or next((why for e in (root, *_all(graphs)) if (why := _stops(e, version))), "")
    devices = {n for g in graphs if _number(g, "id") in _SEARCHED for n in _looked_up(g, version)}
    return GraphFile(tuple(sorted(devices)), fatal, len(graphs))


def _all(graphs: list[Element]) -> list[Element]:
    """Return the elements that NCCL takes below <graphs>, in the order of the file."""
    out: list[Element] = []
    for g in graphs:
        out.append(g)
        for channel in g.having("channel"):
            out.append(channel)
            out += [x for x in channel.children if x.name in _CHANNEL] if _number(g, "id") in _ALWAYS_SEARCHED else []
    return out


def _stops(e: Element, version: Version) -> str:
    """Return why init ends at an element; empty where it does not."""
    most = int(number("max_subs", version, 640))
    if e.name == "graphs" and _number(e, "version") != 1:
        found = e.get("version")
        return f"line {e.line}: " + (f"version {found[:20]!r}, and NCCL takes 1 only" if found else "no version")
    needed: tuple[str, ...] = ()
    if e.name == "graph":
        needed = ("id", *_NEEDED) if _number(e, "id") in (None, *_ALWAYS_SEARCHED) else ()
    elif e.name in _CHANNEL:
        needed = ("dev",)
    lacking = next((n for n in needed if e.get(n) is None), None)
    if lacking is not None:
        return f"line {e.line}: <{e.name}> without {lacking}"
    taken = ("graph",) if e.name == "graphs" else ("channel",) if e.name == "graph" else _CHANNEL
    if sum(c.name in taken for c in e.children) > most:
        return f"line {e.line}: <{e.name}> has more than {most} children"
    return ""


def _number(e: Element, name: str) -> int | None:
    text = e.get(name)
    return None if text is None else read_integer(text)[0]


def _looked_up(graph: Element, version: Version) -> set[int]:
    """Return the device numbers of a graph's GPUs that NCCL looks up: all, or those without a rank where it reads one.

    Up to 2.20 a number is in any C base, from then on hexadecimal with and without its prefix.
    """
    out = set()
    for channel in graph.having("channel"):
        for gpu in channel.having("gpu"):
            text = gpu.get("dev")
            if text is None or (has("graph_rank", version) and gpu.get("rank") is not None):
                continue
            out.add(_hexadecimal(text) if has("graph_dev_hex", version) else read_integer(text)[0])
    return out


def _hexadecimal(text: str) -> int:
    """Return what strtol makes of a text in base 16; 0 where it begins with no number."""
    m = re.match(r"\s*([+-]?)(?:0[xX])?([0-9a-fA-F]{1,16})", text, re.ASCII)
    return 0 if m is None else int(m[1] + m[2], 16)
