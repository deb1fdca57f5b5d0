"""What UFM's REST API gives of a fabric: `GET /ufmRest/resources/links`, `.../ports`, `.../systems`.

Each is a JSON list (NVIDIA UFM Enterprise REST API Guide, "Links", "Ports" and "Systems REST API"); with `page_number`
the list is `content` or `results` of an object. A link names both ports (`GUID_NUMBER`), and gives their width; a port
also gives speed, MTU, states and the port at its other end. So `ports` alone is a whole fabric, and `links` one without
speeds. `systems` says which GUIDs are of switches. The GUID in a port's name is the switch's, or that of the adapter's
port.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from topocheck.fabric.build import Builder, Side
from topocheck.fabric.ibnetdiscover import named
from topocheck.model.base import Evidence, InputError
from topocheck.model.fabric import DeviceKind, DownPort, End, Fabric, FabricDevice, Protocol

_NAME = re.compile(r"(?:0x)?([0-9a-fA-F]{16})_([0-9]{1,4})")
_WIDTH = re.compile(r"(?:IB_)?([0-9]{1,2})x", re.IGNORECASE)
_HCA = re.compile(r"HCA-[0-9]+/[0-9]+")
MAX_ENTRIES = 1 << 20


def recognise(text: str) -> bool:
    """Tell whether a text is links, ports or systems of UFM's REST API."""
    start = text.lstrip()
    return start[:1] in ("[", "{") and any(
        key in text
        for key in ('"source_guid"', '"peer_node_guid"', '"peer_port_dname"', '"system_guid"', '"total_alarms"')
    )


def parse(text: str, name: str) -> Fabric:
    """Return the fabric in answers of UFM; entries of another form are problems.

    Args:
        text: JSON of one answer.
        name: of the file, for evidence.

    Raises:
        InputError: it is no JSON, or UFM answered with an error.
    """
    try:
        tree = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise InputError(f"{name}: no JSON: {e}") from None
    builder = Builder(Protocol.INFINIBAND, name)
    for number, entry in enumerate(_entries(tree, name), 1):
        source = f"{name}: entry {number}"
        if "source_guid" in entry:
            read = _link(builder, entry, source)
        elif "number" in entry and "name" in entry:
            read = _port(builder, entry, source)
        else:
            read = _system(builder, entry, source)
        if not read:
            builder.problem(number, str(entry))
    return builder.fabric()


def _entries(tree: Any, name: str) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        tree = next((tree[k] for k in ("content", "results", "data") if isinstance(tree.get(k), list)), None)
    if not isinstance(tree, list):
        raise InputError(f"{name}: no list of links, ports or systems; expected an answer of UFM's /resources/links")
    yield from (x for x in tree[:MAX_ENTRIES] if isinstance(x, dict))


def _link(builder: Builder, entry: dict[str, Any], source: str) -> bool:
    found = [_end(entry, side) for side in ("source", "destination")]
    here, there = found
    if here is None or there is None:
        return False
    width = _WIDTH.match(_text(entry, "width"))
    for side, end in (("source", here), ("destination", there)):
        builder.add_device(_described(end, entry, side, source))
    shown = f"{_text(entry, 'source_port_node_description')} {here.device}_{here.port}, "
    shown += f"{_text(entry, 'destination_port_node_description')} {there.device}_{there.port} {_text(entry, 'width')}"
    evidence = Evidence(source, shown.strip()[:200])
    builder.add_side(Side(here=here, there=there, width=int(width[1]) if width else None, evidence=evidence))
    return True


def _end(entry: dict[str, Any], side: str) -> End | None:
    """Return an end of a link: by the port's name, or for a switch (whose own GUID this is) by GUID and number."""
    by_name = _named_end(_text(entry, f"{side}_port_name"))
    if by_name is None:
        # `name` is not in order of source and destination in every version: the end with this port's number.
        guid, port = _text(entry, f"{side}_guid").lower(), _text(entry, f"{side}_port")
        parts = [e for p in _text(entry, "name").split(":") if (e := _named_end(p)) is not None and e.port == port]
        mine = [e for e in parts if e.device == guid] or (parts if len(parts) == 1 else [])
        by_name = mine[0] if mine else _named_end(f"{guid}_{port}")
    return by_name


def _named_end(text: str) -> End | None:
    m = _NAME.fullmatch(text.strip())
    return None if m is None else End(m[1].lower(), m[2])


def _described(end: End, entry: dict[str, Any], side: str, source: str) -> FabricDevice:
    label, description = _text(entry, f"{side}_port_dname"), _text(entry, f"{side}_port_node_description")
    return _device(end.device, label, description, source)


def _device(guid: str, label: str, description: str, source: str) -> FabricDevice:
    """Return a device by its port's label and description: a switch's ends with the label (`leaf-1:1/3/1`)."""
    switch = description.endswith(f":{label}") if label and description else not _HCA.fullmatch(label)
    name = description.removesuffix(f":{label}") if switch else description
    kind = DeviceKind.SWITCH if switch else DeviceKind.ADAPTER
    return named(FabricDevice(id=guid, kind=kind, name=name, source=source))


def _port(builder: Builder, entry: dict[str, Any], source: str) -> bool:
    here = _named_end(_text(entry, "name"))
    if here is None:
        return False
    kind = DeviceKind.SWITCH if _text(entry, "description").startswith("Switch") else DeviceKind.ADAPTER
    description, label = _text(entry, "node_description"), _text(entry, "dname")
    name = description.removesuffix(f":{label}") or _text(entry, "system_name")
    lid = entry.get("lid")
    builder.add_device(
        named(FabricDevice(id=here.device, kind=kind, name=name, lid=lid if isinstance(lid, int) else None,
                           source=source))
    )  # fmt: skip
    physical, logical = _text(entry, "physical_state"), _text(entry, "logical_state")
    there = _named_end(_text(entry, "peer"))
    width = _WIDTH.match(_text(entry, "active_width"))
    mtu = entry.get("mtu")
    shown = f"{name} {label}: {logical}, {physical}, {_text(entry, 'active_width')} {_text(entry, 'active_speed')}"
    evidence = Evidence(source, f"{shown}, peer {_text(entry, 'peer')}"[:200])
    if there is None:
        builder.add_down(DownPort(end=here, state=f"{logical}/{physical}", evidence=evidence))
        return True
    builder.add_side(
        Side(here=here, there=there, width=int(width[1]) if width else None, speed=_text(entry, "active_speed"),
             mtu=mtu if isinstance(mtu, int) and mtu > 0 else None, state=logical, evidence=evidence)
    )  # fmt: skip
    return True


def _system(builder: Builder, entry: dict[str, Any], source: str) -> bool:
    """Add a switch, which other answers may name by GUID alone. Hosts have no GUID that their ports would name."""
    guid, kind = _text(entry, "guid") or _text(entry, "system_guid"), _text(entry, "type").lower()
    if not re.fullmatch(r"[0-9a-fA-F]{16}", guid) or not kind:
        return False
    if kind == "switch":
        name = _text(entry, "system_name") or _text(entry, "name")
        builder.add_device(FabricDevice(id=guid.lower(), kind=DeviceKind.SWITCH, name=name, source=source))
    return True


def _text(entry: dict[str, Any], key: str) -> str:
    """Return a text; what UFM does not know is null or `N/A`."""
    value = entry.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value.strip() if isinstance(value, str) and value != "N/A" else ""
