"""Answers as plain values: what every encoder takes and every reader gets back the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
_MAX_DEPTH = 16


def plain(value: Any, depth: int = 0) -> Any:
    """Return `value` made of None, bool, int, float, str, lists and str-keyed dicts; bytes only at the top.

    Text that is no valid Unicode gets U+FFFD; whole numbers beyond 64 bits, infinities and what is not a plain
    value at all become their text.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, int):
        return int(value) if _INT_MIN <= value <= _INT_MAX else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value) if depth == 0 else bytes(value).decode("utf-8", "replace")
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return {plain_text(str(k)): plain(v, depth + 1) for k, v in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [plain(v, depth + 1) for v in value]
    return plain_text(str(value))


def plain_text(text: str) -> str:
    """Return `text` with lone surrogates replaced, so that it can be encoded as UTF-8."""
    return str(text) if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
