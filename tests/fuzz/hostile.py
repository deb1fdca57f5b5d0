"""Values that programs trip over."""

from __future__ import annotations

from random import Random
from typing import Any

FORGED = "FORGEDLINE"
"""Begins what a line break in a value would turn into a line of its own."""

DIGITS = ("²", "٣", "１２", "𝟗", "Ⅷ", "½", "৪৫", "1²", "²1", "1²1")
"""Digits that are none of ASCII's, alone and among these."""

NUMBER_TEXTS = (
    *DIGITS, "0x10", "0X", "0b1", "0o7", "1_000", "1__0", "_1", " 1 ", "\t7\n",
    "+1",
    "-1", "--1", "-0", "1e5", "1e400", "1E-400", "1.2.3", "1.", ".5", ".", "1,5", "1,000", "inf", "-inf", "nan", "NaN",
    "Infinity", "∞", "", "00", "007", "9" * 25, "9" * 5000, "-" + "9" * 5000, "0." + "0" * 400 + "1", "4294967295",
    "4294967296", "18446744073709551615", "18446744073709551616", "-9223372036854775809", "2147483648", "65536", "true",
    "None", "null", "N/A", "unlimited", "max", "0x" + "f" * 40, "0xZZ", "١٢٫٥", "1\x00", "1 2", "1/0", "0/0", "１.５",
)  # fmt: skip

TEXTS = (
    "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x1b]8;;http://example.invalid\x1b\\x\x1b]8;;\x1b\\", "\x9b2J",
    "\u202egnp.exe",
    "\u2066a\u2069", "\u200f", "\x7f\x7f", "\x08\x08\x08", "a\x00b", "\x0c", "\x0b", f"a\n{FORGED}", f"a\r{FORGED}",
    f"a\r\n{FORGED}", f"a\x85{FORGED}", f"a\u2028{FORGED}", f"\n\n{FORGED} state=ok", "|", "a|b", "`id`", "$(id)",
    "';id;'",
    '"', "'", "\\", "\\n", "%s%n", "{0}", "{x!r}", "<b>&amp;</b>", "]]>", "<!--", "-->", "&#0;", "&x;", "# heading",
    "- item",
    "| a | b |", "[x](javascript:0)", "=1+1", "@x", "../../etc/passwd", "/", "..", ".", "~", "-", "--", "-rf",
    "--help", "C:\\", "*",
    "?", "[a-", "a[1-", "n[1-3]", "n[3-1]", "n[1-99999999999]", "(", "+*", "\ud800", "\udcff", "\ufeff", "\ufffd",
    "\U0010ffff",
    "é", "e\u0301", "ﬀ", "İ", "ß", "日本", "👩‍👩‍👧", "a" * 300, "b" * 5000, "x " * 400, " ", "\t", "  lead", "trail  ",
    "A,B;C:D",
    "a=b", "a:b", ":", "::", "::1", "fe80::1%eth0", "0.0.0.0", "999.1.1.1", "1.2.3.4/99", "0000:00:00.0",
    "00000000:FF:1F.7",
    "ffffffff:ff:1f.7", "0000:3b:00.0", "0000:3B:00.9", "3b:00.0", "GPU-", "GPU-0", "MIG-x", "mlx5_", "mlx5_²",
    "NV²", "NV0",
    "NV99999", "mlx5_0:1", "2.²", "16.0 GT/s PCIe", "² GT/s", "GPU²", "NIC²", "_", "None", "null", "N/A", "Unknown",
    "not available",
)  # fmt: skip

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 257, 1000, 4095, 65535, 65536,
    10**6, 10**9,
    2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -2, -(2**31), -(2**63),
    -(2**63) - 1,
    0.0, -0.0, 0.5, 1.5, -1.5, 1e-9, 5e-324, 1e18, 1e300, 1.7976931348623157e308, -1e300, float("inf"),
    float("-inf"), float("nan"),
)  # fmt: skip

_ALPHABET = (
    "".join(t for t in TEXTS if len(t) < 4) + "0123456789abcdefxyzABC _-.:/,;=|[](){}<>\"'\n\r\t\x1b\x00²٣１\u202e\x9b"
)


def text(rng: Random) -> str:
    """Return a hostile text."""
    pick = rng.random()
    if pick < 0.45:
        return rng.choice(TEXTS)
    if pick < 0.75:
        return rng.choice(NUMBER_TEXTS)
    if pick < 0.9:
        return "".join(rng.choice(_ALPHABET) for _ in range(rng.randrange(12)))
    return rng.choice(TEXTS) + rng.choice(NUMBER_TEXTS)


def raw(value: str) -> bytes:
    """Return the bytes of a text: those it was read from, where it was; a surrogate of another kind as UTF-8 would."""
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")


def number(rng: Random) -> int | float:
    """Return a hostile number."""
    value: int | float = rng.choice(NUMBERS)
    return value


def scalar(rng: Random) -> Any:
    """Return a value of any plain type."""
    pick = rng.randrange(5)
    if pick == 0:
        return number(rng)
    if pick == 1:
        return text(rng)
    return rng.choice((None, True, False, [], {}, "", 0, [None], {"": None}, [[]], 1, "x", 1.5))


def deep(rng: Random) -> Any:
    """Return a value nested deeply, or long."""
    pick = rng.randrange(4)
    if pick == 0:
        return nested(rng.choice((10, 60, 200)))
    if pick == 1:
        return [scalar(rng)] * rng.choice((10, 1000, 20000))
    if pick == 2:
        return {str(i): i for i in range(rng.choice((10, 1000)))}
    return {"a": nested(50)}


def nested(depth: int) -> Any:
    """Return lists in lists."""
    out: Any = []
    for _ in range(depth):
        out = [out]
    return out


def edit(rng: Random, value: str) -> str:
    """Return a text a few edits away, or a hostile one."""
    pick = rng.randrange(10)
    if not value or pick == 0:
        return text(rng)
    at = rng.randrange(len(value) + 1)
    if pick in (1, 2):
        return value[:at] + text(rng) + value[at:]
    if pick == 3:
        return value[:at]
    if pick == 4:
        return value[at:]
    if pick == 5:
        return value + value
    if pick == 6:
        return value.swapcase()
    if pick == 7:
        return value.replace(rng.choice(value), rng.choice(_ALPHABET))
    return _renumber(rng, value)


def _renumber(rng: Random, value: str) -> str:
    """Put another number where one stands."""
    digits = [i for i, c in enumerate(value) if c.isdigit()]
    if not digits:
        return value + rng.choice(NUMBER_TEXTS)
    start = end = rng.choice(digits)
    while end < len(value) and value[end].isdigit():
        end += 1
    return value[:start] + rng.choice(NUMBER_TEXTS) + value[end:]
