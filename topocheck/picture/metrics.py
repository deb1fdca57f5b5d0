"""How wide text is.

Without a browser it can only be estimated: from above, after DejaVu Sans, the widest of the usual fonts.
"""

from __future__ import annotations

import unicodedata

_NARROW = frozenset("fijlrtI.,:;'|!()[]/ -\"")
_WIDE = frozenset("mwMW@%—…")
BOLD = 1.13


def width(text: str, size: float, bold: bool = False) -> float:
    """Return the width of a line of text in pixels, for a font of `size` pixels."""
    return sum(map(_em, text)) * size * (BOLD if bold else 1.0)


def _em(c: str) -> float:
    if c in _NARROW:
        return 0.42
    if c in _WIDE or unicodedata.east_asian_width(c) in "WF":
        return 1.0
    return 0.7 if c.isupper() else 0.64


def fit(text: str, room: float, size: float, bold: bool = False) -> str:
    """Return text that is no wider than `room` pixels: shortened at its end where it must be."""
    if width(text, size, bold) <= room:
        return text
    while text and width(text + "…", size, bold) > room:
        text = text[: -max(1, len(text) // 16)]
    return text.rstrip() + "…"


def lines(text: str, room: float, size: float, most: int) -> list[str]:
    """Return text in lines of at most `room` pixels, broken at blanks, no more than `most` of them."""
    out: list[str] = []
    for word in text.split():
        if out and width(f"{out[-1]} {word}", size) <= room:
            out[-1] += f" {word}"
        else:
            out.append(word)
    if len(out) > most:
        out = [*out[: most - 1], " ".join(out[most - 1 :])]
    return [fit(x, room, size) for x in out]
