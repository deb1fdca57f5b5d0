"""What a snapshot holds of a PCI config space: the registers that are read from it, and no other byte."""

from __future__ import annotations

from topocheck.host.base import Answer
from topocheck.host.recording.forms import scalar
from topocheck.host.recording.redaction import Redaction
from topocheck.probes.pci.config import (
    CAP_PCIE,
    CAP_VENDOR,
    EXT_ACS,
    EXT_ATS,
    EXT_DPC,
    walk_capabilities,
    walk_extended,
)

EXT_SERIAL = 0x0003
_BODY = {EXT_ACS: 8, EXT_ATS: 8, EXT_DPC: 12}
"""Extended capability -> its bytes that are read, the header of four among them."""
_PCIE = ((0x02, 0x0A), (0x0C, 0x10), (0x12, 0x14), (0x2C, 0x32))
"""Registers of the PCI Express capability that are read: flags, DevCap, DevCtl; LnkCap; LnkSta; LnkCap2, LnkCtl2."""


def config_space(r: Redaction, answer: Answer) -> Answer:
    """Return a config space with the header, the chains of capabilities and the registers of which facts are made.

    All else is zero: vendors put names and serial numbers there. The serial number capability (PCI Express Base
    6.0, 7.9.3: the EUI-64, low bytes first) is replaced as a GUID is.
    """
    if not isinstance(answer, bytes):
        return scalar(r, answer)
    if not answer.strip(b"\xff"):
        return answer  # of a device that does not answer
    out = bytearray(len(answer))
    keep = [(0, 64)] if len(answer) >= 64 else []
    for kind, at in walk_capabilities(answer):
        body = 8 if kind == CAP_VENDOR and answer[at + 3 : at + 6] == b"P2P" else 2
        keep.append((at, at + body))
        if kind == CAP_PCIE:
            keep += [(at + start, at + end) for start, end in _PCIE]
    keep += [(at, at + _BODY.get(kind, 4)) for kind, at in walk_extended(answer)]
    for start, end in keep:
        out[start : min(end, len(answer))] = answer[start:end]
    for kind, at in walk_extended(answer):
        if kind == EXT_SERIAL and at + 12 <= len(answer):
            serial = int.from_bytes(answer[at + 4 : at + 12], "little")
            out[at + 4 : at + 12] = r.map.eui64(serial).to_bytes(8, "little")
    if len(answer) > 0x104 and answer[0x100:0x104] == b"\xff\xff\xff\xff":
        out[0x100:0x104] = answer[0x100:0x104]
    return bytes(out)
