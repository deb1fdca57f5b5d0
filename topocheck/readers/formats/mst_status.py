"""Text of `mst status -v` (MFT): which PCI function, RDMA device, interface and NUMA node belong together."""

from __future__ import annotations

import re

from topocheck.model.address import normalize_address
from topocheck.readers import pci_answers as pci
from topocheck.readers import rdma_answers as rdma
from topocheck.readers.base import Answers, Reader, numbered

_ROW = re.compile(
    r"[ \t]*\w[\w\-]{2,30}\(rev:\w{1,4}\)[ \t]+(?:/dev/mst/\S{1,64}|NA)[ \t]+"
    r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?P<rest>(?:[ \t]+\S{1,200}){0,4})[ \t]*$"
)
_NAME = re.compile(r"[\w.\-]{1,64}")


def recognise(text: str) -> bool:
    """Tell whether a row of its table stands in the text."""
    return re.search(rf"^{_ROW.pattern}", text, re.M) is not None


def read(text: str) -> Answers:
    """Return the RDMA devices with what belongs to them. A column without a value is left blank or `NA`."""
    found = Answers()
    names: list[str] = []
    first = 0
    for at, line in numbered(text):
        m = _ROW.match(line)
        if m is None:
            continue
        address = normalize_address(m[1] if m[1].count(":") == 2 else f"0000:{m[1]}")
        words = [w for w in m["rest"].split() if w not in ("NA", "N/A", "-")]
        node = words.pop() if words and re.fullmatch(r"-?[0-9]{1,4}", words[-1]) else ""
        netdevs = [w.removeprefix("net-") for w in words if w.startswith("net-")]
        device = next((w for w in words if not w.startswith("net-") and _NAME.fullmatch(w)), "")
        if address is None:
            continue
        if node:
            pci.file(found, at, address, "numa_node", node)
        if device and device not in names:
            first = first or at
            names.append(device)
            rdma.address(found, at, device, address)
            listed = [n for w in netdevs for n in w.split(",") if _NAME.fullmatch(n)]
            if listed:
                found.names(at, f"{rdma.CLASS}/{device}/device/net", listed, whole=False)
    if names:
        found.names(first, rdma.CLASS, names, whole=False)
    return found


READER = Reader(
    name="mst status -v", tells="RDMA devices, their PCI functions and NUMA nodes", recognise=recognise, read=read
)
