"""What a node's ports hear from switches by LLDP (IEEE 802.1AB): `lldpctl -f json`, `networkctl lldp`.

Neither output names the node that it is of. Its name is taken from the file's: `gpu01.json`, `gpu01.lldp.txt`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec

from topocheck.fabric.build import Builder, Side
from topocheck.model.base import Evidence, InputError
from topocheck.model.fabric import DeviceKind, End, Fabric, FabricDevice, Protocol

_ETHERNET_SPEED = re.compile(r"([0-9]{1,4})(M|G|T)?b?ase", re.IGNORECASE)
_COLUMNS = re.compile(
    r"LINK\s+CHASSIS[- ]ID\s+(?:SYSTEM[- ]NAME\s+CAPS|CAPS\s+SYSTEM[- ]NAME)\s+PORT[- ]ID\s+PORT[- ]DESCRIPTION\s*"
)
_TITLES = re.compile(r"LINK|CHASSIS[- ]ID|SYSTEM[- ]NAME|CAPS|PORT[- ]ID|PORT[- ]DESCRIPTION")
_MAC = re.compile(r"(?:[0-9a-f]{2}[:-]?){6}", re.IGNORECASE)
MAX_NEIGHBOURS = 4096


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """What one interface hears: the switch's chassis id and name, the port's id, MTU and rate where announced."""

    interface: str
    chassis: str
    system: str
    port: str
    mtu: int | None = None
    rate_gbit_s: float | None = None
    evidence: Evidence


def recognise_json(text: str) -> bool:
    """Tell whether a text is of `lldpctl -f json` (or json0), or of `networkctl --json`."""
    start = text.lstrip()[:4096]
    return start.startswith("{") and ('"lldp"' in start or '"Neighbors"' in start)


def recognise_text(text: str) -> bool:
    """Tell whether a text is of `networkctl lldp`."""
    return any(_COLUMNS.fullmatch(line) for line in text.splitlines()[:20])


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
    return _fabric(list(found)[:MAX_NEIGHBOURS], name)


def parse_text(text: str, name: str) -> Fabric:
    """Return what a node's ports are plugged into, by the table of `networkctl lldp`.

    Args:
        text: the output.
        name: of the file; the node's name is taken from it.
    """
    starts: dict[str, int] = {}
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if _COLUMNS.fullmatch(line):
            starts = {m[0].replace(" ", "-"): m.start() for m in _TITLES.finditer(line)}
            continue
        if not starts or not line.strip() or line.startswith("Capability") or "listed" in line:
            starts = {} if not line.strip() else starts
            continue
        places = sorted(starts.values())
        cells = {title: line[at : next((p for p in places if p > at), None)].strip() for title, at in starts.items()}
        if cells["CHASSIS-ID"] in ("", "-", "n/a"):
            continue
        found.append(
            Neighbour(
                interface=cells["LINK"],
                chassis=_mac(cells["CHASSIS-ID"]),
                system=_known(cells["SYSTEM-NAME"]),
                port=_known(cells["PORT-ID"]) or _known(cells["PORT-DESCRIPTION"]),
                evidence=Evidence(f"{name}:{number}", line.strip()[:200]),
            )
        )
    return _fabric(found[:MAX_NEIGHBOURS], name)


def node_of(name: str) -> str:
    """Return the node that a file is named after."""
    stem = PurePath(name).name
    for ending in (".gz", ".json", ".txt", ".out", ".log", ".lldp", ".lldpctl", ".networkctl"):
        stem = stem.removesuffix(ending)
    return stem


def _fabric(found: list[Neighbour], name: str) -> Fabric:
    builder = Builder(Protocol.ETHERNET, name, whole=False)
    node = node_of(name)
    for n in found:
        own = f"{node}/{n.interface}"
        source = n.evidence.source
        builder.add_device(
            FabricDevice(id=own, kind=DeviceKind.ADAPTER, name=f"{node} {n.interface}", node=node,
                         adapter=n.interface, source=source)
        )  # fmt: skip
        builder.add_device(FabricDevice(id=n.chassis, kind=DeviceKind.SWITCH, name=n.system, source=source))
        builder.add_side(
            Side(here=End(own, "1"), there=End(n.chassis, n.port), mtu=n.mtu, rate_gbit_s=n.rate_gbit_s,
                 evidence=n.evidence)
        )  # fmt: skip
    return builder.fabric()


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
                chassis=_mac(value) if kind == "mac" else value,
                system=_value(chassis.get("name")) or system,
                # A port's MAC says less than its name, which many switches put into the description.
                port=descr if descr and _MAC.fullmatch(port_id) else port_id or descr,
                mtu=_number(_value(port.get("mfs"))),
                rate_gbit_s=_rate(_value(auto.get("current"))),
                evidence=Evidence(name, f"{interface}: chassis {value}, port {port_id} {descr}"[:200]),
            )


def _networkctl(tree: Any, name: str) -> Iterator[Neighbour]:
    for link in _listed(tree.get("Neighbors") if isinstance(tree, dict) else None):
        interface = link.get("InterfaceName")
        for n in _listed(link.get("Neighbors")):
            chassis, port = n.get("ChassisID"), n.get("PortID")
            if isinstance(interface, str) and isinstance(chassis, str) and isinstance(port, str):
                system = n.get("SystemName")
                yield Neighbour(
                    interface=interface,
                    chassis=_mac(chassis),
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


def _mac(text: str) -> str:
    """Return a MAC address as colons and lower case; other text as it is."""
    if not _MAC.fullmatch(text):
        return text
    digits = re.sub(r"[:-]", "", text).lower()
    return ":".join(digits[i : i + 2] for i in range(0, 12, 2))


def _known(text: str) -> str:
    return "" if text in ("-", "n/a") else text


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else None


def _rate(text: str) -> float | None:
    """Return the rate in Gb/s of a type of medium (`100GbaseR4`, `10GbaseT - ...`)."""
    m = _ETHERNET_SPEED.match(text)
    if m is None:
        return None
    return int(m[1]) * {"M": 1e-3, "G": 1.0, "T": 1e3}[(m[2] or "M").upper()]
