"""A file's text cut where one output ends and the next begins, as far as that is marked; and made plain before."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topocheck.readers.base import Text
from topocheck.readers.headings import RULE, heading_of

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_MARKS = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u200b": None, "\ufeff": None, "\u2018": "'", "\u2019": "'"})
"""What text programs and web pages put in place of plain blanks and quotes."""
MAX_SECTIONS = 4096


def decoded(data: bytes) -> str:
    """Return a file as text: UTF-16 by its mark or its zeros, else UTF-8 with what is not as U+FFFD; without escapes.

    Lines end with a line feed alone.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = data.decode("utf-16", "replace")
    elif (start := data[:512]).count(0) > len(start) // 3 and 0 not in start[::2]:
        text = data.decode("utf-16-le", "replace")  # Windows without the mark: every other byte of ASCII is 0
    elif start.count(0) > len(start) // 3 and 0 not in start[1::2]:
        text = data.decode("utf-16-be", "replace")
    else:
        text = data.decode("utf-8-sig", "replace")
    if "\r" in text:
        text = re.sub(r"\r+\n?", "\n", text)
    if not text.isascii():
        text = text.translate(_MARKS)
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def sections(name: str, text: str, heading: str = "") -> Iterator[Text]:
    """Yield the parts of a text that headings divide; the whole where there are none.

    A part begins with the line of its heading, and is moved to the left as far as all its other lines are indented or
    quoted. `heading`: what is known of the text as a whole, as the command that printed a file of a sosreport.
    """
    lines = text.split("\n")
    start, last = 0, ""
    after_rule = False
    count = 0
    for n, line in enumerate(lines):
        found = heading_of(line)
        if found is None and after_rule and line.strip():
            found = _old_heading(line, lines[n + 1] if n + 1 < len(lines) else "")
        if line.strip():
            after_rule = RULE.match(line) is not None
        if found is None or count >= MAX_SECTIONS:
            continue
        if any(x.strip() for x in lines[start:n]):
            yield _part(name, lines[start:n], start, last or heading)
            count += 1
        start, last = n, found
    yield _part(name, lines[start:], start, last or heading)


def _old_heading(line: str, following: str) -> str | None:
    """Return the path that begins a part of nvidia-bug-report.log as it was until 2010: a line with nothing else."""
    return line.strip() if re.fullmatch(r"/(?:proc|sys|etc|var)/\S+", line.strip()) and following.strip() else None


def _part(name: str, lines: list[str], start: int, heading: str) -> Text:
    first, rest = lines[:1], lines[1:]
    if heading_of(lines[0]) is None:
        first, rest = [], lines
    return Text(name=name, text="\n".join(first + _plain(rest)), first_line=start + 1, heading=heading)


def _plain(lines: list[str]) -> list[str]:
    """Return lines without what all of them begin with: the mark of a quotation, blanks."""
    full = [x for x in lines if x.strip()]
    if full and all(x.startswith(">") for x in full):
        lines = [x[1:] if x.startswith(">") else x for x in lines]
        full = [x for x in lines if x.strip()]
    indent = min((len(x) - len(x.lstrip(" \t")) for x in full), default=0)
    if indent and (len({x[:indent] for x in full}) == 1):
        return [x[indent:] for x in lines]
    return lines
