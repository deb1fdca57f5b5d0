"""Text of `show_gids` (MLNX_OFED): the GIDs of RDMA devices with their type and interface; and of `ibv_devices`."""

from __future__ import annotations

import itertools
import re

from topocheck.readers import rdma_answers as rdma
from topocheck.readers.base import Answers, Reader, numbered

_NAME = r"[\w.\-]{1,64}"
_ROW = re.compile(
    rf"[ \t]*({_NAME})[ \t]+([0-9]{{1,3}})[ \t]+([0-9]{{1,3}})[ \t]+((?:[0-9a-f]{{4}}:){{7}}[0-9a-f]{{4}})"
    rf"(?:[ \t]+[0-9]{{1,3}}(?:\.[0-9]{{1,3}}){{3}})?[ \t]+v([12])(?:[ \t]+({_NAME}))?[ \t]*$"
)
_DEVICE = re.compile(rf"\s*({_NAME})\s+([0-9a-f]{{16}})\s*$")
_DEVICES = re.compile(r"^[ \t]*device[ \t]+node GUID[ \t]*$", re.M)
_TYPES = {"1": "IB/RoCE v1", "2": "RoCE v2"}
"""show_gids' word -> the kernel's (`gid_attrs/types`)."""
MAX_ROWS = 1 << 14


def recognise(text: str) -> bool:
    """Tell whether a row of show_gids, or the heading of ibv_devices, stands in the text."""
    return re.search(rf"^{_ROW.pattern}", text, re.M) is not None or _DEVICES.search(text) is not None


def read(text: str) -> Answers:
    """Return the devices that are named, and their GIDs. show_gids leaves out devices without any."""
    found = Answers()
    gids: dict[tuple[str, int], list[int]] = {}
    names: list[str] = []
    whole = False
    in_list = False
    first = 0
    for at, line in itertools.islice(numbered(text), MAX_ROWS):
        if m := _ROW.match(line):
            device, port, index = m[1], int(m[2]), int(m[3])
            if index >= rdma.MAX_GIDS:
                continue
            rdma.gid(found, at, device, port, index, m[4], _TYPES[m[5]])
            if m[6]:
                rdma.port(found, at, device, port, f"gid_attrs/ndevs/{index}", m[6])
            gids.setdefault((device, port), []).append(index)
            names.append(device)
        elif _DEVICES.match(line):
            in_list = whole = True
        elif in_list and (m := _DEVICE.match(line)):
            rdma.file(found, at, m[1], "node_guid", rdma.guid(m[2]) or "")
            names.append(m[1])
        else:
            in_list = in_list and (not line.strip() or line.strip().startswith("------"))
            continue
        first = first or at
    if not names:
        return found
    found.names(first, rdma.CLASS, names, whole=whole)
    rdma.gid_lists(found, first, gids)
    for device in dict.fromkeys(d for d, _ in gids):
        ports = [str(p) for d, p in gids if d == device]
        found.names(first, f"{rdma.CLASS}/{device}/ports", ports, whole=False)
    return found


READER = Reader(
    name="show_gids, ibv_devices", tells="GIDs of RDMA devices and their interfaces", recognise=recognise, read=read
)
