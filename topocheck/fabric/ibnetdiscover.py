"""Text of `ibnetdiscover` (infiniband-diags: "Topology file format").

A block describes one device: `key=0x...` lines, then `Switch|Ca|Rt PORTS "S-GUID"  # "DESCRIPTION" ...`, then a line
for each port that is connected:

    [17]  "H-GUID"[1](PORTGUID)   # "node01 mlx5_0" lid 12 4xNDR          of a switch
    [1](PORTGUID)  "S-GUID"[17]   # lid 12 lmc 0 "leaf-1" lid 5 4xNDR     of an adapter
"""

from __future__ import annotations

import re

import msgspec

from topocheck.fabric.build import Builder, Side, lines
from topocheck.model.base import Evidence
from topocheck.model.fabric import DeviceKind, End, Fabric, FabricDevice, Protocol

_DEVICE = re.compile(r'\s*(Switch|Ca|Rt)\s+([0-9]{1,4})\s+"([SHR])-([0-9a-fA-F]{16})"\s*(?:#\s*"(.*?)"(.*))?\s*')
_PORT = re.compile(
    r'\s*\[([0-9]{1,4})\](?:\(([0-9a-fA-F]{1,16})\))?(?:\[ext [0-9]{1,4}\])?\s+"([SHR])-([0-9a-fA-F]{16})"'
    r"\[([0-9]{1,4})\](?:\(([0-9a-fA-F]{1,16})\))?(?:\[ext [0-9]{1,4}\])?\s*(?:#(.*))?"
)
_RATE = re.compile(r"\b([0-9]{1,2})x([A-Z]{3}[0-9]{0,2})(?: s=[0-9]+ w=[0-9]+ v=[0-9]+)?(?: slot [0-9]+| \(scp\))?\s*$")
"""The rate, and what `ibnetdiscover -f` and gateways append to it."""
_LID = re.compile(r"\blid\s+([0-9]{1,5})\b")
_KINDS = {"Switch": DeviceKind.SWITCH, "Ca": DeviceKind.ADAPTER, "Rt": DeviceKind.ROUTER}
_BEGINS = re.compile(r"^\s*(?:switchguid|caguid|rtguid)=0x[0-9a-fA-F]+", re.MULTILINE)


def recognise(text: str) -> bool:
    """Tell whether a text is of `ibnetdiscover`."""
    return bool(_BEGINS.search(text)) and any(_DEVICE.fullmatch(line) for _, line in lines(text))


def parse(text: str, name: str) -> Fabric:
    """Return the fabric in the output of `ibnetdiscover`; lines of another form are problems, never errors.

    Args:
        text: the output.
        name: of the file, for evidence.
    """
    builder = Builder(Protocol.INFINIBAND, name)
    here: FabricDevice | None = None
    for number, line in lines(text):
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or "=0x" in stripped.partition("#")[0]:
            continue
        if m := _DEVICE.fullmatch(line):
            here = _device(m, f"{name}:{number}")
            builder.add_device(here)
        elif (m := _PORT.fullmatch(line)) and here is not None:
            builder.add_side(_side(here, m, f"{name}:{number}", stripped))
        elif m or stripped.startswith(("[", "Switch", "Ca", "Rt")):
            builder.problem(number, stripped)
    return builder.fabric()


def _device(m: re.Match[str], source: str) -> FabricDevice:
    kind, ports, _, guid, description, rest = m.groups()
    lid = _LID.search(rest or "")
    device = FabricDevice(
        id=guid.lower(),
        kind=_KINDS[kind],
        name=(description or "").strip(),
        ports=int(ports),
        lid=int(lid[1]) if lid else None,
        source=source,
    )
    return named(device)


def named(device: FabricDevice) -> FabricDevice:
    """Return a device with the node and the adapter that its description names (`node01 mlx5_0`, `node01 HCA-1`).

    The kernel sets an adapter's NodeDescription to `HOSTNAME DEVICE` (rdma-ndd); what has no host name stays without.
    """
    if device.kind is not DeviceKind.ADAPTER:
        return device
    if device.name.endswith("Aggregation Node"):
        return msgspec.structs.replace(device, kind=DeviceKind.AGGREGATION)
    node, _, adapter = device.name.partition(" ")
    return msgspec.structs.replace(device, node=node, adapter=adapter) if adapter and " " not in adapter else device


def _side(here: FabricDevice, m: re.Match[str], source: str, line: str) -> Side:
    port, _, _, guid, other_port, _, comment = m.groups()
    rate = _RATE.search((comment or "").strip())
    return Side(
        here=End(here.id, port),
        there=End(guid.lower(), other_port),
        width=int(rate[1]) if rate else None,
        speed=rate[2] if rate else "",
        evidence=Evidence(source, line[:200]),
    )
