"""How text from elsewhere is put into each format: one function for each kind of quoting, and no other place does it.

Names of hosts, devices and files, driver strings and messages can hold anything: line breaks, terminal escapes,
quotes, markup, formulas. Every painter and exporter passes them through the function of its format. Where a format
has no way to quote a name, model/names.py says which names it can hold, and any other is refused or left out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

# All that Unicode calls control (Cc), format (Cf), line or paragraph separator (Zl, Zp) or surrogate (Cs), but for tab
# and line feed, and what it calls Default_Ignorable_Code_Point: a terminal acts on them, or shows other text than there
# is (Unicode Standard Annexes 9 and 31; DerivedCoreProperties.txt).
_UNSEEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000110bd"
    "\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_HIDDEN = f"[{_UNSEEN}\ud800-\udfff]"
# The others are compiled where they are used: most commands use none.
_LINE_BREAKS = r"[\n\t]+"
_MARKDOWN = r"([\\`*_\[\]<>|~&$#])"
_MARKDOWN_BLOCK = r"([0-9]{0,9})([-+.)])(?=\s|$|-+$)"
"""What begins a list or a rule where a line begins with it."""
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_NUMBER = r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"


def terminal_text(text: str) -> str:
    """Return text whose every character can be seen, with U+FFFD for the others; line feeds and tabs stay."""
    return text if text.isascii() and text.isprintable() else re.sub(_HIDDEN, "\ufffd", text)


def one_line(text: str) -> str:
    """Return text for a part of one line: as `terminal_text`, and line feeds and tabs are blanks."""
    return text if text.isascii() and text.isprintable() else re.sub(_LINE_BREAKS, " ", re.sub(_HIDDEN, "\ufffd", text))


def name_text(text: str) -> str:
    """Return a name for a line that is laid out by hand: as `one_line`, and no blanks with which to lay out more."""
    return " ".join(one_line(text).split())


def json_text(value: Any) -> str:
    r"""Return a value as indented JSON with a final newline; what cannot be seen is written as `\u....`.

    Every reader gets back what went in, but for lone surrogates, which are not Unicode and become U+FFFD.
    """
    return _json(value) + "\n"


class Members(dict[str, Any]):
    """The members of an object that is written in pieces.

    A member may be an iterator, whose items are taken as they are written, or such an object itself.
    """


def json_pieces(members: Members) -> Iterator[str]:
    """Yield, in pieces, what `json_text` makes of an object: what it says of all pairs is never in memory at once."""
    yield from _object_pieces(members, 0)
    yield "\n"


_ITEMS = 256
"""Items of an iterator that make one piece: half a megabyte of pairs, which a processor's cache holds."""


def _object_pieces(members: Members, depth: int) -> Iterator[str]:
    yield "{"
    between = "\n"
    for name, value in members.items():
        if isinstance(value, Members | Iterator):
            yield f"{between}{'  ' * (depth + 1)}{_json(name)}: "
            yield from (
                _object_pieces(value, depth + 1) if isinstance(value, Members) else _list_pieces(value, depth + 1)
            )
        else:
            yield between + _inside({name: value}, depth)
        between = ",\n"
    yield f"\n{'  ' * depth}}}" if members else "}"


def _list_pieces(items: Iterator[Any], depth: int) -> Iterator[str]:
    between = "[\n"
    while some := list(itertools.islice(items, _ITEMS)):
        yield between + _inside(some, depth)
        between = ",\n"
    yield "[]" if between == "[\n" else f"\n{'  ' * depth}]"


def _inside(value: Any, depth: int) -> str:
    """Return the lines between the brackets of an object or list that stands in `depth` others."""
    for _ in range(depth):
        value = [value]
    # Each bracket is a line of its own, indented by two blanks more than the one around it.
    brackets = (depth + 1) * (depth + 2)
    return _json(value)[brackets:-brackets]


def _json(value: Any) -> str:
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_without_surrogates(msgspec.to_builtins(value, str_keys=True)))
    # Each form is let go of as soon as there is the next: the whole of a large machine takes 200 MB.
    del value
    data = msgspec.json.format(data, indent=2)
    text = data.decode()
    del data
    return text if text.isascii() and "\x7f" not in text else re.sub(_HIDDEN, _json_escape, text)


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    return [_without_surrogates(v) for v in value] if isinstance(value, list | tuple) else value


def markdown_text(text: str) -> str:
    """Return text that Markdown (CommonMark, and GitHub's tables and mathematics) shows as it is, on one line."""
    return re.sub(_MARKDOWN, r"\\\1", one_line(text).strip())


def markdown_item(text: str, depth: int = 0) -> str:
    """Return an item of a list with its text shown as it is; `depth` nests it."""
    escaped = markdown_text(text)
    block = re.match(_MARKDOWN_BLOCK, escaped)
    return f"{'  ' * depth}- " + (f"{block[1]}\\{escaped[block.start(2) :]}" if block else escaped)


def markdown_bold(text: str) -> str:
    """Return text in bold; nothing where it is empty, since four asterisks alone are a rule."""
    shown = markdown_text(text)
    return f"**{shown}**" if shown else ""


def markdown_code(text: str) -> str:
    """Return text as a code span, which may stand in a table; accents and bars become apostrophes."""
    return f"`{re.sub('[`|]', chr(39), one_line(text))}`"


def markdown_row(cells: Iterable[str]) -> str:
    """Return a row of a table, its cells shown as they are."""
    return f"| {' | '.join(map(markdown_text, cells))} |"


def csv_text(head: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as CSV (RFC 4180, with line feeds): a line for the names of the columns, then one a row."""
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([csv_cell(c) for c in row] for row in rows)
    return out.getvalue()


def csv_cell(value: object) -> object:
    """Return the value of a cell: None is empty; a text that a spreadsheet would run gets an apostrophe before it."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) and not re.fullmatch(_NUMBER, text) else text


def xml_text(text: str) -> str:
    """Return text that XML 1.0 can hold, on one line; the writer of the XML escapes its markup."""
    return one_line(text).replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd")


def xml_comment(text: str) -> str:
    """Return a comment of one line, which its text cannot end."""
    return f"<!-- {re.sub('-(?=-)', '- ', xml_text(text))} -->"


def prometheus_label(text: str) -> str:
    """Return the value of a label; the client library escapes quotes and backslashes, and no reader takes a NUL."""
    return one_line(text)


def reason_text(text: str) -> str:
    """Return text for the one line that a scheduler or a monitor keeps.

    Without quotes, accents, backslashes and dollar signs: Node Health Check hands a reason to `eval` in single quotes
    (its function `die`), and sites do worse.
    """
    printable = "".join(c if c.isprintable() else " " for c in text)
    apostrophes = re.sub(r"(?<=\w)'(?=\w)", "\u2019", printable)
    return " ".join(re.sub("['\"`$]", "", apostrophes).replace("\\", "/").split())


def nagios_text(text: str) -> str:
    """Return text for the status line: as `reason_text`, and without the bar that begins the performance data."""
    return reason_text(text).replace("|", "/")


def nagios_label(text: str) -> str:
    """Return a label of performance data, which stands in single quotes."""
    return re.sub(r"[^A-Za-z0-9_.:/-]+", "_", text) or "_"


def kubernetes_label(text: str) -> str:
    """Return the value of a label: at most 63 of [A-Za-z0-9._-], the first and last a letter or digit."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("._-") or "unknown"


def comment(text: str) -> str:
    """Return a comment line of a shell script, of Slurm's files, of YAML or of a rankfile."""
    return f"# {one_line(text)}".rstrip("\\ ")


def toml_value(value: str | int | float | bool) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode().replace("\\", "\\\\").replace('"', '\\"')
        return '"' + re.sub(f"[\n\t{_UNSEEN}]", lambda m: f"\\U{ord(m[0]):08x}", text) + '"'
    return json_text(value).strip()


def yaml_string(text: str) -> str:
    """Return a double-quoted YAML scalar."""
    return '"' + one_line(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
