"""A report in the formats that `topocheck report` has; each is loaded where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from topocheck.model.base import InputError

if TYPE_CHECKING:
    from topocheck.pipeline import Report
    from topocheck.render.page import Style

FORMATS = ("text", "json", "markdown", "html", "svg")


def rendered(report: Report, format_: str, style: Style, sections: Sequence[str] | None) -> str | Iterator[str]:
    """Return a report in one of FORMATS, JSON in pieces; `sections` of text and Markdown, the first screen where None.

    Raises:
        InputError: a drawing was asked for, and nothing was read that could be drawn.
    """
    if format_ == "json":
        from topocheck.model.version import __version__
        from topocheck.render import report_json as document

        return document.report_pieces(report, __version__)
    if format_ == "html":
        from topocheck.render.html.report import report_html

        return report_html(report)
    if format_ == "svg":
        from topocheck.picture.scene import can_be_drawn
        from topocheck.render.html.node import report_svg

        if not can_be_drawn(report.topology):
            raise InputError(
                "--format svg: what was read names GPUs without the PCI tree that they hang on, so there is nothing to "
                "draw; --format html shows the matrix"
            )
        return report_svg(report)
    if format_ == "markdown":
        from topocheck.render.markdown import report_markdown

        return report_markdown(report, sections)
    from topocheck.render.text import report_text

    return report_text(report, sections, style)
