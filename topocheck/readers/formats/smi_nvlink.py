"""Text of `nvidia-smi nvlink -s` (status), `-c` (capabilities) and `-R` (the other ends), of drivers 384 to 590.

`-s` prints the speed of a link that is up (`Link 0: 26.562 GB/s`) and `<inactive>` for one that is down; of a GPU
without NVLinks nothing, or a line that says so. `-c` prints the capabilities of the links that are up.
"""

from __future__ import annotations

import re

from topocheck.knowledge.products import find_product
from topocheck.probes.nvml import fields
from topocheck.readers.base import Answers, Reader, numbered

_GPU = re.compile(r"\s*GPU ([0-9]{1,3}): (\S.*?)(?: \(UUID: (?:(GPU-[0-9a-fA-F\-]{36})|[^)]{0,80})\))?\s*$")
_LINK = re.compile(r"\s+Link ([0-9]{1,2}): (?:([0-9]{1,4}(?:\.[0-9]{1,4})?) GB/s|(<inactive>|[Ii]nactive))\s*$")
_CAPABILITY = re.compile(r"\s+Link ([0-9]{1,2}), ([A-Za-z0-9 ()]{3,40}): (true|false)\s*$")
_REMOTE = re.compile(
    r"\s+Link ([0-9]{1,2}): Remote Device ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]): Link [0-9]"
)
_CAPABILITIES = {"p2p is supported": 0, "access to system memory supported": 1, "p2p atomics supported": 2,
                 "system memory atomics supported": 3}  # fmt: skip
"""nvidia-smi's words -> nvmlNvLinkCapability_t."""
MAX_LINKS = 36
_ELLIPSIS = re.compile(r"\s*(?:\.{2,}|\u2026|\[?snip\]?|<snip>)\s*$")
"""Where somebody left out lines."""


def recognise(text: str) -> bool:
    """Tell whether a GPU with a link below it stands in the text."""
    return re.search(r"^[ \t]*GPU [0-9]{1,3}: .*\n[ \t]+Link [0-9]{1,2}[:,] ", text, re.M) is not None


def read(text: str) -> Answers:
    """Return state and speed of each link, by the index of its GPU."""
    found = Answers()
    index: int | None = None
    links: dict[int, dict[int, tuple[float | None, int]]] = {}
    lines: dict[int, int] = {}
    names: dict[int, str] = {}
    cut: set[int] = set()
    for number, line in numbered(text):
        if m := _GPU.match(line):
            index = int(m[1])
            lines.setdefault(index, number)
            names.setdefault(index, m[2])
            found.put(number, m[2], "nvml", "DeviceGetName", index)
            if m[3]:
                found.put(number, m[3], "nvml", "DeviceGetUUID", index)
        elif index is not None and (m := _LINK.match(line)) and int(m[1]) < MAX_LINKS:
            links.setdefault(index, {})[int(m[1])] = (float(m[2]) if m[2] else None, number)
        elif index is not None and (m := _REMOTE.match(line)) and int(m[1]) < MAX_LINKS:
            found.put(number, {"busId": m[2]}, "nvml", "DeviceGetNvLinkRemotePciInfo", index, int(m[1]))
        elif index is not None and (m := _CAPABILITY.match(line)):
            capability = _CAPABILITIES.get(m[2].lower())
            if capability is not None:
                flag = int(m[3] == "true")
                found.put(number, flag, "nvml", "DeviceGetNvLinkCapability", index, int(m[1]), capability)
        elif index is not None and _ELLIPSIS.match(line):
            cut.add(index)
    # The text may end within its last list.
    last = max(lines, key=lambda g: lines[g], default=-1)
    if any(len(of) > len(links.get(last, ())) for g, of in links.items() if names[g] == names.get(last)):
        cut.add(last)
    # nvidia-smi lists links that are down too, so a list shorter than the product's is cut.
    wired = {g: p.nvlink_links for g, name in names.items() if (p := find_product(name)) is not None}
    cut |= {g for g, n in wired.items() if n is not None and len(links.get(g, ())) < n}
    if lines:
        found.put(min(lines.values()), max(lines) + 1, "nvml", "DeviceGetCount")
        found.soft.add("nvml:DeviceGetCount")
    for gpu, of in links.items():
        _links(found, gpu, of, lines[gpu], whole=gpu not in cut)
    return found


def _links(found: Answers, gpu: int, links: dict[int, tuple[float | None, int]], line: int, *, whole: bool) -> None:
    """Take down the links of a GPU. Their number is what is listed, where the list is whole and so has no gap."""
    for link, (speed, at) in links.items():
        found.put(at, int(speed is not None), "nvml", "DeviceGetNvLinkState", gpu, link)
    count = len(links)
    if not whole or set(links) != set(range(count)):
        return
    found.put(line, fields.with_count(count), "nvml", "DeviceGetFieldValues", gpu, fields.device_fields())
    speeds = [[fields.NVLINK_SPEED, k, *_speed(links[k][0])] for k in range(count)]
    found.put(line, speeds, "nvml", "DeviceGetFieldValues", gpu, fields.link_speed_fields(count))


def _speed(gb_s: float | None) -> tuple[int | None, int]:
    """Return value and return code; nvidia-smi prints NVML's MB/s divided by 1000."""
    return (None, 3) if gb_s is None else (round(gb_s * 1000), 0)


READER = Reader(
    name="nvidia-smi nvlink -s, -c, -R",
    tells="NVLinks, their speed and other ends",
    recognise=recognise,
    read=read,
)
