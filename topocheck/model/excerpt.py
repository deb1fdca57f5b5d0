"""Where in a text something is wrong, and that line with a caret under the place."""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_BEFORE, MAX_SHOWN = 60, 100
"""Characters of a long line before the place, and in all."""

MAX_BYTES = 1 << 26
"""Size of a document of which an excerpt is made."""

Place = tuple[int, int]
"""Line and column, both from 1."""

_PART = r"""[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'"""
_DOTTED = re.compile(rf"(?:{_PART})(?:[ \t]*\.[ \t]*(?:{_PART}))*")
_TABLE = re.compile(r"[ \t]*\[\[?[ \t]*(?=[^\]\s])")


def excerpt(text: str, place: Place, first_line: int = 1) -> tuple[str, ...]:
    """Return the line of a place with its number, and a caret under the place; nothing where there is no such line.

    Args:
        text: the text, or a part of a file.
        place: line and column in it.
        first_line: the number in the file of the text's first line.
    """
    number, column = place
    lines = text.split("\n", number)
    if not 1 <= number <= len(lines):
        return ()
    line = lines[number - 1].rstrip("\r").replace("\t", " ")
    start = max(column - 1 - MAX_BEFORE, 0)
    margin = f"{number + first_line - 1}"
    return (
        f"  {margin} | {line[start : start + MAX_SHOWN]}",
        f"  {' ' * len(margin)} | {' ' * min(column - 1 - start, MAX_SHOWN)}^",
    )


def place_of_byte(data: bytes, offset: int) -> Place:
    """Return the place of a byte, from 0, of UTF-8 text; what is no UTF-8 counts as one character a byte."""
    before = data[: max(offset, 0)]
    start = before.rfind(b"\n") + 1
    return before.count(b"\n") + 1, len(before[start:].decode("utf-8", "replace")) + 1


def place_of_key(text: str, keys: Sequence[str]) -> Place | None:
    """Return where a key of TOML text is, or of the nearest table or key above it; None where neither is found.

    Args:
        text: the text, one key to a line, as people write it.
        keys: the names of the tables and the key, outermost first; `*` is any name.
    """
    best: tuple[int, Place] | None = None
    table: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        start = _TABLE.match(line)
        found = _DOTTED.match(line, start.end() if start else len(line) - len(line.lstrip()))
        if found is None:
            continue
        parts = [p.strip("\"'") for p in re.findall(_PART, found[0])]
        whole = parts if start else table + parts
        if start:
            table = parts
        if len(whole) <= len(keys) and all(k in ("*", w) for k, w in zip(keys, whole, strict=False)):
            last = found.start() + found[0].rfind(re.findall(_PART, found[0])[-1])
            if best is None or len(whole) > best[0]:
                best = len(whole), (number, last + 1)
    return None if best is None else best[1]


_BYTE = re.compile(r" \(byte ([0-9]{1,12})\)$")


def json_fault(error: Exception, data: bytes) -> tuple[str, tuple[str, ...]]:
    """Return what msgspec says of a malformed document with line and column for its byte, and the excerpt.

    Args:
        error: a `msgspec.DecodeError`; its text ends with ` (byte N)` where the document is malformed.
        data: the document.
    """
    text = str(error)[:200]
    found = _BYTE.search(text)
    if found is None:
        return text, ()
    place = place_of_byte(data, int(found[1]))
    return (
        f"line {place[0]}, column {place[1]}: {text[: found.start()]}",
        excerpt(data.decode("utf-8", "replace"), place) if len(data) <= MAX_BYTES else (),
    )
