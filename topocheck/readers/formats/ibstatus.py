"""Text of `ibstatus` (infiniband-diags): a block for each port, in the words of sysfs."""

from __future__ import annotations

import re

from topocheck.readers import rdma_answers as rdma
from topocheck.readers.base import Answers, Reader, numbered

_PORT = re.compile(r"Infiniband device '([\w.\-]{1,64})' port ([0-9]{1,3}) status:\s*$")
_LINE = re.compile(r"\s*(base lid|sm lid|state|phys state|rate|link_layer):\s+(\S.*?)\s*$")
_NUMBERED = re.compile(r"[0-9]: \w[\w ]*")
MAX_DEVICES = 1 << 10


def recognise(text: str) -> bool:
    """Tell whether the first line of a port stands in the text."""
    return re.search(rf"^[ \t]*{_PORT.pattern}", text, re.M) is not None


def read(text: str) -> Answers:
    """Return devices and ports."""
    found = Answers()
    ports: dict[str, list[str]] = {}
    device, number, first = "", 0, 0
    for at, line in numbered(text):
        if m := _PORT.match(line.strip()):
            device, number = m[1], int(m[2])
            first = first or at
            if device not in ports and len(ports) >= MAX_DEVICES:
                break
            ports.setdefault(device, []).append(m[2])
        elif device and (m := _LINE.match(line)):
            _value(found, at, device, number, m[1], m[2])
    found.names(first or 1, rdma.CLASS, list(ports), whole=len(ports) > 1)
    for name, numbers in ports.items():
        found.names(first, f"{rdma.CLASS}/{name}/ports", numbers, whole=False)
    return found


def _value(found: Answers, at: int, device: str, number: int, name: str, value: str) -> None:
    if name in ("base lid", "sm lid"):
        if re.fullmatch(r"0x[0-9a-f]{1,4}", value):
            rdma.port(found, at, device, number, "lid" if name == "base lid" else "sm_lid", value)
    elif name in ("state", "phys state"):
        if _NUMBERED.fullmatch(value):
            (rdma.state if name == "state" else rdma.physical)(found, at, device, number, value[3:])
    elif name == "link_layer":
        rdma.layer(found, at, device, number, value)
    else:
        rdma.port(found, at, device, number, name, value)


READER = Reader(name="ibstatus", tells="RDMA devices and ports", recognise=recognise, read=read)
