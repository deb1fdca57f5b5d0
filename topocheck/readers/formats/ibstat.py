"""Text of `ibstat` (infiniband-diags)."""

from __future__ import annotations

import re

from topocheck.readers import rdma_answers as rdma
from topocheck.readers.base import Answers, Reader, numbered

_CA = re.compile(r"CA '([\w.\-]{1,64})'\s*$")
_LINE = re.compile(r"\s+([A-Z][\w ]{1,30}): (.*?)\s*$")
MAX_DEVICES = 1 << 10


def recognise(text: str) -> bool:
    """Tell whether a device with its type below stands in the text."""
    return re.search(r"^CA '[\w.\-]{1,64}'[ \t]*\n[ \t]+CA type:", text, re.M) is not None


def read(text: str) -> Answers:
    """Return devices and ports. Rates stand there as whole Gb/s: 2 is 2.5."""
    found = Answers()
    device, number = "", 0
    names: list[str] = []
    first = 1
    for at, line in numbered(text):
        if m := _CA.match(line):
            device, number = m[1], 0
            first = at if not names else first
            names.append(device)
            if len(names) > MAX_DEVICES:
                break
        elif device and (m := re.match(r"\s+Port ([0-9]{1,3}):\s*$", line)):
            number = int(m[1])
        elif device and (m := _LINE.match(line)):
            if number:
                _port(found, at, device, number, m[1], m[2])
            else:
                _device(found, at, device, m[1], m[2])
        elif line.strip() and not line[:1].isspace() and not line.startswith(("ibwarn:", "ibdebug:")):
            device = ""
    found.names(first, rdma.CLASS, names, whole=len(names) > 1)
    return found


def _device(found: Answers, at: int, device: str, name: str, value: str) -> None:
    plain = {"CA type": "hca_type", "Firmware version": "fw_ver", "Hardware version": "hw_rev"}
    guids = {"Node GUID": "node_guid", "System image GUID": "sys_image_guid"}
    if name in plain:
        rdma.file(found, at, device, plain[name], value)
    elif name in guids and (guid := rdma.guid(value)):
        rdma.file(found, at, device, guids[name], guid)
    elif name == "Number of ports" and re.fullmatch(r"[0-9]{1,2}", value):
        found.put(at, [str(n) for n in range(1, min(int(value), 32) + 1)], "list", f"{rdma.CLASS}/{device}/ports")


def _port(found: Answers, at: int, device: str, number: int, name: str, value: str) -> None:
    if name == "State":
        rdma.state(found, at, device, number, value)
    elif name == "Physical state":
        rdma.physical(found, at, device, number, value)
    elif name == "Rate" and (m := re.match(r"([0-9]{1,5})\b", value)):
        rdma.rate(found, at, device, number, 2.5 if m[1] == "2" else float(m[1]))
    elif name in ("Base lid", "SM lid") and re.fullmatch(r"[0-9]{1,5}", value) and int(value) < 1 << 16:
        rdma.port(found, at, device, number, "lid" if name == "Base lid" else "sm_lid", f"0x{int(value):x}")
    elif name == "Link layer":
        rdma.layer(found, at, device, number, value)


READER = Reader(name="ibstat", tells="RDMA devices and ports", recognise=recognise, read=read)
