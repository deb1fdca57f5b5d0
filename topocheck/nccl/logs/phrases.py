"""Patterns with gaps (`A.*B`), found in time that grows with the text alone.

A search for `A.*B` tries every `A` with all of the rest, the square of a line that repeats `A`. Its parts, one after
the other from the first place each is found, say the same.
"""

from __future__ import annotations

import re

import msgspec


class _Alternative(msgspec.Struct, frozen=True):
    """`parts` in this order, with any text between them."""

    parts: tuple[re.Pattern[str], ...]

    def found_in(self, text: str) -> bool:
        at = 0
        for part in self.parts:
            m = part.search(text, at)
            if m is None:
                return False
            at = m.end()
        return True


class Phrases:
    """A pattern of alternatives, each of parts with any text between them."""

    def __init__(self, pattern: str, flags: int = 0) -> None:
        every = [(text, _alternative(text, flags)) for text in _split(pattern, "|")]
        whole = [text for text, a in every if len(a.parts) == 1]
        # Those without a gap are found at once.
        self._whole = re.compile("|".join(whole), flags).search if whole else None
        self._rest = tuple(a for text, a in every if text not in whole)

    def search(self, text: str) -> bool:
        """Tell whether one of the alternatives is in a text of one line."""
        if self._whole is not None and self._whole(text):
            return True
        for alternative in self._rest:  # noqa: SIM110 - a generator for each line would take as long as the search
            if alternative.found_in(text):
                return True
        return False


def _alternative(pattern: str, flags: int) -> _Alternative:
    return _Alternative(tuple(re.compile(p, flags) for p in _split(pattern, ".*")))


def _split(pattern: str, sign: str) -> list[str]:
    """Split a pattern where a sign stands outside of brackets."""
    out, depth, start, at = [], 0, 0, 0
    while at < len(pattern):
        c = pattern[at]
        if c == "\\":
            at += 2
            continue
        depth += (c in "([") - (c in ")]")
        if depth == 0 and pattern.startswith(sign, at):
            out.append(pattern[start:at])
            at += len(sign)
            start = at
            continue
        at += 1
    return [*out, pattern[start:]]
