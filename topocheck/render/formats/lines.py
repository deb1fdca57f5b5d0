"""What the one-line formats share: which finding to name first, and how much of it fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from topocheck.model.address import normalize_address
from topocheck.model.base import Finding, State
from topocheck.render.quoting import reason_text

if TYPE_CHECKING:
    from topocheck.checks.result import Outcome

REASON_BYTES = 160
"""Room of a scheduler's reason: `sinfo -R` shows a column of it, `scontrol show node` the whole."""

_LONGEST_WORD = 24

CANNOT_TELL = "unknown"
"""Stands where a check's id would stand when nothing failed, but something that must be known is not."""


class Headline(msgspec.Struct, frozen=True):
    """What one line has room for.

    Attributes:
        id: id of the check, or `unknown`.
        subject: what it is about; the label alone (`GPU3`) where a subject has address and label.
        text: the finding's own sentence.
        short: the check's title, for where the sentence has no room.
        more: number of further findings as bad as this one.
    """

    id: str
    subject: str
    text: str
    short: str = ""
    more: int = 0

    def line(self) -> str:
        """Return the sentence, with the subject in front where the sentence does not name it."""
        return self._about(self.text)

    def fit(self, prefix: str, limit_bytes: int, quote: Callable[[str], str] = reason_text) -> str:
        """Return `prefix` and the fullest wording that fits in `limit_bytes` bytes, quoted; cut where none does.

        What is cut is the finding's own sentence, which begins with what is wrong here; `(+2 more)` stays whole.
        """
        wordings = [self.line(), *([self._about(self.short)] if self.short else [])]
        lines = [prefix + quote(w) for w in wordings]
        whole = next((x for x in lines if len(x.encode("utf-8", "replace")) <= limit_bytes), None)
        if whole is not None:
            return whole
        return cut(prefix + quote(self._said(self.text)), limit_bytes - len(self._others())) + self._others()

    def _about(self, text: str) -> str:
        return self._said(text) + self._others()

    def _said(self, text: str) -> str:
        return text if self.subject in text or self.subject == "node" else f"{self.subject}: {text}"

    def _others(self) -> str:
        return f" (+{self.more} more)" if self.more else ""


def headline(outcome: Outcome) -> Headline | None:
    """Return what to say first of an outcome that is not plainly healthy; None where there is nothing to say.

    A failure comes before what could not be determined, and that before a warning, as in the exit codes.
    """
    failed = [f for f in outcome.findings if f.state is State.FAIL]
    if not failed and outcome.exit_code == 1:  # --strict: unknowns and warnings fail too
        failed = [f for f in outcome.findings if f.state in (State.UNKNOWN, State.WARN)]
    if failed:
        return _of(failed, outcome)
    if outcome.required_unknown:
        return Headline(CANNOT_TELL, "node", outcome.required_unknown[0], more=len(outcome.required_unknown) - 1)
    if outcome.notices:
        return Headline(CANNOT_TELL, "node", outcome.notices[0], more=len(outcome.notices) - 1)
    warned = [f for f in outcome.findings if f.state is State.WARN]
    return _of(warned, outcome) if warned else None


def _of(findings: list[Finding], outcome: Outcome) -> Headline:
    first = findings[0]
    check = outcome.checks.get(first.id)
    subject = first.subject
    address, _, label = subject.partition(" ")
    if label[:1].isalpha() and normalize_address(address):
        subject = label
    return Headline(first.id, subject, first.title, check.title if check else "", len(findings) - 1)


def cut(text: str, limit_bytes: int) -> str:
    """Return text of at most `limit_bytes` bytes of UTF-8, cut between words, with `...` where it was cut."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit_bytes:
        return data.decode("utf-8")
    kept = data[: limit_bytes - 3].decode("utf-8", "ignore")
    # A word of its own length (a path, a command) is cut within: better half of it than nothing.
    words, _, last = kept.rpartition(" ")
    return (words if words and len(last) < _LONGEST_WORD else kept).rstrip() + "..."


def reason(outcome: Outcome) -> str:
    """Return `<fault> - topocheck: <id>` for a scheduler's reason, with a newline; empty where all is well.

    The fault comes first, since `sinfo -R` shows 20 columns. Integrations know topocheck's reasons by their end.
    Warnings are left out: a scheduler's line is about whether a job may start.
    """
    first = headline(outcome)
    if first is None or (outcome.exit_code == 0 and not outcome.notices):
        return ""
    tag = f" - topocheck: {first.id}"
    return first.fit("", REASON_BYTES - len(tag)) + tag + "\n"
