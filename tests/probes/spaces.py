"""Config spaces for the tests, built register by register (PCI Express base specification, 7.5 to 7.9)."""

from __future__ import annotations

from collections.abc import Sequence


def config_space(
    *,
    vendor: int = 0x10DE,
    device: int = 0x2330,
    class_code: int = 0x030200,
    bridge: tuple[int, int, int] | None = None,
    capabilities: Sequence[tuple[int, bytes]] = (),
    extended: Sequence[tuple[int, bytes]] = (),
    size: int = 4096,
) -> bytes:
    """Return a config space.

    Args:
        vendor: vendor id.
        device: device id.
        class_code: 24-bit class.
        bridge: (primary, secondary, subordinate bus) for a header of type 1.
        capabilities: (id, what follows id and next pointer), placed from 0x40 on in 4-byte steps.
        extended: (id, what follows the header), from 0x100 on.
        size: where the space is cut.
    """
    space = bytearray(4096)
    space[0:4] = vendor.to_bytes(2, "little") + device.to_bytes(2, "little")
    space[0x06] = 0x10 if capabilities else 0
    space[0x09:0x0C] = class_code.to_bytes(3, "little")
    if bridge:
        space[0x0E] = 1
        space[0x18:0x1B] = bytes(bridge)
    at, pointer = 0x40, 0x34
    for kind, body in capabilities:
        space[pointer] = at
        space[at] = kind
        space[at + 2 : at + 2 + len(body)] = body
        pointer, at = at + 1, at + (2 + len(body) + 3 & ~3)
    at = 0x100
    for n, (kind, body) in enumerate(extended):
        following = at + (4 + len(body) + 3 & ~3) if n + 1 < len(extended) else 0
        space[at : at + 4] = (kind | 1 << 16 | following << 20).to_bytes(4, "little")
        space[at + 4 : at + 4 + len(body)] = body
        at = following
    return bytes(space[:size])


def pcie(
    *,
    port_type: int = 0,
    version: int = 2,
    slot: bool = False,
    devcap: int = 0,
    devctl: int = 0,
    lnkcap: int = 0,
    lnksta: int = 0,
    lnkcap2: int = 0,
) -> tuple[int, bytes]:
    """Return a PCI Express capability (id 10h) with the registers that are read."""
    body = bytearray(0x3A)
    body[0:2] = (version | port_type << 4 | slot << 8).to_bytes(2, "little")
    body[0x02:0x06] = devcap.to_bytes(4, "little")
    body[0x06:0x08] = devctl.to_bytes(2, "little")
    body[0x0A:0x0E] = lnkcap.to_bytes(4, "little")
    body[0x10:0x12] = lnksta.to_bytes(2, "little")
    body[0x2A:0x2E] = lnkcap2.to_bytes(4, "little")
    return 0x10, bytes(body)


def acs(control: int, capability: int = 0x7F) -> tuple[int, bytes]:
    """Return an ACS capability."""
    return 0x000D, capability.to_bytes(2, "little") + control.to_bytes(2, "little")


def ats(enabled: bool) -> tuple[int, bytes]:
    """Return an ATS capability."""
    return 0x000F, (0).to_bytes(2, "little") + (0x8000 if enabled else 0).to_bytes(2, "little")
