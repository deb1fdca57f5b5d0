"""The written forms of identifiers, found and replaced in one pass, so that no replacement is replaced again."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping

from topocheck.host.mapping import Mapping as Replacements

_H = "[0-9a-fA-F]"
_PIECES = r"(?<![0-9A-Za-z:.\-])", r"(?![0-9A-Za-z:\-]|\.\d)"
_UUID = "|".join(f"{_H}{{8}}{s}{_H}{{4}}{s}{_H}{{4}}{s}{_H}{{4}}{s}{_H}{{12}}" for s in "-_")
_V4 = r"\d{1,3}(?:\.\d{1,3}){3}"

BUILDER = r"(?<=\()[^()@\s]+@[^()\s]+(?=\))"
UUID = rf"(?<!{_H})(?:{_UUID})(?!{_H})"
UUID_START = rf"(?<=GPU-|MIG-){_H}{{8}}(?:-{_H}{{1,4}}){{0,3}}(?![\-0-9a-fA-F])"
BARE_ID = rf"(?<![0-9A-Za-z])(?:{_H}{{64}}|{_H}{{32}})(?![0-9A-Za-z])"
IPOIB = rf"{_PIECES[0]}{_H}{{2}}(?::{_H}{{2}}){{19}}{_PIECES[1]}"
MAC = rf"{_PIECES[0]}{_H}{{2}}(?::{_H}{{2}}){{5}}{_PIECES[1]}"
MAC_NAME = rf"(?<![0-9A-Za-z])(?:enx|wlx|ibx){_H}{{12}}(?![0-9A-Za-z])"
GUID = rf"{_PIECES[0]}{_H}{{4}}(?::{_H}{{4}}){{3}}{_PIECES[1]}"
GUID_NUMBER = rf"(?i:guid|pdi)\W{{0,12}}(?:0x)?{_H}{{16}}(?![0-9A-Za-z])"
# NCCL's topology files: `%lx` drops leading zeros (src/graph/xml.cc).
XML_GUID = rf"\bguid=[\"']0x{_H}{{1,16}}(?=[\"'])"
XML_HOST_HASH = rf"\bhost_hash=[\"']0x{_H}{{1,16}}(?=[\"'])"
DASHED_EUI = rf"(?<![\w\-]){_H}{{2}}(?:-{_H}{{2}}){{7}}(?![\w\-])"
# At least one group of three digits or a `::`, so that 0:1:2:3:4:5:6:7 is left alone.
IPV6 = rf"(?<![\w:.])(?={_H}*:[0-9a-fA-F:]*:)(?=[0-9a-fA-F:]*(?:{_H}{{3}}|::))[0-9a-fA-F:]+(?:{_V4})?{_PIECES[1]}"
IPV4 = rf"(?<![\w.\-]){_V4}(?:/\d{{1,2}})?(?![\w\-]|\.\d)"
SERIAL = r"(?i:\bserial(?:[ _]?number)?\s*[:=]\s*)(?=[A-Za-z\-]*\d)[\w\-]{5,}"
HOME = r"(?<=/home/)[^/\s:,;'\"]+|(?<=/Users/)[^/\s:,;'\"]+"


def number(text: str) -> int:
    """Return the number that groups of hex digits make."""
    return int(text.replace(":", "").replace("-", ""), 16)


def grouped(value: int, bits: int, digits: int, like: str) -> str:
    """Write a number in groups of hex digits, with the separator and case of `like`."""
    text = f"{value:0{bits // 4}x}"
    separator = ":" if ":" in like else "-"
    return as_case(separator.join(text[n : n + digits] for n in range(0, len(text), digits)), like)


def as_case(text: str, like: str) -> str:
    """Return `text` in upper case where `like` is."""
    return text.upper() if like.isupper() else text


def any_of(words: Iterable[str], before: str = "(?<![0-9A-Za-z])", after: str = "(?![0-9A-Za-z])") -> str:
    """Return a pattern for any of `words`, the longest first; one that never matches for none."""
    alternatives = "|".join(map(re.escape, sorted(words, key=lambda w: (-len(w), w))))
    return f"{before}(?:{alternatives}){after}" if alternatives else "(?!)"


class Identifiers:
    """Finds and replaces.

    Args:
        replacements: what each becomes.
        words: serials, ids and names of this machine with what they become; matched as written.
        users: names of users -> what they become; matched as a part of a path.
        addresses: IPv4 addresses of this machine and its network; others could be version numbers.
    """

    def __init__(
        self,
        replacements: Replacements,
        words: Mapping[str, str],
        users: Mapping[str, str],
        addresses: Iterable[str],
    ) -> None:
        self._map = replacements
        self._addresses = frozenset(addresses)
        m = replacements
        self._forms: list[tuple[str, Callable[[str], str]]] = [
            (BUILDER, lambda t: "user@host"),
            (XML_GUID, self._xml_guid),
            (XML_HOST_HASH, self._xml_host_hash),
            (GUID_NUMBER, lambda t: t[:-16] + f"{m.eui64(int(t[-16:], 16)):016x}"),
            (SERIAL, self._serial),
            (any_of(words), lambda t: words[t]),
            (UUID, m.hexadecimal),
            (UUID_START, m.hexadecimal),
            (BARE_ID, m.hexadecimal),
            (IPOIB, self._ipoib),
            (MAC, lambda t: grouped(m.mac(number(t)), 48, 2, t)),
            (MAC_NAME, lambda t: t[:3] + f"{m.mac(int(t[3:], 16)):012x}"),
            (GUID, lambda t: grouped(m.eui64(number(t)), 64, 4, t)),
            (DASHED_EUI, lambda t: grouped(m.eui64(number(t)), 64, 2, t)),
            (IPV6, self._ipv6),
            (any_of(users, "(?<=/)", r"(?![^/:,;\s'\"])"), lambda t: users[t]),
            (HOME, lambda t: user_name(m, t)),
        ]
        here: list[tuple[str, Callable[[str], str]]] = [(IPV4, self._ipv4)]
        elsewhere: list[tuple[str, Callable[[str], str]]] = [(IPV4, self._ipv4_if_met)]
        self._pattern = re.compile("|".join(f"(?P<f{n}>{p})" for n, (p, _) in enumerate(self._forms + here)))
        # A recording says the same many times: one width for a thousand links.
        self._done: dict[tuple[str, bool], str] = {}
        self._changes = {True: self._forms + here, False: self._forms + elsewhere}

    def replace(self, text: str, addresses: bool = False) -> str:
        """Return `text` with identifiers replaced; with `addresses`, everything of that form is an IPv4 address."""
        known = self._done.get((text, addresses))
        if known is None:
            changes = self._changes[addresses]
            known = self._pattern.sub(lambda m: changes[int((m.lastgroup or "f0")[1:])][1](m[0]), text)
            self._done[text, addresses] = known
        return known

    def _xml_guid(self, text: str) -> str:
        """A GUID as NCCL writes it: the eight bytes as they came from the wire, read as a little-endian number."""
        head, _, digits = text.partition("0x")
        value = int.from_bytes(int(digits, 16).to_bytes(8, "big"), "little")
        new = self._map.eui64(value).to_bytes(8, "little")
        return f"{head}0x{int.from_bytes(new, 'big'):x}"

    def _xml_host_hash(self, text: str) -> str:
        """NCCL's hash of host name and boot id."""
        head, _, digits = text.partition("0x")
        return f"{head}0x{self._map.hexadecimal(digits.zfill(16))}"

    def _serial(self, text: str) -> str:
        start = re.split(r"[:=]\s*", text, maxsplit=1)[1]
        return text[: -len(start)] + self._map.serial(start)

    def _ipv4_if_met(self, text: str) -> str:
        return self._ipv4(text) if text.partition("/")[0] in self._addresses else text

    def _ipv4(self, text: str) -> str:
        address, slash, length = text.partition("/")
        try:
            value = int(ipaddress.IPv4Address(address))
        except ValueError:
            return text
        new = self._map.ipv4(value)
        host_bits = (1 << (32 - min(int(length or 32), 32))) - 1
        # 10.1.0.0/16 names a subnet: what was zero behind the prefix stays zero.
        return f"{ipaddress.IPv4Address(new if value & host_bits else new & ~host_bits)}{slash}{length}"

    def _ipv6(self, text: str) -> str:
        try:
            value = int(ipaddress.IPv6Address(text))
        except ValueError:
            return text
        new = self._map.ipv6(value)
        groups = text.split(":")
        if new == value:
            return text
        if len(groups) == 8 and all(len(g) == 4 for g in groups):
            return grouped(new, 128, 4, text)
        if "." in text:
            return f"::ffff:{ipaddress.IPv4Address(new & 0xFFFFFFFF)}" if new >> 32 == 0xFFFF else text
        return str(ipaddress.IPv6Address(new))

    def _ipoib(self, text: str) -> str:
        """An IPoIB hardware address: four octets of flags and queue pair, and the port's GID (RFC 4391, 9.1.1)."""
        value = number(text)
        return grouped(value >> 128 << 128 | self._map.ipv6(value & (1 << 128) - 1), 160, 2, text)


NO_NAMES = frozenset("localhost root nobody none n/a unknown default ubuntu".split())
"""Words that stand where a name could, and name nobody."""


def user_name(replacements: Replacements, name: str) -> str:
    """Return what a user's name becomes."""
    return name if name.lower() in NO_NAMES else replacements.name("user", name)
