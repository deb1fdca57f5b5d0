"""TOML from elsewhere, read within bounds.

Python's reader takes time with the square of a key's parts: a key of 20,000 parts, 40 KB of text, takes 17 seconds and
1.5 GiB.
"""

from __future__ import annotations

import re
from typing import Any

from topocheck.model.excerpt import excerpt

MAX_KEY_PARTS = 16
"""Parts of a dotted key; those of a policy or rank file have four at most."""
MAX_VALUES = 1 << 16
"""Signs that make a key or a value (`=`, `,`, `[`, `{`)."""

_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_KEY_PARTS}}}"


_PLACE = re.compile(r" \(at line ([0-9]{1,9}), column ([0-9]{1,9})\)$")
"""How tomllib names the place (Lib/tomllib/_parser.py, `suffixed_err_msg`)."""


class TomlError(ValueError):
    """Text that is no TOML, or more than is read; the text names the line, `excerpt` shows it."""

    excerpt: tuple[str, ...] = ()


def parse_toml(data: str | bytes) -> dict[str, Any]:
    """Return the tables of TOML text.

    Raises:
        TomlError: it is no UTF-8, no TOML, nested too deeply, or a key has too many parts.
    """
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
    except UnicodeDecodeError as e:
        raise TomlError(f"byte {e.start} is not UTF-8; expected a TOML file") from None
    if (found := re.search(_LONG_KEY, text)) is not None:
        line = text.count("\n", 0, found.start()) + 1
        raise TomlError(f"line {line}: a key of more than {MAX_KEY_PARTS} parts; expected a short TOML file")
    if sum(text.count(sign) for sign in "=,[{") > MAX_VALUES:
        raise TomlError(f"more than {MAX_VALUES} keys and values; expected a short TOML file")
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise _at_its_place(str(e), text) from None
    except RecursionError:
        raise TomlError("nested too deeply; expected a short TOML file") from None
    except ValueError as e:
        # An integer of thousands of digits: int() refuses it (sys.set_int_max_str_digits).
        raise TomlError(f"holds a value that is no usable number: {str(e)[:80]}") from None


def _at_its_place(message: str, text: str) -> TomlError:
    """Return what Python's reader says, with the place first and the line below it."""
    found = _PLACE.search(message)
    if found is None:  # at the end of the text
        return TomlError(f"not TOML: {message[:1].lower()}{message[1:]}")
    line, column = int(found[1]), int(found[2])
    what = message[: found.start()]
    error = TomlError(f"line {line}, column {column}: not TOML: {what[:1].lower()}{what[1:]}")
    error.excerpt = excerpt(text, (line, column))
    return error
