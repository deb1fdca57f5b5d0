"""The written forms of identifiers: which one a text as a whole is, and what it becomes."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

from topocheck.host.recording.pseudonyms import Mapping

_H = "[0-9a-fA-F]"
UUID = "|".join(f"{_H}{{8}}{s}{_H}{{4}}{s}{_H}{{4}}{s}{_H}{{4}}{s}{_H}{{12}}" for s in "-_")
_GPU = re.compile(rf"((?:MIG-)?GPU-|MIG-)?({UUID})((?:/\d{{1,3}}){{0,2}})")
_V4 = r"\d{1,3}(?:\.\d{1,3}){3}"
_IPV6 = re.compile(rf"(?={_H}*:[0-9a-fA-F:]*:)(?=[0-9a-fA-F:]*(?:{_H}{{3}}|::))([0-9a-fA-F:]+(?:{_V4})?)(/\d{{1,3}})?")
"""At least one group of three digits or a `::`, so that 0:1:2:3:4:5:6:7 is none."""
_IPV4 = re.compile(rf"({_V4})(/\d{{1,2}})?")

OCTETS = re.compile(rf"{_H}{{2}}(?:[:\-]{_H}{{2}}){{5,}}(?!{_H})")
"""Of a MAC or the like, within another text."""


def number(text: str) -> int:
    """Return the number that groups of hex digits make."""
    return int(re.sub("[:.-]", "", text), 16)


def grouped(value: int, bits: int, digits: int, like: str) -> str:
    """Write a number in groups of hex digits, with the separator and case of `like`; none where it has none."""
    text = f"{value:0{bits // 4}x}"
    separator = next((c for c in like if c in ":-."), "")
    joined = separator.join(text[n : n + digits] for n in range(0, len(text), digits))
    return joined.upper() if like.isupper() else joined


def ipv4(m: Mapping, text: str) -> str | None:
    """Return what an IPv4 address becomes, with or without a prefix length; None for any other text."""
    found = _IPV4.fullmatch(text)
    try:
        value = int(ipaddress.IPv4Address(found[1])) if found else None
    except ValueError:
        return None
    if found is None or value is None:
        return None
    new, length = m.ipv4(value), found[2] or ""
    host_bits = (1 << (32 - min(int(length[1:] or 32), 32))) - 1
    # 10.1.0.0/16 is a subnet: what was zero behind the prefix stays zero.
    return f"{ipaddress.IPv4Address(new if value & host_bits else new & ~host_bits)}{length}"


def ipv6(m: Mapping, text: str) -> str | None:
    """Return what an IPv6 address or GID becomes, with or without a prefix length; None for any other text."""
    found = _IPV6.fullmatch(text)
    try:
        value = int(ipaddress.IPv6Address(found[1])) if found else None
    except ValueError:
        return None
    if found is None or value is None:
        return None
    new, groups = m.ipv6(value), found[1].split(":")
    if new == value:
        return text
    if len(groups) == 8 and all(len(g) == 4 for g in groups):
        return grouped(new, 128, 4, found[1]) + (found[2] or "")
    if "." in found[1]:
        return f"::ffff:{ipaddress.IPv4Address(new & 0xFFFFFFFF)}" if new >> 32 == 0xFFFF else None
    return str(ipaddress.IPv6Address(new)) + (found[2] or "")


def ipoib(m: Mapping, text: str) -> str:
    """Return what an IPoIB hardware address becomes: flags and queue pair, then the port's GID (RFC 4391, 9.1.1)."""
    value = number(text)
    return grouped(value >> 128 << 128 | m.ipv6(value & (1 << 128) - 1), 160, 2, text)


def gpu(m: Mapping, text: str) -> str | None:
    """Return what a UUID becomes, with or without NVIDIA's prefix and the numbers of a MIG instance; else None."""
    found = _GPU.fullmatch(text)
    return f"{found[1] or ''}{m.hexadecimal(found[2])}{found[3]}" if found else None


def xml_guid(m: Mapping, digits: str) -> str:
    """Return what the GUID of a topology file of NCCL becomes: eight bytes read as a little-endian number.

    Written without leading zeros (NVIDIA/nccl src/graph/xml.cc, `%lx`).
    """
    value = int.from_bytes(int(digits, 16).to_bytes(8, "big"), "little")
    return f"{int.from_bytes(m.eui64(value).to_bytes(8, 'little'), 'big'):x}"


_FORMS: tuple[tuple[re.Pattern[str], Callable[[Mapping, str], str]], ...] = tuple(
    (re.compile(pattern), change)
    for pattern, change in (
        (rf"{_H}{{2}}(?::{_H}{{2}}){{19}}", ipoib),
        (rf"{_H}{{2}}(?:([:\-]){_H}{{2}})(?:\1{_H}{{2}}){{4}}", lambda m, t: grouped(m.mac(number(t)), 48, 2, t)),
        (rf"{_H}{{4}}(?:\.{_H}{{4}}){{2}}", lambda m, t: grouped(m.mac(number(t)), 48, 4, t)),
        (rf"{_H}{{4}}(?::{_H}{{4}}){{3}}", lambda m, t: grouped(m.eui64(number(t)), 64, 4, t)),
        (rf"{_H}{{2}}(?:([:\-]){_H}{{2}})(?:\1{_H}{{2}}){{6}}", lambda m, t: grouped(m.eui64(number(t)), 64, 2, t)),
        (rf"0x{_H}{{16}}", lambda m, t: f"0x{m.eui64(int(t, 16)):016x}"),
        # A MAC, GUID or container's id written without separators; shorter ones are numbers and words.
        (rf"{_H}{{12,128}}", Mapping.hexadecimal),
    )
)


def replaced(m: Mapping, text: str) -> str | None:
    """Return what an identifier of any known form becomes; None where the text as a whole is none."""
    for form in (gpu, ipv4, ipv6):
        if (new := form(m, text)) is not None:
            return new
    for pattern, change in _FORMS:
        if pattern.fullmatch(text):
            return change(m, text)
    return None
