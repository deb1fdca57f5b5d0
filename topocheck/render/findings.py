"""Findings for a person: worst first, those that say the same of several subjects as one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from topocheck.model.address import normalize_address
from topocheck.model.base import NEEDS_ROOT, Finding, State
from topocheck.render.page import Page
from topocheck.render.words import STATE_MARKS, STATE_STYLES, evidence_line, ranges

MAX_EVIDENCE = 4
"""Pieces of evidence shown for one finding; the JSON holds all of them."""


class Detail(NamedTuple):
    """What of a finding is shown next to its head and title."""

    evidence: int = MAX_EVIDENCE
    consequence: bool = True
    fix: bool = True


FULL = Detail()
_SHORTER = (
    (Detail(2), Detail(2)),
    (Detail(1), Detail(1)),
    (Detail(1), Detail(1, consequence=False)),
    (Detail(1, consequence=False), Detail(1, consequence=False)),
    (Detail(1, consequence=False), Detail(0, consequence=False)),
    (Detail(1, consequence=False), Detail(0, consequence=False, fix=False)),
    (Detail(0, consequence=False), Detail(0, consequence=False, fix=False)),
)
"""Ever less of failures, and of the other findings."""

MAX_SUBJECTS, MAX_PAIRS = 8, 3
"""Devices (or runs of them) and pairs named at the head of one finding; the JSON holds all of them."""

_DEVICE = (
    r"\b(?:[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|GPU[0-9]+|(?:mlx5|mlx4|bnxt_re|irdma|efa|rocep|ibp)_?\w+)\b"
)
"""PCI addresses, GPUs and RDMA devices: what differs between findings that say the same of several devices."""


def add_findings(findings: Sequence[Finding], page: Page, *, fails: Detail = FULL, others: Detail = FULL) -> None:
    """Add findings in their order; those that say the same of several subjects as one, with the first's evidence.

    What only a run as root can judge is one line at the end.

    Args:
        findings: what was found, worst first.
        page: where they are added.
        fails: what is shown of failures.
        others: what is shown of all others.
    """
    rooted = [f for f in findings if needs_root(f)]
    for (state, id_, *_), groups in _of_one_fix(alike([f for f in findings if not needs_root(f)])).items():
        subjects = dict.fromkeys(f.subject for g in groups for f in g)
        named = several([*subjects]) if len(subjects) > 1 else next(iter(subjects))
        page.text(f"{STATE_MARKS[state]}  {id_}  {named}", style=STATE_STYLES[state], hang=6)
        _block(groups, page, fails if state is State.FAIL else others)
    if rooted:
        ids = ", ".join(dict.fromkeys(f.id for f in rooted))
        page.text(f"needs root: {ids} (re-run with sudo)", style="dim", hang=4)


def fit_findings(findings: Sequence[Finding], page: Page, max_lines: int) -> bool:
    """Add findings as `add_findings` does, as fully as a number of lines allows. Return whether none was shortened.

    What is given up first is evidence after the first piece, then consequences, then evidence and fixes of what is no
    failure. Titles stay, and so do the fixes of failures.

    Args:
        findings: what was found, worst first.
        page: where they are added.
        max_lines: lines that they should take; the shortest form is added whatever it takes.
    """
    whole = True
    for fails, others in _SHORTER:
        tried = Page(page.style)
        add_findings(findings, tried, fails=fails, others=others)
        whole = fails.consequence and others.consequence
        if not whole:
            tried.text("shortened (--section findings shows all)", style="dim", hang=2)
        if tried.length() <= max_lines:
            break
    page.lines += tried.lines
    return whole


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


def _of_one_fix(groups: Sequence[list[Finding]]) -> dict[tuple[State, str, str, str], list[list[Finding]]]:
    """Return state, id, subjects and fix -> the groups of them: several faults of a device with one fix."""
    out: dict[tuple[State, str, str, str], list[list[Finding]]] = {}
    for g in groups:
        key = (g[0].state, g[0].id, "\n".join(f.subject for f in g), g[0].fix or "")
        out.setdefault(key, []).append(g)
    return out


def _block(groups: Sequence[Sequence[Finding]], page: Page, detail: Detail) -> None:
    """What is found of some subjects, each with its evidence, and the fix of all of it."""
    said = ""
    for first, *more in groups:
        page.text(first.title if not more else f"{first.title} (and {len(more)} more)", indent=8)
        if first.consequence and first.consequence != said and detail.consequence:
            page.text(first.consequence, indent=8)
        said = first.consequence
        for e in first.evidence[: detail.evidence]:
            page.text(evidence_line(e), indent=10, style="dim", hang=2)
        if len(first.evidence) > detail.evidence >= MAX_EVIDENCE:
            text = f"and {len(first.evidence) - detail.evidence} more (--json shows all)"
            page.text(text, indent=10, style="dim")
    fix = groups[0][0].fix
    if fix and detail.fix:
        page.text(f"fix: {fix}", indent=8, style="green", hang=2)
