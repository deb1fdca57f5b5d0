"""The report for a ticket: the same sections as the text, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from topocheck.render.page import Page, Span, Style
from topocheck.render.quoting import markdown_bold, markdown_item, markdown_row, markdown_text, one_line
from topocheck.render.text import add_sections

if TYPE_CHECKING:
    from topocheck.pipeline import Report


class MarkdownPage(Page):
    """A page whose headings, pairs and tables are Markdown; lines laid out by hand stand in fenced blocks."""

    def __init__(self) -> None:
        super().__init__(Style(width=100))
        self.out: list[str] = []
        self._fenced = False

    def length(self) -> int:
        """Return how many lines there are so far."""
        return len(self.out)

    def line(self, *spans: Span | str) -> None:
        """Add one line to the current fenced block, opening it where there is none."""
        if not self._fenced:
            self.out += ["", "```"]
            self._fenced = True
        text = one_line("".join(s if isinstance(s, str) else s[0] for s in spans))
        self.out.append(text.rstrip().replace("```", "'''"))

    def _prose(self, *lines: str) -> None:
        if self._fenced:
            self.out += ["```", ""]
            self._fenced = False
        self.out += lines

    def blank(self) -> None:
        """Add an empty line outside fenced blocks."""
        self._prose("")

    def heading(self, text: str) -> None:
        """Start a section."""
        self._prose("", f"## {markdown_text(text)}", "")

    def text(self, text: str, indent: int = 2, style: str = "", hang: int = 0) -> None:
        """Add text as a list item; deeper indents nest."""
        # Markdown nests one level at a time, whatever the columns of the text are.
        depth = 0 if indent <= 2 else 1 if indent <= 8 else 2
        self._prose(markdown_item(text.removeprefix("- "), depth))

    def pair(self, name: str, value: str, indent: int = 2, column: int = 18) -> None:
        """Add `**name**: value` as a list item."""
        self._prose(f"- {markdown_bold(name)}: {markdown_text(value)}")

    def table(
        self,
        head: Sequence[str],
        rows: Iterable[Sequence[Span | str]],
        indent: int = 2,
        right: frozenset[int] = frozenset(),
        spare: int | None = None,
    ) -> None:
        """Add a Markdown table."""
        cells = [[c if isinstance(c, str) else c[0] for c in r] for r in rows]
        if not cells:
            return
        names = list(head) or [""] * len(cells[0])
        rule = " | ".join("---:" if i in right else "---" for i in range(len(names)))
        self._prose("", markdown_row(names), f"| {rule} |", *map(markdown_row, cells), "")

    def render(self) -> str:
        """Return the page, never two empty lines in a row."""
        self._prose()
        text: list[str] = []
        for line in self.out:
            if line or (text and text[-1]):
                text.append(line)
        return "\n".join(text).strip() + "\n"


def report_markdown(report: Report, sections: Sequence[str] | None) -> str:
    """Return the report, or only the named sections of it, as Markdown."""
    page = MarkdownPage()
    add_sections(report, sections, page)
    return page.render()
