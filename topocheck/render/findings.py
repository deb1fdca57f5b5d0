"""Findings for a person: worst first, those that say the same of several subjects as one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from topocheck.model.address import normalize_address
from topocheck.model.base import NEEDS_ROOT, Finding, State
from topocheck.render.page import Page
from topocheck.render.words import STATE_MARKS, STATE_STYLES, evidence_line, ranges

MAX_EVIDENCE = 4
"""Pieces of evidence shown for one finding; the JSON holds all of them."""

MAX_SUBJECTS, MAX_PAIRS = 8, 3
"""Devices (or runs of them) and pairs named at the head of one finding; the JSON holds all of them."""

_DEVICE = (
    r"\b(?:[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|GPU[0-9]+|(?:mlx5|mlx4|bnxt_re|irdma|efa|rocep|ibp)_?\w+)\b"
)
"""PCI addresses, GPUs and RDMA devices: what differs between findings that say the same of several devices."""


def add_findings(findings: Sequence[Finding], page: Page, *, max_evidence: int = MAX_EVIDENCE) -> None:
    """Add findings in their order; those that say the same of several subjects as one, with the first's evidence.

    What only a run as root can judge is one line at the end.
    """
    rooted = [f for f in findings if needs_root(f)]
    for first, *others in alike([f for f in findings if not needs_root(f)]):
        _finding(first, [f.subject for f in others], page, max_evidence)
    if rooted:
        ids = ", ".join(dict.fromkeys(f.id for f in rooted))
        page.text(f"needs root: {ids} (re-run with sudo)", style="dim", hang=4)


def needs_root(f: Finding) -> bool:
    """Tell whether a finding says no more than that a run as root can judge."""
    return f.state is State.UNKNOWN and f.fix == NEEDS_ROOT


def alike(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Return the findings in their order, those that say the same of several subjects together.

    The same is said where only the devices differ that the sentences name.
    """
    out: dict[tuple[State, str, str, str, str], list[Finding]] = {}
    for f in findings:
        key = (f.state, f.id, _general(f.title, f), _general(f.consequence, f), _general(f.fix or "", f))
        out.setdefault(key, []).append(f)
    return list(out.values())


def short_subject(subject: str) -> str:
    """Return the label alone (`GPU3`) of a subject that has address and label, in either order."""
    words = subject.split()
    labels = [w for w in words if normalize_address(w) is None]
    return labels[0] if len(words) == 2 and len(labels) == 1 else subject


def several(subjects: Sequence[str]) -> str:
    """Return many subjects in few words: runs of labels as `GPU0-GPU7`, and of pairs the first few."""
    pairs = [p for s in subjects if (p := _pair(s))]
    if len(pairs) == len(subjects):
        more = len(pairs) - MAX_PAIRS
        return ", ".join(pairs[:MAX_PAIRS]) + (f" and {more} more pairs" if more > 0 else "")
    parts = ranges(dict.fromkeys(map(short_subject, subjects))).split(", ")
    more = len(parts) - MAX_SUBJECTS
    return ", ".join(parts[:MAX_SUBJECTS]) + (f" and {more} more" if more > 0 else "")


def _pair(subject: str) -> str:
    """Return `GPU0 -> GPU1` for a pair whose ends have label and address; the empty text for no pair."""
    ends = subject.split(" -> ")
    return " -> ".join(map(short_subject, ends)) if len(ends) == 2 else ""


def _general(text: str, f: Finding) -> str:
    for word in (f.subject, *f.subject.split()):
        if len(word) > 3 and word != "node":
            text = text.replace(word, "*")
    return re.sub(_DEVICE, "*", text)


def _finding(f: Finding, others: Sequence[str], page: Page, max_evidence: int) -> None:
    """One finding with its evidence and fix, and the `others` of which it is true too."""
    subjects = several([f.subject, *others]) if others else f.subject
    page.text(f"{STATE_MARKS[f.state]}  {f.id}  {subjects}", style=STATE_STYLES[f.state], hang=6)
    page.text(f.title if not others else f"{f.title} (and {len(others)} more)", indent=8)
    if f.consequence:
        page.text(f.consequence, indent=8)
    for e in f.evidence[:max_evidence]:
        page.text(evidence_line(e), indent=10, style="dim", hang=2)
    if len(f.evidence) > max_evidence >= MAX_EVIDENCE:
        page.text(f"and {len(f.evidence) - max_evidence} more (--json shows all)", indent=10, style="dim")
    if f.fix:
        page.text(f"fix: {f.fix}", indent=8, style="green", hang=2)
