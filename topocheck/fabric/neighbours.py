"""What a machine's ports hear by LLDP (IEEE 802.1AB), as a fabric: the machine is a node or a switch, by its ports.

No output names the machine that it is of. Its name is taken from the file's: `gpu01.json`, `leaf-1.lldp.txt`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

import msgspec

from topocheck.fabric.build import Builder, Side
from topocheck.model.base import Evidence
from topocheck.model.fabric import DeviceKind, End, Fabric, FabricDevice, Protocol

_MAC = re.compile(r"(?:[0-9a-f]{2}[:.-]?){6}|(?:[0-9a-f]{4}\.){2}[0-9a-f]{4}", re.IGNORECASE)
_SWITCH_PORT = re.compile(
    r"swp[0-9].*|(?:Ethernet|Eth|Et|ethernet|etp|hundredGigE|fortyGigE)[0-9].*|[a-z]{2}-[0-9]+/[0-9]+/[0-9]+.*"
    r"|(?:X|Ten|TwentyFive|Forty|Fifty|Hundred|FourHundred)?Gig.*|XGE[0-9].*|(?:Gi|Te|Fo|Hu)[0-9]+/[0-9].*|[0-9]+/[0-9]+.*"
)
"""Names of ports: Cumulus and NVUE; Arista, Cisco and SONiC; Dell; Juniper; what long forms are cut to."""
_NODE_PORT = re.compile(
    r"(?:e(?:th|n|m)|ib|bond|rdma|roce|mlx|gpu|net|slot|hsn)[a-z0-9_]*[0-9]+[a-z0-9_]*|p[0-9]+p[0-9]+"
)
"""Names that the kernel, systemd (systemd.net-naming-scheme(7)) and biosdevname give interfaces."""
MAX_NEIGHBOURS = 4096


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """What one interface hears: the neighbour's chassis id and name, the port's id, MTU and rate where announced.

    Attributes:
        bridge: it announces that it forwards (bridge or router); None where it announces nothing of it.
        group: one of the two ports is in a link aggregation of its switch.
    """

    interface: str
    chassis: str
    system: str
    port: str
    mtu: int | None = None
    rate_gbit_s: float | None = None
    bridge: bool | None = None
    group: bool = False
    evidence: Evidence


def heard(found: Sequence[Neighbour], name: str, unread: Sequence[tuple[int, str]] = ()) -> Fabric:
    """Return what a machine hears as a fabric.

    Args:
        found: its neighbours.
        name: of the file; the machine's name is taken from it.
        unread: lines that could not be read, with their numbers.
    """
    builder = Builder(Protocol.ETHERNET, name, whole=False)
    here = machine_of(name)
    found = [msgspec.structs.replace(n, port=port_name(n.port), interface=port_name(n.interface)) for n in found]
    for number, line in unread:
        builder.problem(number, line)
    switch = any(_SWITCH_PORT.fullmatch(n.interface) for n in found)
    for n in found[:MAX_NEIGHBOURS]:
        source = n.evidence.source
        # A switch's management port hears the network of its own management.
        if switch and not _SWITCH_PORT.fullmatch(n.interface):
            continue
        if switch:
            builder.add_device(FabricDevice(id=here, kind=DeviceKind.SWITCH, name=here, source=source))
            own = End(here, n.interface)
        else:
            own = _node_port(builder, here, n.interface, source)
        if _is_switch(n, heard_by_switch=switch):
            chassis = n.chassis or n.system
            builder.add_device(FabricDevice(id=chassis, kind=DeviceKind.SWITCH, name=n.system, source=source))
            there = End(chassis, n.port)
        else:
            there = _node_port(builder, n.system or n.chassis, n.port, source)
        builder.add_side(
            Side(here=own, there=there, mtu=n.mtu, rate_gbit_s=n.rate_gbit_s, group=n.group, evidence=n.evidence)
        )
    fabric = builder.fabric()
    return fabric if fabric.links or unread else msgspec.structs.replace(fabric, silent=(here,))


def _node_port(builder: Builder, node: str, interface: str, source: str) -> End:
    own = f"{node}/{interface}"
    builder.add_device(
        FabricDevice(id=own, kind=DeviceKind.ADAPTER, name=f"{node} {interface}", node=node, adapter=interface,
                     source=source)
    )  # fmt: skip
    return End(own, "1")


def _is_switch(n: Neighbour, *, heard_by_switch: bool) -> bool:
    """Tell whether a neighbour is a switch: by the name of its port, by what it announces, or by who hears it."""
    if _NODE_PORT.fullmatch(n.port):
        return False
    if _SWITCH_PORT.fullmatch(n.port):
        return True
    if n.bridge is not None:
        # A node with a virtual bridge announces one too, but names its port as above, or by its MAC.
        return n.bridge and not _MAC.fullmatch(n.port)
    return not heard_by_switch


def port_name(port: str) -> str:
    """Return the whole name of a switch's port: EOS and NX-OS show `Et1/1` or `Eth1/1`, and announce `Ethernet1/1`."""
    return re.sub(r"^Eth?(?=[0-9])", "Ethernet", port)


def announced(port_id: str, description: str) -> str:
    """Return which of a port's id and description is its name.

    A port's MAC, or SONiC's alias of it (`etp1`), says less than its name, which then is the description.
    """
    alias = re.fullmatch(r"etp[0-9]+[a-z]?|Eth[0-9]+(?:/[0-9]+)*", port_id)
    native = re.fullmatch(r"Ethernet[0-9]+", description)
    return description if description and (is_mac(port_id) or (alias and native)) else port_id or description


def machine_of(name: str) -> str:
    """Return the machine that a file is named after."""
    stem = PurePath(name).name
    for ending in (".gz", ".json", ".txt", ".out", ".log", ".lldp", ".lldpctl", ".networkctl"):
        stem = stem.removesuffix(ending)
    return stem


def is_switch_port(text: str) -> bool:
    """Tell whether a text is the name of a switch's port."""
    return bool(_SWITCH_PORT.fullmatch(text))


def is_mac(text: str) -> bool:
    """Tell whether a text is a MAC address in one of the forms that programs print."""
    return bool(_MAC.fullmatch(text))


def mac(text: str) -> str:
    """Return a MAC address as colons and lower case; other text as it is."""
    if not is_mac(text):
        return text
    digits = re.sub(r"[:.-]", "", text).lower()
    return ":".join(digits[i : i + 2] for i in range(0, 12, 2))
