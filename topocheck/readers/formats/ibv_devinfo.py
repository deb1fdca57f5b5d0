"""Text of `ibv_devinfo` and `ibv_devinfo -v` (rdma-core), indented or with its blanks lost."""

from __future__ import annotations

import re

from topocheck.readers import rdma_answers as rdma
from topocheck.readers.base import Answers, Reader, numbered

_ID = re.compile(r"hca_id:\s*([\w.\-]{1,64})\s*$")
_LINE = re.compile(r"\s*([a-z_]{2,30}):\s*(.*?)\s*$")
_PORT = re.compile(r"\s*port:\s*([0-9]{1,3})\s*$")
_GID = re.compile(r"\s*(?:\*\*)?GID\[\s*([0-9]{1,3})\]:\s*([0-9a-f:.]{2,45})(?:,\s*(RoCE v[12]|IB/RoCE v1|IB))?\b")
_FULL_GID = 39
"""Characters of a GID in full; one in short form is followed by its type, or the line is cut."""
_OF_A_PORT = re.compile(r"\s*(?:max_mtu|active_mtu|port_lid|link_layer|phys_state|gid_tbl_len):\s")
_MELLANOX = "0x02c9"
_LANES = {"1": 1, "2": 2, "4": 4, "8": 8, "12": 12}


def recognise(text: str) -> bool:
    """Tell whether a device with its transport below stands in the text."""
    return re.search(r"^hca_id:\s*[\w.\-]{1,64}[ \t]*\n\s*transport:", text, re.M) is not None


def read(text: str) -> Answers:
    """Return devices and ports; the rate of a port only from -v, as lanes times the speed of one."""
    found = Answers()
    device, number = "", 0
    names: list[str] = []
    first = 1
    values: dict[str, str] = {}
    gids: dict[tuple[str, int], list[int]] = {}
    cut = False
    for at, line in numbered(text):
        if m := _ID.match(line):
            device, number, values = m[1], 0, {}
            first = at if not names else first
            names.append(device)
            if len(names) > 1 << 10:
                break
        elif not device:
            cut = cut or _OF_A_PORT.match(line) is not None
        elif m := _PORT.match(line):
            number = int(m[1])
        elif m := _GID.match(line):
            if (
                number
                and int(m[1]) < rdma.MAX_GIDS
                and (m[3] or len(m[2]) == _FULL_GID)
                and (gid := rdma.gid_text(m[2]))
            ):
                rdma.gid(found, at, device, number, int(m[1]), gid, m[3] or "")
                gids.setdefault((device, number), []).append(int(m[1]))
        elif m := _LINE.match(line):
            values[m[1]] = m[2]
            (_port if number else _device)(found, at, device, number, m[1], m[2], values)
    rdma.gid_lists(found, first, gids)
    found.names(first, rdma.CLASS, names, whole=len(names) > 1 and not cut)
    return found


def _device(found: Answers, at: int, device: str, _: int, name: str, value: str, values: dict[str, str]) -> None:
    if name in ("fw_ver", "board_id"):
        rdma.file(found, at, device, name, value)
    elif name in ("node_guid", "sys_image_guid") and (guid := rdma.guid(value)):
        rdma.file(found, at, device, name, guid)
    elif name == "hw_ver" and (m := re.fullmatch(r"0x([0-9a-fA-F]{1,8})", value)):
        rdma.file(found, at, device, "hw_rev", m[1].lower())
    elif name == "vendor_part_id" and values.get("vendor_id") == _MELLANOX and re.fullmatch(r"[0-9]{1,6}", value):
        rdma.file(found, at, device, "hca_type", f"MT{value}")  # as mlx5 makes it of the same number
    elif name == "phys_port_cnt" and re.fullmatch(r"[0-9]{1,2}", value):
        found.put(at, [str(n) for n in range(1, min(int(value), 32) + 1)], "list", f"{rdma.CLASS}/{device}/ports")


def _port(found: Answers, at: int, device: str, number: int, name: str, value: str, values: dict[str, str]) -> None:
    word = value.partition(" (")[0]
    if name == "state":
        rdma.state(found, at, device, number, word)
    elif name == "phys_state":
        rdma.physical(found, at, device, number, word)
    elif name in ("port_lid", "sm_lid") and re.fullmatch(r"[0-9]{1,5}", value) and int(value) < 1 << 16:
        rdma.port(found, at, device, number, "lid" if name == "port_lid" else "sm_lid", f"0x{int(value):x}")
    elif name == "link_layer":
        rdma.layer(found, at, device, number, value)
    elif name == "active_speed" and (m := re.match(r"([0-9.]{1,6}) Gbps", value)):
        width = re.match(r"([0-9]{1,2})X", values.get("active_width", ""))
        if width and width[1] in _LANES and re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,2})?", m[1]):
            rdma.rate(found, at, device, number, _LANES[width[1]] * float(m[1]))


READER = Reader(name="ibv_devinfo (-v)", tells="RDMA devices, ports and GIDs", recognise=recognise, read=read)
