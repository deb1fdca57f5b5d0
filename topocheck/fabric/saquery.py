"""Records of the subnet administrator as `saquery` (infiniband-diags) prints them, and the line of `sminfo`.

    NodeRecord dump:
            lid.....................0x1
            node_type...............Channel Adapter
            NodeDescription.........node01 mlx5_0

Read are NodeRecord (`saquery NR`), PortInfoRecord (`saquery PIR`), LinkRecord (`saquery LR`) and SMInfoRecord (`saquery
SMIR`), of one file or several: links name ports by LID, and nodes say which device has it. Fields are named as in
saquery.c and libibmad's fields.c of rdma-core.

    sminfo: sm lid 1 sm guid 0x2c9030001d281, activity count 2385 priority 14 state 3 SMINFO_MASTER
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from topocheck.fabric.build import Builder, Side, lines
from topocheck.fabric.ib_ports import lane_speed
from topocheck.fabric.ibdiagnet import MTUS, WIDTHS
from topocheck.fabric.ibnetdiscover import named
from topocheck.model.base import Evidence
from topocheck.model.fabric import DeviceKind, DownPort, End, Fabric, FabricDevice, Protocol, SubnetManager

_BEGIN = re.compile(r"\s*(Node|PortInfo|Link|SMInfo)Record dump:\s*")
_OTHER = re.compile(r"\s*[A-Za-z]+ ?[Rr]ecord dump:\s*")
_FIELD = re.compile(r"\s+(?:#?[0-9]+ +)?([A-Za-z][A-Za-z0-9_ ]*?)\.{2,}\s*(.*?)\s*")
_SMINFO = re.compile(
    r"\s*sminfo: sm lid ([0-9]{1,6}) sm guid 0x([0-9a-fA-F]{1,16}), activity count [0-9]+ "
    r"priority ([0-9]{1,2}) state ([0-9]{1,2})(?: SMINFO_([A-Z]+))?\s*"
)
_KINDS = {"1": DeviceKind.ADAPTER, "2": DeviceKind.SWITCH, "3": DeviceKind.ROUTER,
          "channel adapter": DeviceKind.ADAPTER, "switch": DeviceKind.SWITCH, "router": DeviceKind.ROUTER}  # fmt: skip
SM_STATES = {0: "NOTACTIVE", 1: "DISCOVERING", 2: "STANDBY", 3: "MASTER"}
"""SMInfo.SMState (InfiniBand Architecture Specification 1.7, 14.2.5.13)."""
_SPEEDS = ("linkspeedextactive2", "linkspeedextactive", "linkspeedactive")
_STATES = {1: "Down", 2: "Init", 3: "Armed", 4: "Active"}


class _PortFacts(msgspec.Struct, frozen=True):
    width: int | None
    speed: str
    mtu: int | None
    state: str
    evidence: Evidence


def recognise(text: str) -> bool:
    """Tell whether a text is of `saquery` or `sminfo`."""
    return any(_BEGIN.fullmatch(line) or _SMINFO.fullmatch(line) for _, line in lines(text))


def parse(text: str, name: str) -> Fabric:
    """Return the devices, links and subnet managers in records; what cannot be read is a problem.

    Args:
        text: output of saquery or sminfo, or of several runs of them.
        name: of the file, for evidence.
    """
    return parse_together([(text, name)])


def parse_together(files: Sequence[tuple[str, str]]) -> Fabric:
    """Return what records in several files, (text, name) each, say together."""
    builder = Builder(Protocol.INFINIBAND, ", ".join(name for _, name in files))
    by_lid: dict[int, str] = {}
    ports: dict[tuple[int, str], _PortFacts] = {}
    links: list[tuple[int, str, int, str, Evidence]] = []
    for source, kind, row in (r for text, name in files for r in _records(text, name, builder)):
        try:
            if kind == "Node":
                device = _device(row, source)
                builder.add_device(device)
                by_lid.setdefault(_number(row["lid"]), device.id)
            elif kind == "PortInfo":
                ports[_number(row["endportlid"]), str(_number(row["portnum"]))] = _port(row, source)
            elif kind == "SMInfo":
                builder.add_manager(_manager(row, source))
            else:
                lid, far = _number(row["fromlid"]), _number(row["tolid"])
                port, far_port = str(_number(row["fromport"])), str(_number(row["toport"]))
                evidence = Evidence(source, f"LID {lid} port {port} to LID {far} port {far_port}")
                links.append((lid, port, far, far_port, evidence))
        except (KeyError, ValueError):
            shown = ", ".join(f"{k} {v}" for k, v in row.items())
            builder.problem(int(source.rpartition(":")[2]), f"{kind}Record: {shown}")
    known = set()
    for lid, port, far, far_port, evidence in links:
        here = End(by_lid.get(lid, f"lid {lid}"), port)
        there = End(by_lid.get(far, f"lid {far}"), far_port)
        p = ports.get((lid, port)) or _PortFacts(None, "", None, "", evidence)
        known.add((lid, port))
        builder.add_side(
            Side(here=here, there=there, width=p.width, speed=p.speed, mtu=p.mtu, state=p.state, evidence=p.evidence)
        )
    for (lid, port), p in ports.items():
        # Port 0 is a switch's own management port.
        if p.state == "Down" and (lid, port) not in known and port != "0" and lid in by_lid:
            builder.add_down(DownPort(end=End(by_lid[lid], port), state="Down", evidence=p.evidence))
    return builder.fabric()


def _records(text: str, name: str, builder: Builder) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield (place, kind, fields) of the records that are read; names of fields are lower case without separators."""
    kind, begun, row = "", 0, dict[str, str]()
    for number, line in lines(text):
        if m := _SMINFO.fullmatch(line):
            lid, guid, priority, state, word = m.groups()
            short = {"lid": lid, "guid": guid, "priority": priority, "smstate": word or state}
            yield f"{name}:{number}", "SMInfo", short
            continue
        m = _BEGIN.fullmatch(line)
        if m or _OTHER.fullmatch(line):
            if kind:
                yield f"{name}:{begun}", kind, row
            kind, begun, row = m[1] if m else "", number, {}
        elif kind and (f := _FIELD.fullmatch(line)):
            row.setdefault(re.sub(r"[ _]", "", f[1]).lower(), f[2])
        elif kind and line.strip() and not line.startswith((" ", "\t")):
            builder.problem(number, line.strip())
    if kind:
        yield f"{name}:{begun}", kind, row


def _device(row: dict[str, str], source: str) -> FabricDevice:
    return named(
        FabricDevice(
            id=_guid(row["nodeguid"]),
            kind=_KINDS[row["nodetype"].lower().removeprefix("0x")],
            name=row.get("nodedescription", ""),
            ports=_number(row["numports"]),
            lid=_number(row["lid"]),
            source=source,
        )
    )


def _port(row: dict[str, str], source: str) -> _PortFacts:
    """Return a PortInfoRecord; fields are named as in saquery.c of rdma-core, or as older versions named them."""
    width = _first(row, "linkwidthactive")
    mtu = _first(row, "neighbormtu")
    state = _first(row, "linkstate", "portstate")
    lanes = re.match(r"([0-9]{1,2})X", width, re.IGNORECASE)
    shown = ", ".join(f"{k} {row[k]}" for k in row if k.endswith("active") or k in ("neighbormtu", "linkstate"))
    return _PortFacts(
        int(lanes[1]) if lanes else WIDTHS.get(_code(width)),
        # The extended speeds, the newest first: those that are in use say so, others "No Extended Speed".
        next((x for f in _SPEEDS if (x := lane_speed(row.get(f, "").partition(" ")[0]))), ""),
        _code(mtu) if _code(mtu) > max(MTUS) else MTUS.get(_code(mtu)),
        _STATES.get(_code(state), state if state in _STATES.values() else ""),
        Evidence(source, shown[:200]),
    )


def _manager(row: dict[str, str], source: str) -> SubnetManager:
    state = row.get("smstate", "")
    return SubnetManager(
        guid=_guid(row["guid"]),
        lid=_number(row["lid"]),
        state=state if state in SM_STATES.values() else SM_STATES[_number(state)],
        priority=_number(row["priority"]),
        evidence=Evidence(source, ", ".join(f"{k} {v}" for k, v in row.items())[:200]),
    )


def _first(row: dict[str, str], *names: str) -> str:
    return next((row[n] for n in names if n in row), "")


def _guid(text: str) -> str:
    m = re.fullmatch(r"(?:0x)?([0-9a-fA-F]{1,16})", text)
    if m is None:
        raise ValueError(text)
    return m[1].lower().zfill(16)


def _number(text: str) -> int:
    m = re.match(r"(0x[0-9a-fA-F]{1,8}|[0-9]{1,8})(?![0-9a-zA-Z])", text)
    if m is None:
        raise ValueError(text)
    return int(m[1], 0) if m[1].startswith("0x") else int(m[1])


def _code(text: str) -> int:
    try:
        return _number(text)
    except ValueError:
        return 0
