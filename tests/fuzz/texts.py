"""Mutations of text in lines, of XML, and of bytes."""

from __future__ import annotations

import re
from random import Random
from xml.etree import ElementTree

from tests.fuzz import hostile

_TOKEN = re.compile(r"[A-Za-z0-9_]+|[^A-Za-z0-9_\s]|\s+")


def lines(rng: Random, text: str, most: int = 4, other: str = "") -> str:
    """Return a text with a few mutations of its lines and words; `other` lends lines."""
    rows = text.split("\n")
    lent = other.split("\n") if other else rows
    for _ in range(rng.randint(1, most)):
        _line(rng, rows, lent)
    return rng.choice(("\n",) * 30 + ("\r\n", "\r", "\n\n", "\x85", "\x00")).join(rows)


def _line(rng: Random, rows: list[str], lent: list[str]) -> None:
    if not rows:
        rows.append(hostile.text(rng))
    at = rng.randrange(len(rows))
    pick = rng.randrange(12)
    if pick < 6:
        rows[at] = words(rng, rows[at])
    elif pick == 6:
        del rows[at]
    elif pick == 7:
        rows[at:at] = [rows[at]] * rng.choice((1, 1, 2, 30))
    elif pick == 8:
        other = rng.randrange(len(rows))
        rows[at], rows[other] = rows[other], rows[at]
    elif pick == 9:
        rows.insert(at, words(rng, rng.choice(lent)))
    elif pick == 10:
        rows[at] = hostile.edit(rng, rows[at])
    else:
        rows[at] = rows[at] + rng.choice(lent)


def words(rng: Random, line: str) -> str:
    """Return a line with one of its words changed."""
    tokens = _TOKEN.findall(line)
    if not tokens:
        return hostile.text(rng)
    at = rng.randrange(len(tokens))
    pick = rng.randrange(6)
    if pick < 3:
        tokens[at] = hostile.edit(rng, tokens[at])
    elif pick == 3:
        tokens[at] = hostile.text(rng)
    elif pick == 4:
        del tokens[at]
    else:
        other = rng.randrange(len(tokens))
        tokens[at], tokens[other] = tokens[other], tokens[at]
    return "".join(tokens)


def broken(rng: Random, data: bytes, most: int = 6) -> bytes:
    """Return bytes that were flipped, cut, repeated or joined with others."""
    out = bytearray(data)
    for _ in range(rng.randint(1, most)):
        at = rng.randrange(len(out) + 1)
        pick = rng.randrange(7)
        if pick < 3 and at < len(out):
            out[at] = rng.randrange(256)
        elif pick == 3:
            del out[at:]
        elif pick == 4:
            del out[at : at + rng.randrange(1, 64)]
        elif pick == 5:
            out[at:at] = rng.randbytes(rng.randrange(1, 16))
        else:
            out[at:at] = out[at : at + rng.randrange(1, 200)]
    return bytes(out)


def xml(rng: Random, text: str, most: int = 4) -> str:
    """Return XML with elements and attributes mutated; what cannot be parsed is mutated as lines."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return lines(rng, text)
    for _ in range(rng.randint(1, most)):
        _element(rng, root)
    escape = rng.random() < 0.8
    return _written(root, escape)


def _element(rng: Random, root: ElementTree.Element) -> None:
    every = list(root.iter())
    at, other = rng.choice(every), rng.choice(every)
    pick = rng.randrange(10)
    if pick < 4 and at.attrib:
        name = rng.choice(list(at.attrib))
        at.set(name, hostile.edit(rng, at.get(name, "")))
    elif pick == 4 and at.attrib:
        at.attrib.pop(rng.choice(list(at.attrib)))
    elif pick == 5:
        at.set(rng.choice(("x", *other.attrib)), rng.choice((hostile.text(rng), *other.attrib.values())))
    elif pick == 6:
        at.tag = rng.choice(
            (other.tag, hostile.text(rng), "gpu", "nic", "net", "pci", "cpu", "nvlink", "c2c", "system")
        )
    elif pick == 7 and len(at):
        at.remove(rng.choice(list(at)))
    elif pick == 8:
        at.extend([_copied(other)] * rng.choice((1, 1, 2, 20)))
    else:
        at.text = hostile.text(rng)


def _copied(element: ElementTree.Element) -> ElementTree.Element:
    return ElementTree.fromstring(ElementTree.tostring(element)) if _is_sound(element) else ElementTree.Element("pci")


def _is_sound(element: ElementTree.Element) -> bool:
    try:
        ElementTree.fromstring(ElementTree.tostring(element))
    except (ElementTree.ParseError, UnicodeEncodeError, ValueError):
        return False
    return True


def _written(element: ElementTree.Element, escape: bool) -> str:
    def put(value: str) -> str:
        if not escape:
            return value
        return value.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")

    attributes = "".join(f' {k}="{put(v)}"' for k, v in element.attrib.items())
    inside = put(element.text or "") + "".join(_written(e, escape) + (e.tail or "") for e in element)
    return f"<{element.tag}{attributes}>{inside}</{element.tag}>" if inside else f"<{element.tag}{attributes}/>"
