"""A recording as a page: what was found, then clocks, loads, temperatures and traffic over time with faults marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topocheck.model.base import State
from topocheck.picture.timeline import Line, Moment, Timeline, span_text, timeline
from topocheck.render.html.cards import cards
from topocheck.render.html.environment import fill
from topocheck.render.html.results import chips
from topocheck.render.quoting import name_text
from topocheck.render.words import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topocheck.model.base import Finding
    from topocheck.overtime.timeline import Panel
    from topocheck.overtime.types import Header


def watch_html(
    header: Header, panels: Sequence[Panel], findings: Sequence[Finding], *, seconds: float, samples: int
) -> str:
    """Return the page.

    Args:
        header: of the recording.
        panels: what is drawn.
        findings: what the checks of samples found.
        seconds: from the first sample to the last.
        samples: how many are drawn.
    """
    return fill(
        "watch.html",
        title=f"{name_text(header.hostname) or 'This machine'} over {span_text(round(seconds))}",
        about=f"from {header.begun}, a sample each {header.interval_s:g} s",
        chips=chips(findings) or [("ok", "nothing found")],
        findings=cards([f for f in findings if f.state is not State.NOTE]),
        notes=cards([f for f in findings if f.state is State.NOTE]),
        matrices=[],
        charts=[],
        timelines=[_drawn(p, seconds) for p in panels],
        drawn=f"Drawn from {plural(samples, 'sample')}, from the lowest to the highest value of each part of the time. "
        "Red: a state that is none of a healthy device, or an event; brown: an error counter grew. Point at one to "
        "read it.",
        sections=[],
    )


def _drawn(panel: Panel, seconds: float) -> Timeline:
    lines = []
    for t in panel.tracks:
        moments = [
            Moment(from_s=m.from_s, to_s=m.to_s, about=_when(m.from_s, m.to_s) + m.text, minor=m.counted)
            for m in t.marks
        ]
        if t.more_marks:
            at = t.marks[-1].to_s
            moments.append(Moment(from_s=at, to_s=at, about=f"and {t.more_marks} more"))
        lines.append(Line(label=name_text(t.label), points=t.points, moments=tuple(moments)))
    return timeline(panel.title, panel.unit, lines, seconds)


def _when(from_s: float, to_s: float) -> str:
    """Return `at 61 s: ` or `61 s to 2 min: `."""
    if round(from_s) == round(to_s):
        return f"at {span_text(round(from_s))}: "
    return f"{span_text(round(from_s))} to {span_text(round(to_s))}: "
