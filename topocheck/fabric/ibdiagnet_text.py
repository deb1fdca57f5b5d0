"""Text files of `ibdiagnet`: the list of links (ibdiagnet.lst, ibdiagnet2.lst) and the ports of switches (net_dump).

A link a line; LID and PN are hexadecimal, SPD is the rate of a lane in Gb/s:

    { CA Ports:02 SystemGUID:G NodeGUID:G PortGUID:G VenID:V DevID:D Rev:R {node01 HCA-1} LID:0005 PN:01 } { SW ...
    LID:0002 PN:14 } PHY=4x LOG=ACT SPD=25

A block for each switch, whose columns are named; MTU is a code of PortInfo, LWA and LSA width and rate of a lane:

    "leaf-1", Mellanox, 0x0002c90300688830, LID 5
    # : IB# : Sta : PhysSta : MTU : LWA : LSA : FEC mode : Retran : Neighbor Guid : N# : NLID : Neighbor Description
    1 : 1 : ACT : LINK UP : 5 : 4x : 100 : RS : NO-RTR : 0x0002c90300165e60 : 1 : 5 : "node01 mlx5_0"
"""

from __future__ import annotations

import re

import msgspec

from topocheck.fabric.build import Builder, Side, lines
from topocheck.fabric.ibdiagnet import MTUS
from topocheck.fabric.ibnetdiscover import named
from topocheck.model.base import Evidence, small_number
from topocheck.model.fabric import DeviceKind, DownPort, End, Fabric, FabricDevice, Protocol

_DEVICE = (
    r"\{\s*(CA|SW|RT|Rt)\s+Ports:([0-9a-fA-F]+)\s+SystemGUID:\S+\s+NodeGUID:([0-9a-fA-F]{16})\s+PortGUID:\S+\s+"
    r"VenID:\S+\s+DevID:\S+\s+Rev:\S+\s+(?:\{(.*?)\}\s+)?LID:([0-9a-fA-F]{1,6})\s+PN:([0-9a-fA-F]{1,3})\s*\}"
)
_LINK = re.compile(rf"\s*{_DEVICE}\s*{_DEVICE}\s*PHY=([0-9]{{1,2}})x\s+LOG=(\w+)\s+SPD=(\S+)\s*")
_SWITCH = re.compile(r'\s*"(.*)",\s*[^,]*,\s*0x([0-9a-fA-F]{1,16}),\s*LID\s+([0-9]{1,6})\s*')
_KINDS = {"CA": DeviceKind.ADAPTER, "SW": DeviceKind.SWITCH, "RT": DeviceKind.ROUTER}
_STATES = {"ACT": "Active", "INI": "Init", "ARM": "Armed", "DWN": "Down", "DOWN": "Down"}
_LANES = {"2.5": "SDR", "5": "DDR", "10": "QDR", "14": "FDR", "25": "EDR", "50": "HDR", "100": "NDR", "200": "XDR",
          "FDR10": "FDR10"}  # fmt: skip
"""Rate of a lane as ibdiagnet prints it, and the name of the speed."""
_COLUMNS = {"Sta": "state", "PhysSta": "physical", "MTU": "mtu", "LWA": "width", "LSA": "lane",
            "Neighbor Guid": "guid", "N#": "port", "NLID": "lid", "Neighbor LID": "lid",
            "Neighbor Description": "name", "IB#": "number"}  # fmt: skip


class _Switch(msgspec.Struct):
    """The switch whose ports follow, and the columns of its table."""

    id: str
    columns: list[str] = []


def recognise(text: str) -> bool:
    """Tell whether a text is ibdiagnet's list of links or its dump of the ports of switches."""
    begins = ("{", '"')
    return any(
        line.lstrip().startswith(begins) and (_LINK.fullmatch(line) or _SWITCH.fullmatch(line))
        for _, line in lines(text)
    )


def parse(text: str, name: str) -> Fabric:
    """Return the fabric in ibdiagnet2.lst or ibdiagnet2.net_dump; lines of another form are problems.

    Args:
        text: the file.
        name: of the file, for evidence.
    """
    builder = Builder(Protocol.INFINIBAND, name)
    switch: _Switch | None = None
    ports: dict[str, str] = {}
    for number, line in lines(text):
        stripped, source = line.strip(), f"{name}:{number}"
        if m := _LINK.fullmatch(line):
            _add_link(builder, m, Evidence(source, stripped[:200]))
        elif m := _SWITCH.fullmatch(line):
            switch = _Switch(m[2].lower().zfill(16))
            builder.add_device(
                FabricDevice(id=switch.id, kind=DeviceKind.SWITCH, name=m[1], lid=int(m[3]), source=source)
            )
        elif stripped.startswith("#") and switch is not None and "Neighbor" in stripped:
            switch.columns = [c.strip() for c in stripped.split(" : ")]
        elif not stripped or stripped.startswith("#"):
            continue
        elif switch is None or not switch.columns or not _add_port(builder, switch, stripped, source, ports):
            builder.problem(number, stripped)
    for guid, description in ports.items():
        # Switches have blocks of their own, which were added first.
        builder.add_device(named(FabricDevice(id=guid, kind=DeviceKind.ADAPTER, name=description, source=name)))
    return builder.fabric()


def _add_link(builder: Builder, m: re.Match[str], evidence: Evidence) -> None:
    ends = []
    for kind, _, guid, description, lid, port in (m.groups()[:6], m.groups()[6:12]):
        builder.add_device(
            named(FabricDevice(id=guid.lower(), kind=_KINDS[kind.upper()], name=(description or "").strip(),
                               lid=int(lid, 16), source=evidence.source))
        )  # fmt: skip
        ends.append(End(guid.lower(), str(int(port, 16))))
    width, state, lane = m.groups()[12:]
    builder.add_side(
        Side(here=ends[0], there=ends[1], width=int(width), speed=_LANES.get(lane, ""), state=_STATES.get(state, state),
             evidence=evidence)
    )  # fmt: skip


def _add_port(builder: Builder, switch: _Switch, line: str, source: str, ports: dict[str, str]) -> bool:
    """Add a port of a switch; return whether the row has what the columns say."""
    # The description is last, and may hold the separator.
    values = [v.strip() for v in line.split(" : ", len(switch.columns) - 1)]
    row = {key: v for c, v in zip(switch.columns, values, strict=False) if (key := _COLUMNS.get(c))}
    if not re.fullmatch(r"[0-9]{1,4}", row.get("number", "")):
        return False
    here = End(switch.id, row["number"])
    state = _STATES.get(row.get("state", ""), row.get("state", ""))
    guid = re.fullmatch(r"0x([0-9a-fA-F]{1,16})", row.get("guid", ""))
    evidence = Evidence(source, line[:200])
    if guid is None or not re.fullmatch(r"[0-9]{1,4}", row.get("port", "")):
        builder.add_down(DownPort(end=here, state=f"{state}/{row.get('physical', '')}", evidence=evidence))
        return True
    ports.setdefault(guid[1].lower().zfill(16), row.get("name", "").strip('"'))
    width, code = re.match(r"([0-9]{1,2})x", row.get("width", "")), row.get("mtu", "")
    builder.add_side(
        Side(here=here, there=End(guid[1].lower().zfill(16), row["port"]), width=int(width[1]) if width else None,
             speed=_LANES.get(row.get("lane", ""), ""), mtu=MTUS.get(small_number(code) or 0),
             state=state, evidence=evidence)
    )  # fmt: skip
    return True
