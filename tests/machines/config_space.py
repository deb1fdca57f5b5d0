"""PCI configuration space, byte by byte, as a function of a described machine would show it.

Layout after the PCI Express Base Specification 5.0: type 0/1 header (7.5.1), PCI Express capability (7.5.3),
Advanced Error Reporting (7.8.4), ACS (7.7.11), ATS (10.5.1), SR-IOV (9.3.3), device serial number (7.9.3),
Downstream Port Containment (7.9.14).
The "P2P" vendor capability is the one QEMU writes for NVIDIA GPUs (hw/vfio/pci-quirks.c, x-nv-gpudirect-clique).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

PORT_TYPES = {
    "endpoint": 0,
    "legacy_endpoint": 1,
    "root_port": 4,
    "upstream": 5,
    "downstream": 6,
    "pcie_to_pci": 7,
    "pci_to_pcie": 8,
    "rc_endpoint": 9,
    "rc_event_collector": 10,
}
BRIDGE_TYPES = ("root_port", "upstream", "downstream", "pcie_to_pci")
PM_AT, PCIE_AT, P2P_AT = 0x60, 0x68, 0xC8
AER_AT, ACS_AT, ATS_AT, SRIOV_AT, DSN_AT, DPC_AT = 0x100, 0x148, 0x158, 0x168, 0x1B0, 0x1C0


class Config(NamedTuple):
    """What goes into one config space. Speeds are generations 1 to 7 (2.5 to 128 GT/s); `bars` are raw words."""

    vendor: int
    device: int
    class_code: int
    revision: int = 0xA1
    subsystem_vendor: int = 0
    subsystem_device: int = 0
    bars: tuple[int, ...] = ()
    multifunction: bool = False
    buses: tuple[int, int, int] | None = None
    port_type: str | None = None
    max_gen: int = 0
    max_width: int = 0
    now_gen: int = 0
    target_gen: int = 0
    now_width: int = 0
    mps: int = 256
    mps_supported: int = 512
    mrrs: int = 512
    relaxed_ordering: bool = True
    acs: int | None = None
    ats: bool | None = None
    aer: bool = True
    sriov: tuple[int, int] | None = None
    serial: int | None = None
    clique: int | None = None
    dpc: bool | None = None


def build(c: Config) -> bytes:
    """Return the whole config space: 4096 bytes for a PCIe function, 256 for a plain PCI one."""
    space = bytearray(4096 if c.port_type else 256)
    _header(space, c)
    if c.port_type:
        _pcie(space, c)
        _extended(space, c)
    return bytes(space)


def _header(space: bytearray, c: Config) -> None:
    has_caps = c.port_type is not None
    struct.pack_into("<HHHH", space, 0, c.vendor, c.device, 0x0406, 0x0010 if has_caps else 0)
    space[8] = c.revision
    space[9:12] = c.class_code.to_bytes(3, "little")
    space[0x0E] = (1 if c.buses else 0) | (0x80 if c.multifunction else 0)
    for i, bar in enumerate(c.bars[: 2 if c.buses else 6]):
        struct.pack_into("<I", space, 0x10 + 4 * i, bar & 0xFFFFFFFF)
    if c.buses:
        space[0x18:0x1B] = bytes(c.buses)
    else:
        struct.pack_into("<HH", space, 0x2C, c.subsystem_vendor, c.subsystem_device)
    if has_caps:
        space[0x34] = PM_AT
        struct.pack_into("<BBHHH", space, PM_AT, 0x01, PCIE_AT, 0x0003, 0x0008, 0)


def _pcie(space: bytearray, c: Config) -> None:
    assert c.port_type is not None
    has_link = c.port_type not in ("rc_endpoint", "rc_event_collector") and c.max_gen > 0
    flags = 2 | PORT_TYPES[c.port_type] << 4 | (0x100 if c.port_type in ("root_port", "downstream") else 0)
    struct.pack_into("<BBH", space, PCIE_AT, 0x10, P2P_AT if c.clique is not None else 0, flags)
    struct.pack_into("<I", space, PCIE_AT + 4, _size_code(c.mps_supported) | 0x8000)
    control = (0x10 if c.relaxed_ordering else 0) | _size_code(c.mps) << 5 | 0x800 | _size_code(c.mrrs) << 12
    struct.pack_into("<HH", space, PCIE_AT + 8, control, 0)
    if has_link:
        reports = 1 << 20 if c.port_type in ("root_port", "downstream") else 0  # Data Link Layer Link Active Reporting
        struct.pack_into("<I", space, PCIE_AT + 0x0C, c.max_gen | c.max_width << 4 | reports)
        active = 0x2000 if c.port_type in ("root_port", "downstream") and c.now_width else 0
        struct.pack_into("<HH", space, PCIE_AT + 0x10, 0x40, c.now_gen | c.now_width << 4 | active)
        struct.pack_into("<I", space, PCIE_AT + 0x2C, sum(1 << g for g in range(1, c.max_gen + 1)))
        struct.pack_into("<H", space, PCIE_AT + 0x30, c.target_gen or c.max_gen)
    if c.clique is not None:
        struct.pack_into("<BBB3sBB", space, P2P_AT, 0x09, 0, 8, b"P2P", c.clique << 3, 0)


def _extended(space: bytearray, c: Config) -> None:
    caps: list[tuple[int, int, int, bytes]] = []
    if c.aer:
        caps.append((AER_AT, 0x0001, 2, bytes(0x40)))
    if c.acs is not None:
        caps.append((ACS_AT, 0x000D, 1, struct.pack("<HH", 0x005F, c.acs)))
    if c.ats is not None:
        caps.append((ATS_AT, 0x000F, 1, struct.pack("<HH", 0x0020, 0x8000 if c.ats else 0)))
    if c.sriov is not None:
        total, now = c.sriov
        body = struct.pack("<IHHHHHBBHH", 0, 0x8 | (now > 0), 0, total, total, now, 0, 0, 1, 1)
        caps.append((SRIOV_AT, 0x0010, 1, body.ljust(0x3C, b"\0")))
    if c.serial is not None:
        caps.append((DSN_AT, 0x0003, 1, struct.pack("<Q", c.serial)))
    if c.dpc is not None:  # Downstream Port Containment (7.9.14): trigger status is bit 0 of the word at +8
        caps.append((DPC_AT, 0x001D, 1, struct.pack("<HHHH", 0, 1, int(c.dpc), 0)))
    # The chain starts at 0x100: the first capability there is must stand at that place.
    if caps and caps[0][0] != 0x100:
        caps[0] = (0x100, *caps[0][1:])
    for i, (at, ident, version, body) in enumerate(caps):
        following = caps[i + 1][0] if i + 1 < len(caps) else 0
        struct.pack_into("<I", space, at, ident | version << 16 | following << 20)
        space[at + 4 : at + 4 + len(body)] = body


def _size_code(size: int) -> int:
    """Return the 3-bit code of a payload or request size (128 -> 0 ... 4096 -> 5)."""
    code = (size // 128).bit_length() - 1
    if size != 128 << code:
        raise ValueError(f"payload size {size} is not 128 * 2^n")
    return code
