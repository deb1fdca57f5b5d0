"""Findings as a page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from topocheck.model.base import Finding, State
from topocheck.render.findings import alike, several
from topocheck.render.words import STATE_MARKS, evidence_line, plural

if TYPE_CHECKING:
    from topocheck.compare.types import JobProblem, NodeFinding, SharedFinding

MAX_EVIDENCE = 8
MAX_NODES = 200
"""Names of nodes in one card."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One finding, or several that say the same, as the page shows it."""

    id: str = ""
    state: str
    mark: str
    title: str
    subjects: str
    consequence: str = ""
    fix: str = ""
    evidence: tuple[str, ...] = ()


def cards(findings: Sequence[Finding]) -> list[Card]:
    """Return findings as the page shows them, those that say the same together."""
    out = []
    for first, *others in alike(findings):
        left = len(first.evidence) - MAX_EVIDENCE
        shown = [evidence_line(e) for e in first.evidence[:MAX_EVIDENCE]]
        out.append(
            Card(
                id=first.id,
                state=first.state.value,
                mark=STATE_MARKS[first.state].upper(),
                title=first.title,
                subjects=several([f.subject for f in (first, *others)]) if others else first.subject,
                consequence=first.consequence,
                fix=first.fix or "",
                evidence=(*shown, f"and {left} more (--format json shows all)") if left > 0 else tuple(shown),
            )
        )
    return out


def node_cards(findings: Sequence[NodeFinding]) -> list[Card]:
    """Return findings of one node as the page shows them."""
    return [
        Card(
            id=f.id,
            state=f.state,
            mark=STATE_MARKS[State(f.state)].upper(),
            title=f.title,
            subjects=f.subject,
            fix=f.fix,
        )
        for f in findings
    ]


def fleet_cards(findings: Sequence[SharedFinding]) -> list[Card]:
    """Return findings that nodes share as the page shows them, with the nodes in place of the subject."""
    return [
        Card(
            id=f.id,
            state=f.state,
            mark=STATE_MARKS[State(f.state)].upper(),
            title=f.title,
            subjects=f"{f.subject} on {plural(len(f.nodes), 'node')}: {_some(f.nodes)}",
            fix=f.fix,
        )
        for f in findings
    ]


def _some(nodes: Sequence[str]) -> str:
    more = len(nodes) - MAX_NODES
    return " ".join(nodes[:MAX_NODES]) + (f" and {more} more" if more > 0 else "")


def job_cards(problems: Sequence[JobProblem]) -> list[Card]:
    """Return what would hurt a job over several nodes."""
    return [
        Card(
            state=p.state,
            mark=STATE_MARKS[State(p.state)].upper(),
            title=p.title,
            subjects=p.subject,
            consequence=p.consequence,
            fix=p.fix,
        )
        for p in problems
    ]
