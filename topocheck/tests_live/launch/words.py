"""What ranks say to each other: decoded strictly, and what is invalid is reported of the rank that sent it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from topocheck.model.address import format_cpulist

_T = TypeVar("_T")


class InvalidWordError(Exception):
    """A rank sent something invalid; says which and what was expected."""


def read(text: bytes, kind: type[_T], whose: str) -> _T:
    """Return what `whose` (`rank 3`, `node a`) sent, in MessagePack.

    Raises:
        InvalidWordError: it is not of that kind.
    """
    try:
        return msgspec.msgpack.decode(text, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as e:
        raise InvalidWordError(f"{whose} sent something invalid: {plain(str(e))}") from None


def plain(text: str, most: int = 200) -> str:
    """Return text from another rank in one line, without what a terminal would take for a command."""
    return "".join(c if c.isprintable() else "?" for c in text)[:most]


def ranks_text(ranks: Iterable[int]) -> str:
    """Return `rank 3`, or `ranks 0-11, 14` of several."""
    numbers = sorted(set(ranks))
    return f"rank{'s' if len(numbers) != 1 else ''} {format_cpulist(numbers).replace(',', ', ')}"
