"""The PCI tree: where each function hangs, and what part each plays.

The place of a function is the resolved path of its sysfs link, which the probe gives as `chain`. A recording that
has lost the links is rebuilt from the bus numbers of the bridges (PCI-to-PCI Bridge Architecture Specification
1.2, 3.2.5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topocheck.model.address import address_key
from topocheck.model.pci import PciDevice, PortType
from topocheck.topology.links import endpoint_link
from topocheck.topology.types import Role, TreeNode

Chain = tuple[str, ...]
"""From the host bridge (`pci0000:3a`) down to the function itself; empty where the place is not known."""

_ROLES: dict[PortType, Role] = {
    PortType.ROOT_PORT: "root_port",
    PortType.UPSTREAM: "upstream_port",
    PortType.DOWNSTREAM: "downstream_port",
    PortType.PCIE_TO_PCI: "bridge",
    PortType.PCI_TO_PCIE: "bridge",
}


def is_host_bridge(element: str) -> bool:
    """Tell whether an element of a chain is a host bridge rather than a function."""
    return element.startswith("pci")


def bus_of(address: str) -> tuple[int, int]:
    """Return (domain, bus) of a normalised address."""
    domain, bus, _, _ = address_key(address)
    return domain, bus


def chains(devices: Iterable[PciDevice]) -> dict[str, Chain]:
    """Return each function's chain, from sysfs or, where that is lost, from the bus numbers."""
    listed = tuple(devices)
    lost = [d for d in listed if not d.chain]
    out = {d.address: d.chain for d in listed if d.chain}
    if not lost:
        return out
    above = {
        (bus_of(d.address)[0], d.secondary_bus): d.address
        for d in listed
        if d.is_bridge and isinstance(d.secondary_bus, int) and d.secondary_bus > 0
    }
    blind = {bus_of(d.address)[0] for d in listed if d.is_bridge and not isinstance(d.secondary_bus, int)}
    for d in lost:
        out[d.address] = _rebuilt(d.address, above, blind)
    return out


def _rebuilt(address: str, above: Mapping[tuple[int, int], str], blind: set[int]) -> Chain:
    """Return the chain by climbing from bus to bridge; empty where a bridge of the domain hides its bus numbers."""
    up: list[str] = [address]
    while (bridge := above.get(bus_of(up[-1]))) is not None:
        if bridge in up:
            return ()
        up.append(bridge)
    domain, bus = bus_of(up[-1])
    if domain in blind and bus != 0:
        return ()
    return (f"pci{domain:04x}:{bus:02x}", *reversed(up))


def build_tree(devices: Mapping[str, PciDevice], places: Mapping[str, Chain]) -> dict[str, TreeNode]:
    """Return every host bridge and function with its parent, children, role and the rate of its link upward."""
    parents: dict[str, str | None] = {}
    children: dict[str, list[str]] = {}
    for address in devices:
        chain = places.get(address) or (address,)
        for parent, element in zip((None, *chain), chain, strict=False):
            if element not in parents:
                parents[element] = parent
                if parent is not None:
                    children.setdefault(parent, []).append(element)
    roles: dict[str, Role] = {}
    for address in parents:
        _role(address, parents, children, devices, roles)
    out = {}
    for element in sorted(parents, key=_order):
        device, parent = devices.get(element), parents[element]
        out[element] = TreeNode(
            id=element,
            role=roles[element],
            parent=parent,
            children=tuple(sorted(children.get(element, ()), key=_order)),
            **({} if device is None else {"link_gb_s": endpoint_link(device)}),
        )
    return out


def _order(element: str) -> tuple[int, int, int, int, int]:
    if is_host_bridge(element):
        domain, bus = element[3:].split(":")
        return int(domain, 16), int(bus, 16), -1, 0, 0
    return (*address_key(element), 0)


def _role(
    element: str,
    parents: Mapping[str, str | None],
    children: Mapping[str, list[str]],
    devices: Mapping[str, PciDevice],
    roles: dict[str, Role],
) -> Role:
    """Return the role of an element; by its port type, else by its place."""
    if element in roles:
        return roles[element]
    device, parent = devices.get(element), parents.get(element)
    above = None if parent is None else _role(parent, parents, children, devices, roles)
    if is_host_bridge(element):
        role: Role = "host_bridge"
    elif device is not None and isinstance(device.port_type, PortType):
        role = _ROLES.get(device.port_type, "endpoint")
    elif device is None or not device.is_bridge:
        role = "bridge" if children.get(element) else "endpoint"
    elif above in ("host_bridge", None):
        role = "root_port"
    elif above == "upstream_port":
        role = "downstream_port"
    else:
        below = [devices[c] for c in children.get(element, ()) if c in devices]
        role = "upstream_port" if all(c.is_bridge for c in below) else "bridge"
    roles[element] = role
    return role


def common_length(a: Chain, b: Chain) -> int:
    """Return how many leading elements two chains share."""
    if not a or not b or a[0] != b[0]:
        return 0
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
