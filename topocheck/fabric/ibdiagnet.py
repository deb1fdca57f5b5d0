"""The tables of `ibdiagnet` (ibdiagnet2.db_csv): sections of comma-separated values, each with its header.

Read are NODES, PORTS and LINKS, by the names of their columns:

    START_NODES
    NodeDesc,NumPorts,NodeType,ClassVersion,BaseVersion,SystemImageGUID,NodeGUID,PortGUID,...
    START_PORTS
    NodeGuid,PortGuid,PortNum,...,LinkWidthActv,...,LinkSpeedActv,...,NMTU,...
    START_LINKS
    NodeGuid1,PortNum1,NodeGuid2,PortNum2

NodeType, LinkWidthActive and NeighborMTU are coded as in NodeInfo and PortInfo (InfiniBand Architecture Specification
1.7, 14.2.5.3 and 14.2.5.6); LinkSpeedActv has LinkSpeedActive in its lowest byte, LinkSpeedExtActive in the next, and
Mellanox's own FDR10 above.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

import msgspec

from topocheck.fabric.build import Builder, Side, lines
from topocheck.fabric.ibnetdiscover import named
from topocheck.model.base import Evidence
from topocheck.model.fabric import DeviceKind, End, Fabric, FabricDevice, Protocol

WIDTHS = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
SPEEDS = {
    0x1: "SDR", 0x2: "DDR", 0x4: "QDR", 0x100: "FDR", 0x200: "EDR", 0x400: "HDR", 0x800: "NDR", 0x1000: "XDR",
    0x10000: "FDR10",
}  # fmt: skip
MTUS = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
_KINDS = {"1": DeviceKind.ADAPTER, "2": DeviceKind.SWITCH, "3": DeviceKind.ROUTER}
_SHOWN = ("NodeGuid", "PortNum", "LinkWidthActv", "LinkSpeedActv", "NMTU")
_GUID = re.compile(r"0x([0-9a-fA-F]{1,16})")
_NEEDED = {
    "NODES": ("NodeDesc", "NumPorts", "NodeType", "NodeGUID"),
    "PORTS": ("NodeGuid", "PortNum"),
    "LINKS": ("NodeGuid1", "PortNum1", "NodeGuid2", "PortNum2"),
}


class _PortFacts(msgspec.Struct, frozen=True):
    width: int | None
    speed: str
    mtu: int | None
    evidence: Evidence


def recognise(text: str) -> bool:
    """Tell whether a text is of ibdiagnet's tables."""
    return bool(re.search(r"^START_NODES\s*$", text, re.MULTILINE))


def parse(text: str, name: str) -> Fabric:
    """Return the fabric in an ibdiagnet2.db_csv; rows that cannot be read are problems.

    Args:
        text: the file.
        name: of the file, for evidence.
    """
    builder = Builder(Protocol.INFINIBAND, name)
    ports: dict[End, _PortFacts] = {}
    links: list[tuple[End, End, Evidence]] = []
    for number, section, row in _rows(text):
        source = f"{name}:{number}"
        try:
            if section == "NODES":
                builder.add_device(_device(row, source))
            elif section == "PORTS":
                ports[End(_guid(row["NodeGuid"]), str(int(row["PortNum"])))] = _port(row, source)
            else:
                a, b = (End(_guid(row[f"NodeGuid{i}"]), str(int(row[f"PortNum{i}"]))) for i in (1, 2))
                links.append((a, b, Evidence(source, ",".join(row.values())[:200])))
        except (KeyError, ValueError):
            builder.problem(number, ",".join(map(str, row.values())))
    for a, b, evidence in links:
        for here, there in ((a, b), (b, a)):
            facts = ports.get(here, _PortFacts(None, "", None, evidence))
            builder.add_side(
                Side(here=here, there=there, width=facts.width, speed=facts.speed, mtu=facts.mtu,
                     evidence=facts.evidence)
            )  # fmt: skip
    return builder.fabric()


def _rows(text: str) -> Iterator[tuple[int, str, dict[str, str]]]:
    """Yield (line, section, row) of the sections that are read; a row that the csv module refuses is empty."""
    section = ""
    header: list[str] = []
    for number, line in lines(text):
        stripped = line.strip()
        if stripped.startswith("START_"):
            section, header = stripped.removeprefix("START_"), []
        elif stripped.startswith("END_"):
            section = ""
        elif section in _NEEDED and stripped:
            try:
                cells = next(csv.reader([stripped]))
            except csv.Error:
                cells = []
            if not header:
                header = cells
            else:
                row = dict(zip(header, cells, strict=False))
                yield number, section, row if set(_NEEDED[section]) <= row.keys() else {"": stripped}


def _guid(text: str) -> str:
    m = _GUID.fullmatch(text.strip())
    if m is None:
        raise ValueError(text)
    return m[1].lower().zfill(16)


def _device(row: dict[str, str], source: str) -> FabricDevice:
    return named(
        FabricDevice(
            id=_guid(row["NodeGUID"]),
            kind=_KINDS[row["NodeType"].strip()],
            name=row["NodeDesc"].strip(),
            ports=int(row["NumPorts"]),
            source=source,
        )
    )


def _port(row: dict[str, str], source: str) -> _PortFacts:
    width = WIDTHS.get(_number(row.get("LinkWidthActv")))
    speed = SPEEDS.get(_number(row.get("LinkSpeedActv")), "")
    mtu = MTUS.get(_number(row.get("NMTU")))
    shown = ", ".join(f"{k} {row[k]}" for k in _SHOWN if k in row)
    return _PortFacts(width, speed, mtu, Evidence(source, shown[:200]))


def _number(text: str | None) -> int:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,8}", text.strip()) else 0
