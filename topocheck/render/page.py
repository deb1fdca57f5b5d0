"""Text for a person: lines of styled spans, wrapped to a width, plain in a pipe and coloured on a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

import msgspec

from topocheck.render.quoting import one_line

Span = tuple[str, str]
"""Text and its rich style; the empty style is plain."""


class Style(msgspec.Struct, frozen=True):
    """How a page is laid out: columns of text, and whether colours may be used."""

    width: int = 80
    colour: bool = False


def flowing(text: str) -> str:
    """Return text to be wrapped: one line, without blanks that would push what follows to the start of the next."""
    text = one_line(text)
    return re.sub(" {3,}", "  ", text) if "   " in text else text


class Page:
    """Collects lines; `render` gives the text. What is added is cleaned here, and never makes more lines of its own."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self.lines: list[list[Span]] = []

    def length(self) -> int:
        """Return how many lines there are so far."""
        return len(self.lines)

    def line(self, *spans: Span | str) -> None:
        """Add one line as it is; the caller keeps it within the width."""
        self.lines.append([(one_line(s), "") if isinstance(s, str) else (one_line(s[0]), s[1]) for s in spans])

    def blank(self) -> None:
        """Add an empty line, never two in a row and never at the top."""
        if self.lines and self.lines[-1]:
            self.lines.append([])

    def heading(self, text: str) -> None:
        """Start a section."""
        self.blank()
        self.text(text, indent=0, style="bold", hang=2)

    def text(self, text: str, indent: int = 2, style: str = "", hang: int = 0) -> None:
        """Add text wrapped to the width; following lines are indented by `hang` more.

        A word longer than a line (a path, a command) stays whole, so that it can be copied.
        """
        wrapped = textwrap.wrap(
            flowing(shortened(text)),
            max(self.style.width, indent + hang + 20),
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + hang),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for row in wrapped or [""]:
            self.line((row, style))

    def pair(self, name: str, value: str, indent: int = 2, column: int = 18) -> None:
        """Add `name   value`, the value wrapped beside its name."""
        label = f"{' ' * indent}{name}".ljust(indent + column - 1) + " "
        rows = textwrap.wrap(
            flowing(shortened(value)),
            max(self.style.width - len(label), 20),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
        self.line((label, "dim"), rows[0])
        for row in rows[1:]:
            self.line(" " * len(label) + row)

    def table(
        self,
        head: Sequence[str],
        rows: Iterable[Sequence[Span | str]],
        indent: int = 2,
        right: frozenset[int] = frozenset(),
        spare: int | None = None,
    ) -> None:
        """Add a table; cells are wrapped where the width is short, those of the widest columns first.

        Words are broken only where the table would not fit otherwise, and PCI addresses never: what is copied from a
        report must be found on the machine.

        Args:
            head: column names; empty for no heading line.
            rows: one sequence of cells a row.
            indent: columns left of the table.
            right: indices of the columns that are aligned to the right.
            spare: the column to leave out where the words of all do not fit.
        """
        spans = [[(c, "") if isinstance(c, str) else c for c in r] for r in rows]
        cells = [[(flowing(shortened(text)), style) for text, style in r] for r in spans]
        if not cells:
            return
        head = [flowing(h) for h in head]
        every = [*([head] if head else []), *([t for t, _ in r] for r in cells)]
        columns = list(zip(*every, strict=True))
        words = [max((len(w) for text in column for w in text.split()), default=0) for column in columns]
        widths = [max(map(len, column)) for column in columns]
        room = self.style.width - indent - 2 * (len(widths) - 1)
        if spare is not None and sum(words) > room:
            kept = [i for i in range(len(widths)) if i != spare]
            moved = frozenset(kept.index(i) for i in right if i != spare)
            self.table([head[i] for i in kept] if head else [], [[r[i] for i in kept] for r in spans], indent, moved)
            return
        addresses = [max((len(w) for t in column for w in _ADDRESS.findall(t)), default=0) for column in columns]
        _fit(widths, room, words)
        if any(addresses):
            _fit(widths, room, words, narrowest=1)
        _fit(widths, room, addresses)
        if head:
            self._row([(h, "dim") for h in head], widths, indent, right)
        for r in cells:
            self._row(r, widths, indent, right)

    def _row(self, cells: Sequence[Span], widths: Sequence[int], indent: int, right: frozenset[int]) -> None:
        """Add one row of a table, of as many lines as its longest cell takes."""
        wrapped = [
            textwrap.wrap(text, max(w, 1), break_long_words=True, break_on_hyphens=False) or [""]
            for (text, _), w in zip(cells, widths, strict=True)
        ]
        for k in range(max(map(len, wrapped))):
            spans: list[Span] = [(" " * indent, "")]
            for i, (pieces, w) in enumerate(zip(wrapped, widths, strict=True)):
                piece = pieces[k] if k < len(pieces) else ""
                spans += [(piece.rjust(w) if i in right else piece.ljust(w), cells[i][1]), ("  ", "")]
            self.lines.append(_strip(spans))

    def render(self) -> str:
        """Return the page as text with a final newline; with ANSI colours where the style has them."""
        if self.style.colour:
            return _coloured(self.lines)
        return "\n".join("".join(t for t, _ in spans).rstrip() for spans in self.lines) + "\n"


MAX_CHARS = 1 << 14


def shortened(text: str) -> str:
    """Return the beginning of a text that is longer than anybody reads, with its length; any other as it is."""
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}... ({len(text)} characters)"


_NARROWEST = 8
_ADDRESS = re.compile(r"(?a)\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\S*")


def _fit(widths: list[int], room: int, least: list[int], narrowest: int = _NARROWEST) -> None:
    """Narrow the widest columns, one character at a time, until all fit into `room` or none can give more."""
    # A column wider than all the room gives way before any other: that much is taken off at once.
    widths[:] = [min(w, max(room, low, narrowest)) for w, low in zip(widths, least, strict=True)]
    while sum(widths) > room:
        able = [i for i, w in enumerate(widths) if w > max(least[i], narrowest)]
        if not able:
            return
        widths[max(able, key=widths.__getitem__)] -= 1


def _strip(spans: list[Span]) -> list[Span]:
    while spans and not spans[-1][0].strip():
        spans.pop()
    return [*spans[:-1], (spans[-1][0].rstrip(), spans[-1][1])] if spans else []


def _coloured(lines: list[list[Span]]) -> str:
    import io

    from rich.console import Console
    from rich.text import Text

    console = Console(
        file=io.StringIO(), force_terminal=True, width=10_000, color_system="standard", legacy_windows=False
    )
    for spans in lines:
        console.print(Text.assemble(*spans), soft_wrap=True)
    out = console.file
    assert isinstance(out, io.StringIO)
    return out.getvalue()


_PLAIN = str.maketrans(
    {"×": "x", "→": "->", "–": "-", "—": "-", "…": "...", "µ": "u", "├": "|", "└": "`", "─": "-", "│": "|"}
    | {"▼": "!", "✕": "x", "◌": "~"}
)


def narrow(text: str) -> str:
    """Return text for a locale without these characters: `×` becomes `x`, tree lines become ASCII."""
    return text.translate(_PLAIN)
