"""What a machine's ports hear from their neighbours by LLDP, in the forms of lldpd and of `networkctl --json`.

lldpd's (`lldpctl`, `lldpcli show neighbors`) are json, json0, keyvalue and plain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from topocheck.fabric.build import lines
from topocheck.fabric.neighbours import Neighbour, announced, heard, mac
from topocheck.model.base import Evidence, InputError
from topocheck.model.fabric import Fabric

_ETHERNET_SPEED = re.compile(r"([0-9]{1,4})(M|G|T)?b?ase", re.IGNORECASE)
_TITLE = "LLDP neighbors:"
_INTERFACE = re.compile(r"Interface:\s+(\S+), via: (\S+),.*")
_FIELD = re.compile(r"\s+([A-Za-z][A-Za-z -]*?):\s*(.*?)\s*")
_KEY = re.compile(r"lldp\.([^.=\s]+)\.([a-z0-9.-]+)=(.*)")


def recognise_json(text: str) -> bool:
    """Tell whether a text is of `lldpctl -f json` (or json0), or of `networkctl --json`."""
    start = text.lstrip()[:4096]
    return start.startswith("{") and ('"lldp"' in start or '"Neighbors"' in start)


def parse_json(text: str, name: str) -> Fabric:
    """Return what a node's ports are plugged into, by lldpctl's or networkctl's JSON.

    Args:
        text: the output.
        name: of the file; the node's name is taken from it.

    Raises:
        InputError: it is no JSON.
    """
    try:
        tree = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise InputError(f"{name}: no JSON: {e}") from None
    found = _lldpctl(tree, name) if isinstance(tree, dict) and "lldp" in tree else _networkctl(tree, name)
    return heard(list(found), name)


def recognise_text(text: str) -> bool:
    """Tell whether a text is what lldpctl prints without `-f`, or with `-f keyvalue`."""
    first = [line for _, line in zip(range(60), text.splitlines(), strict=False)]
    return any(x == _TITLE or _INTERFACE.fullmatch(x) or _KEY.fullmatch(x) for x in first)


def parse_text(text: str, name: str) -> Fabric:
    """Return what a machine's ports hear, by lldpctl's plain text or keyvalue.

    Args:
        text: the output.
        name: of the file; the machine's name is taken from it.
    """
    found: list[tuple[str, int, dict[str, str]]] = []
    at: dict[str, int] = {}
    for number, line in lines(text):
        if m := _INTERFACE.fullmatch(line):
            found.append((m[1], number, {"via": m[2]}))
        elif m := _KEY.fullmatch(line):
            # One after the other; an interface with two neighbours begins again with `via`.
            if m[2] == "via":
                at[m[1]] = len(found)
                found.append((m[1], number, {}))
            if m[1] in at:
                found[at[m[1]]][2].setdefault(m[2], m[3].strip())
        elif found and (m := _FIELD.fullmatch(line)):
            # `Capability: Bridge, off` and `Capability: Router, on` are two lines: one that is on decides.
            known = found[-1][2]
            known[m[1]] = m[2] if m[1] not in known or (m[1] == "Capability" and m[2] in _FORWARDS) else known[m[1]]
    neighbours = (_written(i, facts, Evidence(f"{name}:{number}", "")) for i, number, facts in found)
    return heard([n for n in neighbours if n is not None], name)


_FORWARDS = ("Bridge, on", "Router, on")
_PLAIN = {"ChassisID": "chassis", "PortID": "port"}
_ID_TYPES = ("mac", "ifname", "ifalias", "local", "ip", "ipv4")


def _written(interface: str, facts: dict[str, str], place: Evidence) -> Neighbour | None:
    """Return a neighbour by lldpctl's plain text or keyvalue, whose names of fields differ."""
    if facts.get("via", "LLDP") != "LLDP":
        return None
    ids: dict[str, str] = {}
    for field, key in _PLAIN.items():
        _, _, value = facts.get(field, "").partition(" ")
        ids[key] = value or next((facts[f"{key}.{t}"] for t in _ID_TYPES if f"{key}.{t}" in facts), "")
    if not ids["chassis"] or not (ids["port"] or facts.get("PortDescr")):
        return None
    descr = facts.get("PortDescr", facts.get("port.descr", ""))
    caps = [k for k in facts if k == "Capability"]
    on = [facts.get(f"chassis.{c}.enabled") == "on" for c in ("Bridge", "Router")]
    plain = facts.get("Capability", "") in _FORWARDS
    system = facts.get("SysName", facts.get("chassis.name", ""))
    return Neighbour(
        interface=interface,
        chassis=mac(ids["chassis"]),
        system=system,
        port=announced(ids["port"], descr),
        mtu=_number(facts.get("MFS", facts.get("port.mfs", ""))),
        rate_gbit_s=_rate(facts.get("MAU oper type", facts.get("port.auto-negotiation.current", ""))),
        bridge=True if any(on) or plain else False if caps else None,
        group=bool(_number(facts.get("port.aggregation", ""))),
        evidence=Evidence(place.source, f"{interface}: chassis {ids['chassis']} {system}, port {ids['port']}"[:200]),
    )


def _lldpctl(tree: dict[str, Any], name: str) -> Iterator[Neighbour]:
    for top in _listed(tree["lldp"]):
        for interface, facts in _named(top.get("interface")):
            if facts.get("via") not in (None, "LLDP") or "chassis" not in facts or "port" not in facts:
                continue
            system, chassis = next(iter(_named(facts["chassis"], "id")), ("", {}))
            port = next(iter(_listed(facts["port"])), {})
            kind, value = _id(chassis)
            _, port_id = _id(port)
            if not value:
                continue
            descr = _value(port.get("descr"))
            auto = next(iter(_listed(port.get("auto-negotiation"))), {})
            yield Neighbour(
                interface=interface,
                chassis=mac(value) if kind == "mac" else value,
                system=_value(chassis.get("name")) or system,
                port=announced(port_id, descr),
                mtu=_number(_value(port.get("mfs"))),
                rate_gbit_s=_rate(_value(auto.get("current"))),
                bridge=_forwards(chassis.get("capability")),
                group=bool(_number(_value(port.get("aggregation")))),
                evidence=Evidence(name, f"{interface}: chassis {value}, port {port_id} {descr}"[:200]),
            )


def _forwards(capabilities: Any) -> bool | None:
    """Tell whether a neighbour announces that it is a bridge or router; None where it announces no capability."""
    listed = _listed(capabilities)
    return any(c.get("type") in ("Bridge", "Router") and c.get("enabled") is True for c in listed) if listed else None


def _networkctl(tree: Any, name: str) -> Iterator[Neighbour]:
    for link in _listed(tree.get("Neighbors") if isinstance(tree, dict) else None):
        interface = link.get("InterfaceName")
        for n in _listed(link.get("Neighbors")):
            chassis, port = n.get("ChassisID"), n.get("PortID")
            if isinstance(interface, str) and isinstance(chassis, str) and isinstance(port, str):
                system = n.get("SystemName")
                yield Neighbour(
                    interface=interface,
                    chassis=mac(chassis),
                    system=system if isinstance(system, str) else "",
                    port=port,
                    evidence=Evidence(name, f"{interface}: chassis {chassis}, port {port}"[:200]),
                )


def _listed(value: Any) -> list[dict[str, Any]]:
    """Return what json shows as one object and json0 as a list of them."""
    return [x for x in (value if isinstance(value, list) else [value]) if isinstance(x, dict)]


def _named(value: Any, plain: str = "via") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield objects with their names: `{name: {...}}` (json), `[{"name": ..., ...}]` (json0), or one without a name.

    Args:
        value: what the output has there.
        plain: a key that only the object itself has.
    """
    for item in _listed(value):
        if plain in item:
            shown = item.get("name")
            yield (shown if isinstance(shown, str) else _value(shown)), item
        else:
            yield from ((k, v) for k, v in item.items() if isinstance(v, dict))


def _id(device: dict[str, Any]) -> tuple[str, str]:
    found = next(iter(_listed(device.get("id"))), {})
    kind = found.get("type")
    return (kind if isinstance(kind, str) else ""), _value(found.get("value"))


def _value(value: Any) -> str:
    """Return a text: `"x"` in json, `[{"value": "x"}]` in json0."""
    if isinstance(value, str):
        return value.strip()
    found = next(iter(_listed(value)), {}).get("value")
    return found.strip() if isinstance(found, str) else ""


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else None


def _rate(text: str) -> float | None:
    """Return the rate in Gb/s of a type of medium (`100GbaseR4`, `10GbaseT - ...`)."""
    m = _ETHERNET_SPEED.match(text)
    if m is None:
        return None
    return int(m[1]) * {"M": 1e-3, "G": 1.0, "T": 1e3}[(m[2] or "M").upper()]
