"""Keyed replacements of identifiers that keep what relates them.

Each is a permutation that depends on a secret key: equal stays equal and different stays different. All but names
keep prefixes (two values that share their first n bits or digits share the first n afterwards), in the manner of
Crypto-PAn (Xu, Fan, Ammar and Moon, 2002), so subnets, neighbouring ports and abbreviated UUIDs keep their meaning.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence

from topocheck.model.base import is_digits

_V4_KEPT_WHOLE = ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")  # this host, loopback, multicast and netmasks
_V4_CLASSES = (
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"),
    *("192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
)
"""IANA IPv4 special-purpose registry (RFC 6890): what lies in one of these stays in it, and nothing else enters."""
_V6_CLASSES = ("::/64", "fe80::/64", "fe80::/10", "fec0::/10", "fc00::/8", "fd00::/8", "ff00::/8", "2001:db8::/32")
"""Likewise for the upper half of an IPv6 address or GID (RFC 6890; fe80::/64 is InfiniBand's default subnet)."""

_MAC_GROUPS = ((0x01005E, 24), (0x3333, 16), (0x0180C2, 24))
"""Multicast of IPv4 (RFC 1112), of IPv6 (RFC 2464), and of bridges (IEEE 802.1Q): (prefix, bits)."""

_Net = tuple[int, int]
"""(prefix as a number of `length` bits, length)."""


def _nets(texts: Sequence[str], bits: int) -> tuple[_Net, ...]:
    out = []
    for text in texts:
        net = ipaddress.ip_network(text)
        out.append((int(net.network_address) >> (net.max_prefixlen - net.prefixlen), net.prefixlen))
    return tuple(n for n in out if n[1] <= bits)


_V4_WHOLE = _nets(_V4_KEPT_WHOLE, 32)
_V4_ALL = _V4_WHOLE + _nets(_V4_CLASSES, 32)
_V6_ALL = _nets(_V6_CLASSES, 64)


def _within(value: int, bits: int, nets: Sequence[_Net]) -> bool:
    return any(length <= bits and value >> (bits - length) == prefix for prefix, length in nets)


class Mapping:
    """The replacements under one key (at least 16 random bytes; with the key lost they cannot be undone)."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._counts: dict[str, dict[str, int]] = {}
        self._known: dict[tuple[str, int], int] = {}

    def _number(self, purpose: str, prefix: str) -> int:
        digest = hashlib.blake2b(f"{purpose}/{prefix}".encode(), key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "big")

    def _bits(self, purpose: str, value: int, bits: int, keep: int = 0, classes: Sequence[_Net] = ()) -> int:
        """Return `value` with each bit flipped or not by what the key says of the bits before it.

        The first `keep` bits stay, and so does every bit at which a class of `classes` could be entered or left.
        """
        if (known := self._known.get((purpose, value))) is not None:
            return known
        out = 0
        for done in range(bits):
            prefix = value >> (bits - done)
            bit = value >> (bits - done - 1) & 1
            boundary = any(length > done and net >> (length - done) == prefix for net, length in classes)
            if done >= keep and not boundary:
                bit ^= self._number(purpose, f"{done}:{prefix:x}") & 1
            out = out << 1 | bit
        self._known[purpose, value] = out
        return out

    def ipv4(self, value: int) -> int:
        """Return the replacement of an IPv4 address; loopback, zero, multicast and netmasks stay."""
        return value if _within(value, 32, _V4_WHOLE) else self._bits("ipv4", value, 32, 0, _V4_ALL)

    def ipv6(self, value: int) -> int:
        """Return the replacement of an IPv6 address or GID.

        The two halves are replaced apart, so that a port's GUID is the same with every subnet prefix.
        """
        high, low = value >> 64, value & (1 << 64) - 1
        if value in (0, 1) or high >> 56 == 0xFF:
            return value
        if high == 0 and low >> 32 == 0xFFFF:
            return 0xFFFF << 32 | self.ipv4(low & 0xFFFFFFFF)
        return self._bits("ipv6", high, 64, 0, _V6_ALL) << 64 | self.eui64(low)

    def mac(self, value: int) -> int:
        """Return the replacement of a MAC; the maker's number stays, as do zero, broadcast and well-known groups."""
        if value in (0, (1 << 48) - 1) or any(value >> (48 - bits) == prefix for prefix, bits in _MAC_GROUPS):
            return value
        locally_administered = value >> 41 & 1
        return self._bits("mac", value, 48, 8 if locally_administered else 24)

    def eui64(self, value: int) -> int:
        """Return the replacement of a GUID or interface id; one made from a MAC is made from the MAC's replacement.

        The two ways of making one: `ff:fe` in the middle with the universal bit turned (RFC 4291, appendix A), and
        `03:00` in the middle (NVIDIA's adapters).
        """
        middle = value >> 24 & 0xFFFF
        if value == 0:
            return 0
        if middle in (0xFFFE, 0x0300):
            turn = 1 << 41 if middle == 0xFFFE else 0
            mac = self.mac((value >> 40 << 24 | value & 0xFFFFFF) ^ turn) ^ turn
            return mac >> 24 << 40 | middle << 24 | mac & 0xFFFFFF
        # Numbers given by hand (::1, ::2) have no maker's number to keep; nor have random ones.
        return self._bits("eui64", value, 64, 0 if value >> 57 & 1 or value >> 40 == 0 else 24)

    def hexadecimal(self, text: str) -> str:
        """Return the replacement of the hex digits of a UUID or other id, whole or its beginning; others stay."""
        if not text.strip("0-_"):
            return text
        out, seen = [], ""
        for c in text:
            if c in "-_":
                out.append(c)
                continue
            out.append(f"{int(c, 16) ^ self._number('hex', seen) % 16:x}")
            seen += c.lower()
        return "".join(out).upper() if text.isupper() else "".join(out)

    def serial(self, text: str) -> str:
        """Return the replacement of a serial number: a digit for a digit, a letter for a letter, the rest stays."""
        if not text.strip("0 -.:"):
            return text
        out = []
        for n, c in enumerate(text):
            number = self._number("serial", text[:n].lower())
            if is_digits(c):
                out.append(str((int(c) + number) % 10))
            elif c.isascii() and c.isalpha():
                first = "A" if c.isupper() else "a"
                out.append(chr(ord(first) + (ord(c) - ord(first) + number) % 26))
            else:
                out.append(c)
        return "".join(out)

    def name(self, kind: str, text: str) -> str:
        """Return `kind-1`, `kind-2`, ... in the order in which names are first met, case ignored."""
        return f"{kind}-{self.count(kind, text.lower())}"

    def count(self, kind: str, text: str) -> int:
        """Return 1, 2, ... in the order in which the texts of one kind are first met."""
        seen = self._counts.setdefault(kind, {})
        return seen.setdefault(text, len(seen) + 1)

    def uid(self, number: int) -> int:
        """Return the replacement of a user or group id: those of the system stay, others become 1000, 1001, ..."""
        if not _FIRST_USER <= number <= _LAST_USER or number == _NOBODY:
            return number
        return _FIRST_USER - 1 + self.count("uid", str(number))

    def shape(self, text: str) -> str:
        """Return the replacement of a name of which the beginning means something, as that of a network interface.

        Names that begin alike do so afterwards. Letters become a, b, ... in the order in which they are first met
        after one beginning, so that names of the same pattern are replaced alike in every recording. The first four
        digits and the marks between words stay.
        """
        out, digits = [], 0
        for n, c in enumerate(text):
            digit = is_digits(c)
            digits += digit
            if (digit and digits <= _DIGITS_KEPT) or c in "._-":
                out.append(c)
            else:
                out.append(_letters(self.count(f"after {text[:n]}", c) - 1))
        return "".join(out)


_FIRST_USER, _LAST_USER, _NOBODY = 1000, 0xFFFFFFFE, 65534
"""Of Linux distributions (login.defs, UID_MIN); -1 is no user, and 65534 is the kernel's overflow id."""
_DIGITS_KEPT = 4


def _letters(number: int) -> str:
    """Return a, b, ... y, za, zb, ...: no code is the beginning of another."""
    return "z" * (number // 25) + chr(ord("a") + number % 25)
