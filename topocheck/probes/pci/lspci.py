"""What `lspci -vv` spells out of a function's registers: the same facts as its config space, from the text.

The words are those of pciutils' `ls-caps.c` and `ls-ecaps.c`. A register that the text does not show is
`not_recorded`; so is whether there is a capability at all, where the capabilities were not listed.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from topocheck.model.base import Missing, Reason
from topocheck.model.pci import PortType
from topocheck.probes.pci import config

_NOT_SHOWN = Missing(Reason.NOT_RECORDED, "not in lspci's text")
_ACCESS_DENIED = Missing(Reason.DENIED, "lspci: <access denied>; needs root")
_NO_PCIE = Missing(Reason.ABSENT, "no PCI Express capability")
_NO_LINK = Missing(Reason.UNSUPPORTED, "a function inside the root complex has no link")
_GONE = Missing(Reason.UNPARSABLE, "config space reads all ones: the device does not answer")

HEADER = re.compile(r"((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) (\S.*)")
"""First line of a function's block: its address, and the rest."""
_CAPABILITY = re.compile(r"\s*Capabilities: \[([0-9a-f]{2,3})(?: v[0-9]+)?\] (.*)")
_EXPRESS = re.compile(r"Express(?: \(v([0-9])\))? (.*)")
_PORTS = (
    ("Root Complex Integrated Endpoint", PortType.RC_ENDPOINT),
    ("Root Complex Event Collector", PortType.RC_EVENT_COLLECTOR),
    ("Root Port", PortType.ROOT_PORT),
    ("Upstream Port", PortType.UPSTREAM),
    ("Downstream Port", PortType.DOWNSTREAM),
    ("PCI-Express to PCI/PCI-X Bridge", PortType.PCIE_TO_PCI),
    ("PCI/PCI-X to PCI-Express Bridge", PortType.PCI_TO_PCIE),
    ("Legacy Endpoint", PortType.LEGACY_ENDPOINT),
    ("Endpoint", PortType.ENDPOINT),
)
_ACS_BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
_LINK = ("cap_speed_gt_s", "cap_width_lanes", "sta_speed_gt_s", "sta_width_lanes", "link_active", "cap2_speeds_gt_s")
_SPEEDS = tuple(config.SPEEDS_GT_S.values())


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """What one function's block of lspci says.

    Attributes:
        facts: of its registers.
        raw: name of a register, as in `register_evidence` -> the line that shows it.
        name: what stands after the class: vendor and device.
        express: whether it has a PCI Express capability; None where the capabilities are not listed.
    """

    facts: config.ConfigFacts
    raw: dict[str, str]
    name: str = ""
    express: bool | None = None


def parse_block(text: str) -> Block:
    """Return what a function's block says. Never raises."""
    lines = text.split("\n")
    header = HEADER.match(lines[0])
    name = _name(header[2].partition(": ")[2]) if header else ""
    if re.search(r"\(rev ff\)", lines[0]) and re.search(r"!!! Unknown header type 7f|\(prog-if ff\)", text):
        facts = msgspec.structs.replace(config.nothing(_GONE), config_all_ones=True)
        return Block(facts=facts, raw={"config": lines[0]}, name=name)
    out: dict[str, Any] = {}
    raw: dict[str, str] = {}
    if m := re.search(r"\(rev ([0-9a-f]{2})\)", lines[0]):
        out["revision"] = int(m[1], 16)
    if m := re.search(r"^\s+Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})", text, re.M):
        out |= {"secondary_bus": int(m[1], 16), "subordinate_bus": int(m[2], 16)}
    parts = _capabilities(lines)
    base = msgspec.structs.asdict(config.nothing(_NOT_SHOWN))
    base |= {"config_all_ones": False, **out}
    if "<access denied>" in text:
        base |= {k: _ACCESS_DENIED for k, v in base.items() if v is _NOT_SHOWN}
        return Block(facts=config.ConfigFacts(**base), raw=raw, name=name)
    if not parts and not re.search(r"^\s+Status: Cap-", text, re.M):
        return Block(facts=config.ConfigFacts(**base), raw=raw, name=name)
    express = next((p for p in parts if _EXPRESS.match(p[0])), None)
    pcie = {f: _NO_PCIE for f in base if base[f] is _NOT_SHOWN and f != "p2p_clique"}
    base |= pcie if express is None else _express(express, raw) | _extended(parts, raw, text)
    if name and "NVIDIA" not in name:
        base["p2p_clique"] = Missing(Reason.ABSENT, "not a device of NVIDIA")
    elif not any(p[0].startswith("Vendor Specific Information: Len=08") for p in parts):
        base["p2p_clique"] = Missing(Reason.ABSENT, "no vendor capability of 8 bytes")
    return Block(facts=config.ConfigFacts(**base), raw=raw, name=name, express=express is not None)


def _name(words: str) -> str:
    """Return vendor and device without numbers: `(rev a1)`, `(prog-if 02)` and `[10de:2330]` are not of the name."""
    return re.sub(r"( \[[0-9a-f]{4}:[0-9a-f]{4}\])?( \((rev|prog-if) [^()]*\))*$", "", words)


def device_name(name: str) -> str | None:
    """Return the device of a name that pci.ids gave, without its maker; None where it is but a number."""
    m = re.match(r".*?(?:Corporation|Technologies|Inc\.|\[AMD(?:/ATI)?\]|Ltd\.?|LSI|subsidiaries|Limited) (.+)$", name)
    device = m[1] if m else name
    return None if re.fullmatch(r"(.* )?Device( [0-9a-f]{4})?", device) else device


def _capabilities(lines: list[str]) -> list[tuple[str, int, list[str]]]:
    """Return (words, offset, lines below) of each capability."""
    out: list[tuple[str, int, list[str]]] = []
    for line in lines[1:]:
        if m := _CAPABILITY.match(line):
            out.append((m[2], int(m[1], 16), []))
        elif out and re.match(r"\s+Kernel (driver|modules)", line):
            break
        elif out:
            out[-1][2].append(line.strip())
    return out


def _register(lines: list[str], name: str) -> str | None:
    """Return the text of a register: its line and those that go on with it."""
    for n, line in enumerate(lines):
        if line.startswith(f"{name}:"):
            rest = [line[len(name) + 1 :].strip()]
            for more in lines[n + 1 :]:
                if re.match(r"[A-Z][A-Za-z0-9]+:(\s|$)", more) and not more.startswith("AtomicOps"):
                    break
                rest.append(more)
            return " ".join(rest)
    return None


def _flag(text: str, name: str) -> bool | Missing:
    m = re.search(rf"\b{name}([+-])", text)
    return m[1] == "+" if m else _NOT_SHOWN


def _size(text: str, name: str) -> int | Missing:
    m = re.search(rf"\b{name} (128|256|512|1024|2048|4096) bytes", text)
    return int(m[1]) if m else _NOT_SHOWN


def _speed(text: str) -> float | Missing:
    m = re.search(r"\bSpeed (?:([0-9.]{1,5})GT/s|(unknown))", text)
    if m and m[2]:
        return Missing(Reason.ABSENT, "link speed unknown")
    return speed if m and (speed := _number(m[1])) in _SPEEDS else _NOT_SHOWN


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"[0-9]{1,3}(\.[0-9])?", text) else 0.0


def _width(text: str) -> int | Missing:
    m = re.search(r"\bWidth x([0-9]{1,2})\b", text)
    if m is None:
        return _NOT_SHOWN
    return config.lanes(int(m[1]))


def _express(part: tuple[str, int, list[str]], raw: dict[str, str]) -> dict[str, Any]:
    words, _, lines = part
    m = _EXPRESS.match(words)
    rest = m[2] if m else ""
    kind = next((k for w, k in _PORTS if rest.startswith(w)), None)
    out: dict[str, Any] = dict.fromkeys(_LINK, _NOT_SHOWN)
    out["port_type"] = kind or Missing(Reason.UNPARSABLE, rest[:40])
    if slot := re.search(r"\(Slot([+-])\)", rest):
        out["slot_implemented"] = slot[1] == "+"
    elif kind in (PortType.ENDPOINT, PortType.LEGACY_ENDPOINT, PortType.RC_ENDPOINT, PortType.UPSTREAM):
        out["slot_implemented"] = False  # lspci shows it of ports that may have a slot
    told = {name: _register(lines, name) for name in ("DevCap", "DevCtl", "LnkCap", "LnkSta", "LnkCap2")}
    raw |= {f"config {name}": text[:160] for name, text in told.items() if text is not None}
    if (devcap := told["DevCap"]) is not None:
        out["max_payload_supported_bytes"] = _size(devcap, "MaxPayload")
    if (devctl := told["DevCtl"]) is not None:
        out["max_payload_bytes"] = _size(devctl, "MaxPayload")
        out["max_read_request_bytes"] = _size(devctl, "MaxReadReq")
        out["relaxed_ordering"] = _flag(devctl, "RlxdOrd")
    if kind in (PortType.RC_ENDPOINT, PortType.RC_EVENT_COLLECTOR):
        return out | dict.fromkeys(_LINK, _NO_LINK)
    return out | _link(told, m[1] if m else None)


def _link(told: dict[str, str | None], version: str | None) -> dict[str, Any]:
    out: dict[str, Any] = {}
    lnkcap, lnksta, lnkcap2 = told["LnkCap"], told["LnkSta"], told["LnkCap2"]
    if lnkcap is not None:
        out |= {"cap_speed_gt_s": _speed(lnkcap), "cap_width_lanes": _width(lnkcap)}
    if lnksta is not None:
        out |= {"sta_speed_gt_s": _speed(lnksta), "sta_width_lanes": _width(lnksta)}
        reports = _flag(lnkcap or "", "LLActRep")
        if reports is False:
            out["link_active"] = Missing(Reason.UNSUPPORTED, "not reported")
        elif reports is True:
            out["link_active"] = _flag(lnksta, "DLActive")
    if version == "1":
        out["cap2_speeds_gt_s"] = Missing(Reason.UNSUPPORTED, "PCIe capability of version 1 has no LnkCap2")
    elif lnkcap2 is not None and (speeds := supported_speeds(lnkcap2)):
        out["cap2_speeds_gt_s"] = speeds
    return out


def supported_speeds(text: str) -> tuple[float, ...]:
    """Return the speeds of `Supported Link Speeds: 2.5-32GT/s`, which lspci prints where they leave no gap."""
    m = re.search(r"Supported Link Speeds: (?:([0-9.]{1,5})-)?([0-9.]{1,5})GT/s", text)
    if m is None:
        return ()
    low, high = _number(m[1] or m[2]), _number(m[2])
    return tuple(s for s in _SPEEDS if low <= s <= high)


def _extended(parts: list[tuple[str, int, list[str]]], raw: dict[str, str], text: str) -> dict[str, Any]:
    """Return the facts of the extended capabilities.

    Whether one is absent can be determined only where others of them are listed: without MMCONFIG lspci sees none.
    """
    extended = [p for p in parts if p[1] >= 0x100]
    if not extended:
        return {}
    out: dict[str, Any] = {"acs_capable": False, "ats_supported": False}
    none = Missing(Reason.ABSENT)
    out |= dict.fromkeys(("acs_capability_word", "acs_control_word", "ats_enabled", "dpc_triggered"), none)
    for words, _, lines in extended:
        if words.startswith("Access Control Services"):
            out |= {"acs_capable": True}
            for field, name in (("acs_capability_word", "ACSCap"), ("acs_control_word", "ACSCtl")):
                line = _register(lines, name)
                out[field] = _bits(line)
                if line is not None:
                    raw[f"config {name}"] = line[:160]
        elif words.startswith("Address Translation Service"):
            line = _register(lines, "ATSCtl")
            out |= {"ats_supported": True, "ats_enabled": _NOT_SHOWN if line is None else _flag(line, "Enable")}
            if line is not None:
                raw["config ATSCtl"] = line[:160]
        elif words.startswith("Downstream Port Containment"):
            line = _register(lines, "DpcSta")
            out["dpc_triggered"] = _NOT_SHOWN if line is None else _flag(line, "Trigger")
            if line is not None:
                raw["config DpcSta"] = line[:160]
    return out


def _bits(line: str | None) -> int | Missing:
    if line is None:
        return _NOT_SHOWN
    flags = [_flag(line, name) for name in _ACS_BITS]
    if any(isinstance(f, Missing) for f in flags):
        return _NOT_SHOWN
    return sum(1 << n for n, f in enumerate(flags) if f is True)
