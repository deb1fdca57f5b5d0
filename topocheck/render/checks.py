"""The outcome of `topocheck check` as text, and the explanation of a check."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from topocheck.model.base import State
from topocheck.render.findings import add_findings, needs_root
from topocheck.render.page import Page, Style
from topocheck.render.quoting import name_text
from topocheck.render.words import STATE_MARKS, STATE_STYLES, plural

if TYPE_CHECKING:
    from topocheck.checks.registry import Check
    from topocheck.checks.result import Outcome

_NAMED = 8
"""Checks that are named of those without their data; a machine made from texts has scores of them."""


def check_text(outcome: Outcome, style: Style, *, notes: bool = False, verbose: bool = False) -> str:
    """Return the outcome for a person: findings worst first, then one line that sums up.

    Args:
        outcome: what the checks came to.
        style: columns and colours.
        notes: also the notes.
        verbose: also every check with its state.
    """
    page = Page(style)
    shown = [f for f in outcome.findings if notes or f.state is not State.NOTE]
    add_findings([f for f in shown if not needs_root(f)], page)
    if verbose:
        page.blank()
        page.table(
            ("check", "scope", "state", ""),
            [(r.id, r.scope, (STATE_MARKS[r.state], STATE_STYLES[r.state]), r.detail) for r in outcome.results],
        )
    if outcome.overdue:
        more = len(outcome.overdue) - _NAMED
        where = "as listed above" if verbose else "-v lists them"
        ids = ", ".join(outcome.overdue[:_NAMED]) + (f" and {more} more ({where})" if more > 0 else "")
        page.text(f"not evaluated, required data not available: {ids}", style="magenta", hang=4)
    for text in outcome.required_unknown:
        page.text(f"required but could not be determined: {text}", style="magenta", hang=4)
    for text in outcome.notices:
        page.text(text, style="yellow", hang=4)
    add_findings([f for f in shown if needs_root(f)], page)
    hidden = not notes and any(f.state is State.NOTE for f in outcome.findings)
    style_ = STATE_STYLES[State.NOTE if outcome.no_gpu and outcome.state is State.OK else outcome.state]
    page.line((sum_up(outcome), style_), ("; --notes lists the notes" if hidden else "", "dim"))
    return page.render()


def sum_up(outcome: Outcome) -> str:
    """Return the outcome in one line, such as `FAIL: 1 fail, 2 warn, 3 notes of 41 checks (policy built in)`."""
    counts = Counter(f.state for f in outcome.findings)
    judged = sum(r.state is not State.NOT_APPLICABLE for r in outcome.results)
    order = (State.FAIL, State.UNKNOWN, State.WARN, State.NOTE)
    # The states are words of ours and stay as they are; only a note is a plain noun.
    parts = [
        plural(counts[s], "note") if s is State.NOTE else f"{counts[s]} {STATE_MARKS[s].lower()}"
        for s in order
        if counts[s]
    ]
    word = {0: "OK", 1: "FAIL", 3: "UNKNOWN"}.get(outcome.exit_code, "?")
    if word == "OK" and outcome.no_gpu and outcome.state in (State.OK, State.NOTE):
        word = "NOTE"  # nothing of GPUs was checked: not to be read as all well
    if word == "OK" and outcome.state is State.UNKNOWN:
        word = "OK, some checks not evaluated"
    listed = ", ".join(parts) or "nothing found"
    if not judged:
        return f"{word}: nothing checked: none of {plural(len(outcome.results), 'check')} applies here"
    none = f"; {outcome.no_gpu}" if outcome.no_gpu else ""
    return f"{word}: {listed} by {plural(judged, 'check')} (policy {name_text(outcome.policy.source)}){none}"


def explain_text(check: Check, style: Style) -> str:
    """Return the explanation of one check."""
    page = Page(style)
    page.line((check.id, "bold"), f"  {check.title}")
    page.blank()
    page.pair("scope", check.scope)
    page.pair("severity", check.severity.value)
    if check.preview:
        page.pair("preview", "run only with --preview, or where the policy asks for it")
    page.pair("reads", ", ".join(check.reads))
    page.blank()
    for paragraph in textwrap.dedent(_first_line_in(check.doc)).split("\n\n"):
        page.text(" ".join(paragraph.split()))
        page.blank()
    return page.render()


def _first_line_in(doc_text: str) -> str:
    """Return a docstring with its first line indented like the rest, so that dedent works on all of it."""
    return "    " + doc_text
