"""PCI config space: what its registers say of a function, from as many bytes as could be read.

Layouts from the PCI Express base specification, revision 6: header 7.5.1, PCI Express capability 7.5.3, extended
capabilities 7.6.3, ACS 7.7.11, DPC 7.9.14, ATS 10.5.1; names of offsets as in Linux `pci_regs.h`. An ordinary
user gets only the first 64 bytes (`pci_read_config` in Linux `drivers/pci/pci-sysfs.c`), below which no capability
can lie; what was not read is missing, never zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from topocheck.model.base import ABSENT, Missing, Reason
from topocheck.model.pci import PortType

SPEEDS_GT_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}
"""Link speed code of LnkCap and LnkSta -> GT/s per lane; code n is also bit n of LnkCap2 (its bit 0 is reserved)."""

_PORT_TYPES = {
    0: PortType.ENDPOINT,
    1: PortType.LEGACY_ENDPOINT,
    4: PortType.ROOT_PORT,
    5: PortType.UPSTREAM,
    6: PortType.DOWNSTREAM,
    7: PortType.PCIE_TO_PCI,
    8: PortType.PCI_TO_PCIE,
    9: PortType.RC_ENDPOINT,
    10: PortType.RC_EVENT_COLLECTOR,
}
_WITHOUT_LINK = (PortType.RC_ENDPOINT, PortType.RC_EVENT_COLLECTOR)

CAP_VENDOR = 0x09
CAP_PCIE = 0x10
EXT_ACS = 0x000D
EXT_ATS = 0x000F
EXT_DPC = 0x001D
NVIDIA = 0x10DE

_CUT = Missing(Reason.DENIED, "config space cut at 64 bytes; needs root")
_NO_EXTENDED = Missing(Reason.UNSUPPORTED, "the extended config space (beyond 256 bytes) cannot be reached")
_NO_LINK = Missing(Reason.UNSUPPORTED, "a function inside the root complex has no link")
_GONE = Missing(Reason.UNPARSABLE, "config space reads all ones: the device does not answer")
_NO_PCIE = Missing(Reason.ABSENT, "no PCI Express capability")


class ConfigFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the config space says; names, units and meanings as in `PciDevice`."""

    config_bytes: int = 0
    config_all_ones: bool | Missing = ABSENT
    revision: int | Missing = ABSENT
    secondary_bus: int | Missing = ABSENT
    subordinate_bus: int | Missing = ABSENT
    port_type: PortType | Missing = ABSENT
    slot_implemented: bool | Missing = ABSENT
    cap_speed_gt_s: float | Missing = ABSENT
    cap_width_lanes: int | Missing = ABSENT
    sta_speed_gt_s: float | Missing = ABSENT
    sta_width_lanes: int | Missing = ABSENT
    link_active: bool | Missing = ABSENT
    cap2_speeds_gt_s: tuple[float, ...] | Missing = ABSENT
    target_speed_gt_s: float | Missing = ABSENT
    autonomous_speed_disabled: bool | Missing = ABSENT
    max_payload_bytes: int | Missing = ABSENT
    max_payload_supported_bytes: int | Missing = ABSENT
    max_read_request_bytes: int | Missing = ABSENT
    relaxed_ordering: bool | Missing = ABSENT
    ats_supported: bool | Missing = ABSENT
    ats_enabled: bool | Missing = ABSENT
    acs_capable: bool | Missing = ABSENT
    acs_capability_word: int | Missing = ABSENT
    acs_control_word: int | Missing = ABSENT
    dpc_triggered: bool | Missing = ABSENT
    p2p_clique: int | Missing = ABSENT


FIELDS = tuple(f for f in ConfigFacts.__struct_fields__ if f != "config_bytes")


def nothing(why: Missing) -> ConfigFacts:
    """Return the facts of a config space that was not read, each missing for the reason `why`."""
    missing: dict[str, Any] = dict.fromkeys(FIELDS, why)
    return ConfigFacts(**missing)


def _u16(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "little")


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def walk_capabilities(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (id, offset) of the capabilities below 256 bytes; ends at a loop, a bad pointer or the end of `data`."""
    if len(data) < 64 or not _u16(data, 0x06) & 0x10:  # status register: capabilities list
        return
    at, seen = data[0x34] & 0xFC, set[int]()
    while 0x40 <= at <= min(len(data), 256) - 4 and at not in seen:
        seen.add(at)
        yield data[at], at
        at = data[at + 1] & 0xFC


def walk_extended(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (id, offset) of the extended capabilities; ends at a loop, a bad pointer or the end of `data`.

    A hypervisor hides an entry by giving it the id 0 and leaving the chain whole, so only an empty header ends it.
    """
    at, seen = 0x100, set[int]()
    while 0x100 <= at <= len(data) - 4 and at not in seen:
        seen.add(at)
        header = _u32(data, at)
        if header in (0, 0xFFFFFFFF):
            return
        yield header & 0xFFFF, at
        at = header >> 20 & 0xFFC


def extended_continues(data: bytes) -> bool:
    """Tell whether the chain of extended capabilities leaves `data`, so that more bytes are worth reading."""
    last = max(walk_extended(data), key=lambda c: c[1], default=None)
    if last is None:
        return False
    follows = any(_u32(data, at) >> 20 > len(data) - 4 for _, at in walk_extended(data))
    return follows or last[1] > len(data) - 16  # the last one begins here, and its registers may lie beyond


def _pcie(data: bytes, at: int) -> dict[str, Any]:
    flags = _u16(data, at + 2)
    kind = _PORT_TYPES.get(flags >> 4 & 0xF)
    devcap, devctl = _u32(data, at + 4), _u16(data, at + 8)
    lnkcap, lnksta = _u32(data, at + 0x0C), _u16(data, at + 0x12)
    out: dict[str, Any] = {
        "port_type": kind or Missing(Reason.UNPARSABLE, f"PCIe port type {flags >> 4 & 0xF}"),
        "slot_implemented": bool(flags & 0x100),
        "max_payload_supported_bytes": _size(devcap & 7),
        "max_payload_bytes": _size(devctl >> 5 & 7),
        "max_read_request_bytes": _size(devctl >> 12 & 7),
        "relaxed_ordering": bool(devctl & 0x10),
    }
    names = ("cap_speed_gt_s", "cap_width_lanes", "sta_speed_gt_s", "sta_width_lanes", "link_active")
    if kind in _WITHOUT_LINK:
        return out | dict.fromkeys((*names, *_LINK2), _NO_LINK)
    out |= {
        "cap_speed_gt_s": _speed(lnkcap & 0xF),
        "cap_width_lanes": lanes(lnkcap >> 4 & 0x3F),
        "sta_speed_gt_s": _speed(lnksta & 0xF),
        "sta_width_lanes": lanes(lnksta >> 4 & 0x3F),
        # Data link layer active reporting is optional (LnkCap bit 20); without it LnkSta bit 13 is always 0.
        "link_active": bool(lnksta & 0x2000) if lnkcap & 1 << 20 else Missing(Reason.UNSUPPORTED, "not reported"),
    }
    out |= dict.fromkeys(_LINK2, Missing(Reason.UNSUPPORTED, "PCIe capability of version 1 has no LnkCap2"))
    if flags & 0xF >= 2 and at + 0x30 <= len(data):
        lnkcap2 = _u32(data, at + 0x2C)
        speeds = tuple(gt for code, gt in SPEEDS_GT_S.items() if lnkcap2 >> code & 1)
        out["cap2_speeds_gt_s"] = speeds or Missing(Reason.UNSUPPORTED, "LnkCap2 is zero: a device older than PCIe 3")
        if at + 0x32 <= len(data):
            # Link Control 2 (7.5.3.19): bits 3:0 the target speed, bit 5 the hardware's own changes of speed off.
            lnkctl2 = _u16(data, at + 0x30)
            out["target_speed_gt_s"] = _speed(lnkctl2 & 0xF)
            out["autonomous_speed_disabled"] = bool(lnkctl2 & 0x20)
    return out


_LINK2 = ("cap2_speeds_gt_s", "target_speed_gt_s", "autonomous_speed_disabled")
"""Facts of the registers that a PCIe capability has from version 2 on."""


def _size(code: int) -> int | Missing:
    """128 << code bytes; codes 6 and 7 are reserved."""
    return 128 << code if code <= 5 else Missing(Reason.UNPARSABLE, f"payload size code {code}")


def _speed(code: int) -> float | Missing:
    if code == 0:
        return Missing(Reason.ABSENT, "link speed code 0: no link")
    return SPEEDS_GT_S.get(code, Missing(Reason.UNPARSABLE, f"link speed code {code}"))


def lanes(code: int) -> int | Missing:
    """Return the lanes of a link width code, which is their number (PCIe base specification 7.5.3.6)."""
    if code == 0:
        return Missing(Reason.ABSENT, "link width code 0: no link")
    return Missing(Reason.UNPARSABLE, f"link width code {code}") if code > 32 else code


def p2p_clique(data: bytes) -> int | Missing:
    """Return the clique of NVIDIA's GPUDirect P2P vendor capability, which a hypervisor adds to a guest's GPU.

    Eight bytes: id 09h, next, length 08h, the signature "P2P", then one byte with the version in bits 2:0 and the
    clique in bits 6:3, then a reserved one. Described in QEMU, `hw/vfio/pci-quirks.c` ("GPUDirect P2P Vendor
    capability"), after NVIDIA's specification of 2017 (qemu-devel, pdfUda5iEpgOS).
    """
    for kind, at in walk_capabilities(data):
        if kind == CAP_VENDOR and data[at + 2 : at + 6] == b"\x08P2P" and at + 8 <= len(data):
            return data[at + 6] >> 3 & 0xF
    return Missing(Reason.ABSENT, "no vendor capability with the signature P2P")


def _extended(data: bytes) -> dict[str, Any]:
    at = {kind: offset for kind, offset in reversed(list(walk_extended(data))) if offset + 8 <= len(data)}
    out: dict[str, Any] = {"acs_capable": EXT_ACS in at, "ats_supported": EXT_ATS in at}
    if EXT_ACS in at:
        out["acs_capability_word"] = _u16(data, at[EXT_ACS] + 4)
        out["acs_control_word"] = _u16(data, at[EXT_ACS] + 6)
    if EXT_ATS in at:
        out["ats_enabled"] = bool(_u16(data, at[EXT_ATS] + 6) & 0x8000)
    if EXT_DPC in at and at[EXT_DPC] + 10 <= len(data):
        out["dpc_triggered"] = bool(_u16(data, at[EXT_DPC] + 8) & 1)
    return out


_EXTENDED_FIELDS = (
    "acs_capable", "acs_capability_word", "acs_control_word", "ats_supported", "ats_enabled", "dpc_triggered",
)  # fmt: skip
_BUS_FIELDS = ("secondary_bus", "subordinate_bus")


def parse_config(data: bytes) -> ConfigFacts:
    """Return what a config space says, from its first 64, 256 or up to 4096 bytes. Never raises.

    A shorter answer than the header is no config space; every register that lies beyond what was read is missing
    with the reason, unless the bytes that were read show that the function has no such capability.
    """
    if len(data) < 64:
        why = Missing(Reason.UNPARSABLE, f"config space of {len(data)} bytes")
        return msgspec.structs.replace(nothing(why), config_bytes=len(data))
    if not data.strip(b"\xff"):
        return msgspec.structs.replace(nothing(_GONE), config_bytes=len(data), config_all_ones=True)
    out: dict[str, Any] = {"config_bytes": len(data), "config_all_ones": False, "revision": data[0x08]}
    if data[0x0E] & 0x7F == 1:
        out |= {"secondary_bus": data[0x19], "subordinate_bus": data[0x1A]}
    has_list = bool(_u16(data, 0x06) & 0x10)
    cut = has_list and len(data) < 256
    pcie = next((at for kind, at in walk_capabilities(data) if kind == CAP_PCIE and at + 0x14 <= len(data)), None)
    rest = [f for f in FIELDS if f not in out and f not in _EXTENDED_FIELDS + _BUS_FIELDS and f != "p2p_clique"]
    if pcie is not None:
        out |= _pcie(data, pcie)
    else:
        out |= dict.fromkeys(rest, _CUT if cut else _NO_PCIE)
    clique = p2p_clique(data) if _u16(data, 0) == NVIDIA else Missing(Reason.ABSENT, "not a device of NVIDIA")
    out["p2p_clique"] = _CUT if cut and _u16(data, 0) == NVIDIA and isinstance(clique, Missing) else clique
    if len(data) > 256:
        out |= _extended(data)
    else:
        why = _CUT if cut else _NO_EXTENDED if pcie is not None else _NO_PCIE
        out |= dict.fromkeys(_EXTENDED_FIELDS, why)
    return ConfigFacts(**out)


def register_evidence(data: bytes) -> dict[str, str]:
    """Return the registers that opinions rest on, as text: name -> `0x5043 at 0x72` (offset in the config space)."""
    out: dict[str, str] = {}

    def put(name: str, at: int, size: int) -> None:
        if at + size <= len(data):
            out[f"config {name}"] = f"0x{int.from_bytes(data[at : at + size], 'little'):0{size * 2}x} at 0x{at:x}"

    if len(data) < 64 or not data.strip(b"\xff"):
        return out
    for kind, at in walk_capabilities(data):
        if kind == CAP_PCIE:
            put("DevCap", at + 0x04, 4)
            put("DevCtl", at + 0x08, 2)
            put("LnkCap", at + 0x0C, 4)
            put("LnkSta", at + 0x12, 2)
            if _u16(data, at + 2) & 0xF >= 2:
                put("LnkCtl2", at + 0x30, 2)
        elif kind == CAP_VENDOR and data[at + 3 : at + 6] == b"P2P":
            put("P2P", at, 8)
    for kind, at in walk_extended(data):
        if kind == EXT_ACS:
            put("ACSCap", at + 4, 2)
            put("ACSCtl", at + 6, 2)
        elif kind == EXT_ATS:
            put("ATSCtl", at + 6, 2)
        elif kind == EXT_DPC:
            put("DpcSta", at + 8, 2)
    return out
