"""Ports one a line, as `ibnetdiscover -p` and `iblinkinfo` (infiniband-diags) print them.

    SW     1 19 0x0002c903000010fc 4x SDR - CA     7  1 0x0002c90300002f79 ( 'leaf-1' - 'node01 mlx5_0' )

is of `ibnetdiscover -p`: kind, LID, port, GUID, width, speed of both ends. `iblinkinfo` writes a header for each device
and its ports below (LID, port, link, LID and port at the other end, and what both ends could do better):

    Switch: 0x0002c9020046c588 leaf-1:
               2    1[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>       3    1[  ] "node01 mlx5_0" ( Could be 8X )
               2    5[  ] ==(                Down/ Polling)==>             [  ] "" ( )

With `-l` each line begins with GUID and description, and the GUID of the other end's port stands before its LID.
"""

from __future__ import annotations

import re
from collections import defaultdict

import msgspec

from topocheck.fabric.build import Builder, Side, lines
from topocheck.fabric.ibnetdiscover import named
from topocheck.model.base import Evidence
from topocheck.model.fabric import DeviceKind, DownPort, End, Fabric, FabricDevice, Protocol

_KINDS = {"CA": DeviceKind.ADAPTER, "SW": DeviceKind.SWITCH, "RT": DeviceKind.ROUTER}
_END = r"(CA|SW|RT)\s+([0-9]{1,6})\s+([0-9]{1,4})\s+0x([0-9a-fA-F]{16})"
_PORTS = re.compile(
    rf"{_END}\s+([0-9]{{1,2}}|\?+)x\s+(\S+)\s+(?:-\s+{_END}\s+\(\s*'(.*)'\s+-\s+'(.*)'\s*\)|'(.*)')\s*", re.DOTALL
)

_HEADER = re.compile(r"(Switch|CA|Router):?\s+(?:0x([0-9a-fA-F]{16})\s+)?(.*?):?\s*")
_LINE = re.compile(
    r'\s*(?:0x(?P<guid>[0-9a-fA-F]{16})\s+)?(?:"(?P<name>.*?)"\s+)?(?P<lid>[0-9]{1,6})\s+'
    r"(?P<port>[0-9]{1,4})\[[ 0-9]*\]\s+==\((?P<link>[^)]*(?:\(FDR10\)[^)]*)?)\)(?:\s*\(HOQ[^)]*\))?==>\s*"
    r"(?:(?:0x(?P<there>[0-9a-fA-F]{16})\s+)?(?P<far_lid>[0-9]{1,6})\s+(?P<far_port>[0-9]{1,4}))?(?:\[[ 0-9]*\])?\s*"
    r'"(?P<far>.*?)"\s*(?:\((?P<could>.*)\))?\s*'
)
_LINK = re.compile(
    r"\s*(?:([0-9]{1,2})X\s+([0-9.]+)\s*Gbps(\s*\(FDR10\))?\s+)?([A-Za-z?]+)\s*/\s*([A-Za-z0-9?]+)\s*", re.ASCII
)
_COULD = re.compile(r"Could be ([0-9]+X|FDR10|[0-9.]+ Gbps)")
LANE_RATES = (
    (2.5, "SDR"), (5.0, "DDR"), (10.0, "QDR"), (14.0625, "FDR"), (25.78125, "EDR"), (53.125, "HDR"), (106.25, "NDR"),
    (212.5, "XDR"),
)  # fmt: skip
"""Gb/s of a lane as libibmad prints it (mad_dump_linkspeed, mad_dump_linkspeedext), and the name of the speed."""
MAX_ADAPTER_PORT = 2
"""Where lines do not say what a device is: a switch shows all its ports, an adapter has one or two."""


def recognise_ports(text: str) -> bool:
    """Tell whether a text is of `ibnetdiscover -p`."""
    return any(_PORTS.fullmatch(line) for _, line in lines(text))


def parse_ports(text: str, name: str) -> Fabric:
    """Return the fabric in the output of `ibnetdiscover -p`; lines of another form are problems.

    Args:
        text: the output.
        name: of the file, for evidence.
    """
    builder = Builder(Protocol.INFINIBAND, name)
    for number, line in lines(text):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        m = _PORTS.fullmatch(stripped)
        if m is None:
            builder.problem(number, stripped)
            continue
        kind, lid, port, guid, width, speed, far_kind, far_lid, far_port, far_guid, here_name, far_name, alone = (
            m.groups()
        )
        evidence = Evidence(f"{name}:{number}", stripped[:200])
        builder.add_device(_device(guid, _KINDS[kind], here_name or alone or "", int(lid), evidence.source))
        here = End(guid.lower(), port)
        if far_guid is None:
            builder.add_down(DownPort(end=here, state="no link", evidence=evidence))
            continue
        builder.add_device(_device(far_guid, _KINDS[far_kind], far_name or "", int(far_lid), evidence.source))
        known = "?" not in width and "?" not in speed
        builder.add_side(
            Side(here=here, there=End(far_guid.lower(), far_port), width=int(width) if known else None,
                 speed=speed if known else "", evidence=evidence)
        )  # fmt: skip
    return builder.fabric()


def _device(guid: str, kind: DeviceKind, name: str, lid: int, source: str) -> FabricDevice:
    return named(FabricDevice(id=guid.lower(), kind=kind, name=name.strip(), lid=lid, source=source))


class _Port(msgspec.Struct, frozen=True, kw_only=True):
    """One line of iblinkinfo: a port, what it is linked to, and the line."""

    device: str
    port: str
    link: str
    there: str
    far_lid: int | None
    far_port: str
    far: str
    could: str
    evidence: Evidence


def recognise_links(text: str) -> bool:
    """Tell whether a text is of `iblinkinfo`."""
    return "==(" in text and any(_LINE.fullmatch(line) for _, line in lines(text) if "==(" in line)


def parse_links(text: str, name: str) -> Fabric:
    """Return the fabric in the output of `iblinkinfo`, with or without `-l`; lines of another form are problems.

    Args:
        text: the output.
        name: of the file, for evidence.
    """
    builder = Builder(Protocol.INFINIBAND, name)
    ports: list[_Port] = []
    kinds: dict[str, DeviceKind] = {}
    names: dict[str, str] = {}
    by_lid: dict[int, str] = {}
    sources: dict[str, str] = {}
    kind, device, title = DeviceKind.ADAPTER, "", ""
    for number, line in lines(text):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        evidence = Evidence(f"{name}:{number}", stripped[:200])
        m = _LINE.fullmatch(line) if "==(" in line else None
        if m is None:
            header = _HEADER.fullmatch(stripped) if "==(" not in line else None
            if header is None:
                builder.problem(number, stripped)
                continue
            kind = {"Switch": DeviceKind.SWITCH, "CA": DeviceKind.ADAPTER, "Router": DeviceKind.ROUTER}[header[1]]
            device, title = (header[2] or "").lower(), header[3]
            continue
        guid = (m["guid"] or "").lower()
        if m["name"] is not None:
            own = guid
            names.setdefault(own, m["name"].strip())
        else:
            # A channel adapter's lines have the GUID of each port; the first stands for the device.
            device = device or guid
            own = device
            kinds.setdefault(own, kind)
            names.setdefault(own, title)
        if not own:
            builder.problem(number, stripped)
            continue
        sources.setdefault(own, evidence.source)
        lid = int(m["lid"])
        if lid:
            by_lid.setdefault(lid, own)
        ports.append(
            _Port(device=own, port=m["port"], link=m["link"], there=(m["there"] or "").lower(),
                  far_lid=int(m["far_lid"]) if m["far_lid"] else None, far_port=m["far_port"] or "",
                  far=m["far"].strip(), could=m["could"] or "", evidence=evidence)
        )  # fmt: skip
    highest: dict[str, int] = defaultdict(int)
    for p in ports:
        highest[p.device] = max(highest[p.device], int(p.port))
        _add(builder, p, by_lid)
    for own, source in sources.items():
        found = kinds.get(own, DeviceKind.SWITCH if highest[own] > MAX_ADAPTER_PORT else DeviceKind.ADAPTER)
        count = highest[own] if found is DeviceKind.SWITCH else None
        builder.add_device(named(FabricDevice(id=own, kind=found, name=names[own], ports=count, source=source)))
    return builder.fabric()


def _add(builder: Builder, p: _Port, by_lid: dict[int, str]) -> None:
    here = End(p.device, p.port)
    m = _LINK.fullmatch(p.link)
    if m is None:
        builder.problem(int(p.evidence.source.rpartition(":")[2]), p.evidence.raw)
        return
    width, lane, fdr10, state, physical = m.groups()
    if state == "Down" or p.far_lid is None:
        builder.add_down(DownPort(end=here, state=f"{state}/{physical}", evidence=p.evidence))
        return
    there = p.there or by_lid.get(p.far_lid, f"lid {p.far_lid}")
    could = _COULD.findall(p.could)
    builder.add_side(
        Side(
            here=here,
            there=End(there, p.far_port),
            width=int(width) if width else None,
            speed="FDR10" if fdr10 else lane_speed(lane),
            state=state,
            could_be=", ".join(could),
            evidence=p.evidence,
        )
    )


def lane_speed(lane: str | None) -> str:
    """Return the name of the speed of a lane, Gb/s as printed; the empty text where there is none."""
    if lane is None or not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,8})?", lane):
        return ""
    return next((speed for rate, speed in LANE_RATES if abs(float(lane) - rate) < 0.05 * rate), "")
