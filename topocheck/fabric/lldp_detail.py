"""`show lldp neighbors detail` of switches: lines `Name: value`, a neighbour after the other.

Chassis id: 5087.89a1.d8d6                  Local Intf: Gi0/0/0/0
Port id: Eth1/1                             Chassis id: 0014.1c57.a48b
Local Port id: Eth1/18                      Port id: Gi1/0/9
System Name: leaf-1                         System Name: leaf-1
(Cisco NX-OS)                               (IOS, IOS XR)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from topocheck.fabric.build import lines
from topocheck.fabric.neighbours import Neighbour, announced, heard, mac
from topocheck.model.base import Evidence
from topocheck.model.fabric import Fabric

_LOCAL = ("local port id", "local intf", "local interface", "parent interface")
_FIELD = re.compile(r"\s*([A-Za-z][A-Za-z ]{2,24}):\s*(.*?)\s*")
_NONE = ("", "- not advertised", "not advertised", "null", "n/a")


def recognise(text: str) -> bool:
    """Tell whether a text has neighbours in this form: a chassis, and a local port near it."""
    near = 0
    for _, line in lines(text):
        m = _FIELD.fullmatch(line)
        key = m[1].lower() if m else ""
        if key == "chassis id" or key in _LOCAL:
            near |= 1 if key == "chassis id" else 2
            if near == 3:
                return True
    return False


def parse(text: str, name: str) -> Fabric:
    """Return what a switch's ports hear, by the details of its neighbours.

    Args:
        text: the output.
        name: of the file; the switch's name is taken from it.
    """
    return heard([n for n in (_neighbour(at, row, name) for at, row in _records(text)) if n is not None], name)


def _records(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, fields); a record ends where its first field comes again."""
    begins, row, at = "", dict[str, str](), 0
    for number, line in lines(text):
        m = _FIELD.fullmatch(line)
        if m is None:
            continue
        key = m[1].lower()
        if not begins and (key == "chassis id" or key in _LOCAL):
            begins = key
        if key == begins:
            if row:
                yield at, row
            row, at = {}, number
        if begins:
            row.setdefault(key, "" if m[2].lower() in _NONE else m[2])
    if row:
        yield at, row


def _neighbour(at: int, row: dict[str, str], name: str) -> Neighbour | None:
    local = next((row[k] for k in _LOCAL if row.get(k)), "")
    chassis, system = row.get("chassis id", ""), row.get("system name", "")
    port = announced(row.get("port id", ""), row.get("port description", ""))
    if not local or not port or not (chassis or system):
        return None
    capability = row.get("enabled capabilities")
    return Neighbour(
        interface=local,
        chassis=mac(chassis),
        system=system,
        port=port,
        bridge=None if not capability else bool(re.search(r"\b[BR]\b", capability)),
        evidence=Evidence(f"{name}:{at}", f"{local}: chassis {chassis} {system}, port {port}"[:200]),
    )
