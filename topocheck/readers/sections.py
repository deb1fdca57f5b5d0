"""A file's text cut where one output ends and the next begins, as far as that is marked; and made plain before."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from topocheck.readers.base import Text

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_RULE = re.compile(r"^_{20,}[^\S\n]*(?:\n|\Z)", re.MULTILINE)
"""nvidia-bug-report.sh draws such a line between its parts."""
MAX_SECTIONS = 4096


def decoded(data: bytes) -> str:
    """Return a file as text: UTF-16 by its mark, else UTF-8 with what is not as U+FFFD; without escapes and CR."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = data.decode("utf-16", "replace")
    else:
        text = data.decode("utf-8-sig", "replace")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def sections(name: str, text: str) -> Iterator[Text]:
    """Yield the parts of a text that long lines of `_` divide; the whole where there are none."""
    start, first_line = 0, 1
    for rule in itertools.islice(_RULE.finditer(text), MAX_SECTIONS):
        # Without the line feed before the rule.
        yield Text(name=name, text=text[start : max(start, rule.start() - 1)], first_line=first_line)
        first_line += text.count("\n", start, rule.end())
        start = rule.end()
    yield Text(name=name, text=text[start:], first_line=first_line)
