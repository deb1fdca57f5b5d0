"""A report's sections for a page: what the painters of the text add, as typed blocks for the templates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from topocheck.render.page import Page, Span, Style, shortened

MAX_ROWS = 2000
"""Rows of one table; the JSON has all."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of a section.

    Attributes:
        kind: `pairs` (name and value in rows), `table`, `text`, or `lines` laid out by hand.
        text: of a text, with its style and how far it is indented.
        head: names of the columns; rows: cells as (text, style); right: columns aligned to the right.
    """

    kind: Literal["heading", "text", "pairs", "table", "lines"]
    text: str = ""
    style: str = ""
    depth: int = 0
    head: tuple[str, ...] = ()
    rows: tuple[tuple[Span, ...], ...] = ()
    right: frozenset[int] = frozenset()


class BlockPage(Page):
    """A page that keeps blocks instead of lines."""

    def __init__(self) -> None:
        super().__init__(Style(width=100))
        self.blocks: list[Block] = []

    def length(self) -> int:
        """Return how many blocks there are so far."""
        return len(self.blocks)

    def _more(self, kind: Literal["pairs", "lines"], row: tuple[Span, ...]) -> None:
        """Add a row to the last block where it is of this kind, else to a new one."""
        if self.blocks and self.blocks[-1].kind == kind:
            self.blocks[-1] = msgspec.structs.replace(self.blocks[-1], rows=(*self.blocks[-1].rows, row))
        else:
            self.blocks.append(Block(kind=kind, rows=(row,)))

    def line(self, *spans: Span | str) -> None:
        """Add one line that is laid out by hand."""
        self._more("lines", tuple((s, "") if isinstance(s, str) else s for s in spans))

    def blank(self) -> None:
        """Add nothing: blocks keep their distance."""

    def heading(self, text: str) -> None:
        """Start a section."""
        self.blocks.append(Block(kind="heading", text=text))

    def text(self, text: str, indent: int = 2, style: str = "", hang: int = 0) -> None:
        """Add a paragraph."""
        depth = 0 if indent <= 2 else 1 if indent <= 8 else 2
        self.blocks.append(Block(kind="text", text=shortened(text), style=style, depth=depth))

    def pair(self, name: str, value: str, indent: int = 2, column: int = 18) -> None:
        """Add a name and its value."""
        self._more("pairs", ((name, ""), (shortened(value), "")))

    def table(
        self,
        head: Sequence[str],
        rows: Iterable[Sequence[Span | str]],
        indent: int = 2,
        right: frozenset[int] = frozenset(),
        spare: int | None = None,
    ) -> None:
        """Add a table."""
        cells = tuple(tuple((c, "") if isinstance(c, str) else c for c in r) for r in rows)
        if cells:
            self.blocks.append(Block(kind="table", head=tuple(head), rows=cells, right=right))


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A section of a text report, to be unfolded."""

    title: str
    blocks: tuple[Block, ...]
    open: bool = False


SHORT = 14
"""Rows of a section that is shown unfolded."""


def sections(blocks: Sequence[Block], first: str, *, unfold: bool = False) -> list[Section]:
    """Return blocks in sections, one for each heading.

    Args:
        blocks: of a page.
        first: the title of what stands before the first heading.
        unfold: short sections begin open.
    """
    out: list[tuple[str, list[Block]]] = [(first, [])]
    for b in blocks:
        if b.kind == "heading":
            out.append((b.text, []))
        else:
            out[-1][1].append(_bounded(b))
    return [
        Section(title=t, blocks=tuple(held), open=unfold and sum(max(1, len(b.rows)) for b in held) <= SHORT)
        for t, held in out
        if held
    ]


def _bounded(block: Block) -> Block:
    left = len(block.rows) - MAX_ROWS
    if left <= 0:
        return block
    more = ((f"and {left} more: --format json shows all", "dim"), *((("", ""),) * (len(block.rows[0]) - 1)))
    return msgspec.structs.replace(block, rows=(*block.rows[:MAX_ROWS], more))
