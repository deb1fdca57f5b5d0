"""What strategies of distributed training ask of the network, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topocheck.render.page import Page, Style

if TYPE_CHECKING:
    from topocheck.knowledge.strategies import Strategy

WORDS = (
    ("rank", "one process of a job, numbered from 0 over all nodes"),
    ("world size", "how many ranks the job has"),
    ("local rank", "a rank's number on its own node; frameworks use the GPU of that number"),
    ("local world size", "how many ranks its node has"),
    ("node", "one server; servers x ranks per server = world size where all have as many"),
)
"""The words of the field, as torchrun, MPI and Slurm use them."""


def strategies_text(strategies: Sequence[Strategy], style: Style) -> str:
    """Return the words of a job, and what each strategy sends, asks and is measured by."""
    page = Page(style)
    page.heading("Words")
    for word, meaning in WORDS:
        page.pair(word, meaning)
    page.text("topocheck placement shows them for a job that runs.", style="dim")
    for s in strategies:
        page.heading(f"{s.name} ({s.framework})" if s.name != s.framework else s.name)
        page.pair("sends", s.sends)
        page.pair("asks", s.asks)
        for i, command in enumerate(s.measure.split("; ")):
            page.pair("" if i else "measure", command)
        page.pair("source", s.source)
    return page.render()
