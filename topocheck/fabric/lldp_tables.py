"""Tables of LLDP neighbours as `networkctl lldp` and switches print them: a title of each column, values below it.

Port          Neighbor Device ID       Neighbor Port ID    TTL        Arista EOS, show lldp neighbors
LocalPort    RemoteDevice    RemotePortID    Capability    ...        SONiC, show lldp table
Device ID            Local Intf      Hold-time  Capability  Port ID   Cisco NX-OS, show lldp neighbors
LocalPort  Speed  Mode  RemoteHost  RemotePort                        Cumulus Linux, net show lldp
Interface  Speed  Type  Remote Host  Remote Port                      NVUE, nv show interface lldp
Loc PortID   Rem Host Name  Rem Port Id  Rem Chassis Id               Dell OS10, show lldp neighbors
Local Interface  Parent Interface  Chassis Id  Port info  System Name Juniper, show lldp neighbors
"""

from __future__ import annotations

import re

from topocheck.fabric import lldp_detail
from topocheck.fabric.build import lines
from topocheck.fabric.neighbours import Neighbour, announced, heard, is_switch_port, mac
from topocheck.model.base import Evidence
from topocheck.model.fabric import Fabric

_MEANING = {
    "interface": ("link", "port", "localport", "local port", "local intf", "local interface", "interface",
                  "loc portid", "intf"),
    "system": ("system name", "system-name", "neighbor device id", "remotedevice", "device id", "remotehost",
               "remote host", "rem host name", "remote device", "neighbor device"),
    "port": ("port id", "port-id", "neighbor port id", "remoteportid", "remoteport", "remote port", "rem port id",
             "port info", "neighbor port"),
    "chassis": ("chassis id", "chassis-id", "rem chassis id"),
    "description": ("port description", "port-description", "remoteportdescr"),
    "capability": ("capability", "caps", "capabilities"),
    "speed": ("speed",),
    "mtu": ("mtu",),
    "group": ("parent interface", "mode"),
}  # fmt: skip
_OF = {title: meaning for meaning, titles in _MEANING.items() for title in titles}
_IGNORED = ("ttl", "hold-time", "holdtime", "type", "state", "summary", "vlan",
            "admin status", "oper status")  # fmt: skip
_TITLES = "|".join(sorted((re.escape(t) for t in (*_OF, *_IGNORED)), key=len, reverse=True))
_TITLE = re.compile(rf"(?<!\S)(?:{_TITLES})(?!\S)", re.IGNORECASE)
_ENDS = re.compile(r"Total (?:number of )?entries.*|[0-9]+ neighbor\(s\) listed\.?|Capability .*:?", re.IGNORECASE)
_SPEED = re.compile(r"([0-9]{1,4})([MGT])", re.IGNORECASE)
MAX_HEADER = 300


def _columns(line: str) -> list[tuple[str, int]]:
    """Return the columns of a table's header, (meaning, where it begins); none where the line is no such header."""
    if len(line) > MAX_HEADER or "port" not in line.lower():
        return []
    found = [(_OF.get(m[0].lower(), ""), m.start()) for m in _TITLE.finditer(line)]
    meanings = [meaning for meaning, _ in found if meaning]
    rest = _TITLE.sub("", line).strip()
    wanted = {"interface", "port"} <= set(meanings) and {"system", "chassis"} & set(meanings)
    return found if wanted and not rest and len(meanings) == len(set(meanings)) else []


def recognise(text: str) -> bool:
    """Tell whether a text has a table of LLDP neighbours."""
    return any(_columns(line) for _, line in lines(text)) and not lldp_detail.recognise(text)


def parse(text: str, name: str) -> Fabric:
    """Return what a machine's ports hear, by a table of neighbours.

    Args:
        text: the output.
        name: of the file; the machine's name is taken from it.
    """
    columns: list[tuple[str, int]] = []
    found: list[Neighbour] = []
    unread: list[tuple[int, str]] = []
    carried = ""
    for number, line in lines(text):
        if header := _columns(line):
            columns, carried = header, ""
            continue
        stripped = line.strip()
        if not stripped or _ENDS.fullmatch(stripped):
            columns = columns if stripped.startswith("Capability") and not found else [] if found else columns
            continue
        if not columns or not stripped.strip("-= "):
            continue
        cells = _cells(line, columns)
        if cells is None:
            unread.append((number, stripped))
            continue
        if not cells.get("interface"):
            # NX-OS puts a long name on a line of its own, and the rest below it; NVUE more of its summary.
            carried = cells.get("system", "") if stripped == cells.get("system") else ""
            continue
        if carried and not cells.get("system"):
            cells["system"] = carried
        carried = ""
        n = _neighbour(cells, Evidence(f"{name}:{number}", stripped[:200]))
        if n is not None:
            found.append(n)
    return heard(found, name, unread)


def _cells(line: str, columns: list[tuple[str, int]]) -> dict[str, str] | None:
    """Return a row by meaning; None where it is of another form.

    Values stand below their titles. Where one is longer than its column, the row has as many words as columns, or (IOS
    cuts a name at its column's end) a port begins right after it; a word alone is a name whose row is the next line.
    """
    starts = [at for _, at in columns]
    values = [line[at : ([*starts, len(line)])[i + 1]].strip() for i, at in enumerate(starts)]
    cut = [i for i, at in enumerate(starts) if 0 < at < len(line) and line[at - 1] != " "]
    if cut and not (len(cut) == 1 and columns[cut[0]][0] == "interface" and is_switch_port(values[cut[0]])):
        values = line.split()
        if len(values) == 1:
            return {"system": values[0]}
        if len(values) != len(columns):
            values = re.split(r"\s{2,}", line.strip())
        if len(values) != len(columns):
            return None
    return {meaning: value for (meaning, _), value in zip(columns, values, strict=True) if meaning}


def _neighbour(cells: dict[str, str], evidence: Evidence) -> Neighbour | None:
    known = {k: "" if v in ("-", "n/a", "N/A") else v for k, v in cells.items()}
    chassis, system, port = known.get("chassis", ""), known.get("system", ""), known.get("port", "")
    description = known.get("description", "")
    if not (chassis or system) or not (port or description):
        return None
    speed = _SPEED.fullmatch(known.get("speed", ""))
    capability = known.get("capability")
    return Neighbour(
        interface=known["interface"].removeprefix("+ "),
        chassis=mac(chassis),
        system=system,
        port=announced(port, description),
        mtu=int(mtu) if re.fullmatch(r"[0-9]{1,6}", mtu := known.get("mtu", "")) else None,
        rate_gbit_s=int(speed[1]) * {"M": 1e-3, "G": 1.0, "T": 1e3}[speed[2].upper()] if speed else None,
        group=bool(re.fullmatch(r"BondMember|ae[0-9]+", known.get("group", ""))),
        bridge=None if not capability else bool(re.search(r"[BbRr]", capability)),
        evidence=evidence,
    )
