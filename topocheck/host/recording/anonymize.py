"""A recording without what identifies a machine, its network, its users and its jobs.

An allow-list: a table (probes/kept/table.py) says of every question that probes ask what its answer may hold. What is
not of the form that the table gives is replaced, and what was asked by a question that is not in the table is left out.
Relations stay: equal texts are equal afterwards, in questions, answers and reasons alike.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from topocheck.host.base import Answer, HostError
from topocheck.host.live.filters import kept
from topocheck.host.recording.forms import Form, each
from topocheck.host.recording.pseudonyms import Mapping as Replacements
from topocheck.host.recording.redaction import Redaction
from topocheck.host.recording.texts import detail

Hole = tuple[str, Callable[[Redaction, str], str | None]]
"""What may stand in a place of a question (a pattern), and what it becomes; None where the question is left out."""


class Kept(msgspec.Struct, frozen=True):
    """What a snapshot holds of the answers to some questions.

    Attributes:
        kind: of the questions (`read`).
        subject: their arguments. `{name}` is a hole, `{a b c}` one of these words.
        form: of the answer.
        what: what stays, where the form does not say it.
    """

    kind: str
    subject: str
    form: Form | Callable[[Redaction, Answer], Answer]
    what: str = ""

    @property
    def stays(self) -> str:
        """What stays of an answer, in words."""
        return self.what or (self.form.what if isinstance(self.form, Form) else "")


class Table:
    """All questions whose answers a snapshot may hold.

    Args:
        rows: the first that fits a question counts.
        holes: what the names in braces stand for.
        learn: takes note of names before anything is replaced.
    """

    def __init__(
        self,
        rows: Sequence[Kept],
        holes: Mapping[str, Hole],
        learn: Callable[[Redaction, Mapping[str, Answer]], None] = lambda r, answers: None,
    ) -> None:
        self.rows = tuple(rows)
        self.holes = holes
        self.learn = learn
        self._by_kind: dict[str, list[tuple[re.Pattern[str], list[str], Kept]]] = {}
        for row in rows:
            pattern, names = self._compiled(row.subject)
            self._by_kind.setdefault(row.kind, []).append((pattern, names, row))

    def _compiled(self, subject: str) -> tuple[re.Pattern[str], list[str]]:
        pattern, names = "", []
        for literal, hole in re.findall(r"([^{]*)(?:\{([^}]*)\})?", subject):
            pattern += re.escape(literal)
            if hole in self.holes:
                pattern += f"({self.holes[hole][0]})"
            elif hole:
                pattern += f"({'|'.join(map(re.escape, hole.split()))})"
            if hole:
                names.append(hole)
        return re.compile(pattern, re.ASCII | re.DOTALL), names

    def find(self, question: str) -> tuple[Kept, re.Match[str], list[str]] | None:
        """Return the row for a question, where its holes are and their names; None where there is none."""
        kind, colon, rest = question.partition(":")
        for pattern, names, row in self._by_kind.get(kind, ()) if colon else ():
            if m := pattern.fullmatch(rest):
                return row, m, names
        return None

    def question(self, r: Redaction, question: str) -> str | None:
        """Return a question with names and identifiers replaced, as the same probe asks it of the snapshot."""
        found = self.find(question)
        if found is None:
            return None
        row, m, names = found
        kind, r.kind = r.kind, row.subject
        replaced = [self.holes[name][1](r, m[n]) if name in self.holes else m[n] for n, name in enumerate(names, 1)]
        r.kind = kind
        out, at = [f"{row.kind}:"], 0
        for n, new in enumerate(replaced, 1):
            if new is None:
                return None
            out += [m.string[at : m.start(n)], new]
            at = m.end(n)
        return "".join([*out, m.string[at:]])


def anonymize(answers: Mapping[str, Answer], table: Table, secret: bytes | None = None) -> dict[str, Answer]:
    """Return what a snapshot may hold of the answers of one recording, with identifiers replaced.

    Args:
        answers: of one recording.
        table: what may be held.
        secret: key of the replacement; by default random and forgotten, so that nobody can undo it. With one key,
            the numbers and addresses of several recordings are replaced alike (names are numbered in each).
    """
    r = Redaction(Replacements(secret or os.urandom(32)))
    table.learn(r, answers)
    out: dict[str, Answer] = {}
    questions = sorted(answers)
    for question in questions:
        found = table.find(question)
        new = table.question(r, question)
        if found is None or new is None:
            continue
        r.kind = found[0].subject
        answer = kept(question, answers[question])
        out[new] = _answer(r, answer, found[0], questions, table)
    return out


def _answer(r: Redaction, answer: Answer, row: Kept, questions: Sequence[str], table: Table) -> Answer:
    def rewritten(question: str) -> str:
        return table.question(r, question) or r.unknown(question)

    if isinstance(answer, HostError):
        return HostError(answer.reason, detail(r, answer.detail, questions, rewritten))
    if row.kind == "probe" and isinstance(answer, dict):
        said = {k: v for k, v in answer.items() if k in ("state", "ms", "detail") and isinstance(v, str | int | float)}
        if said.get("state") not in _STATES:
            said["state"] = "failed"
        if isinstance(said.get("ms"), str):
            said["ms"] = 0.0
        said["detail"] = detail(r, str(said.get("detail", "")), questions, rewritten)
        return said | _hung(r, answer.get("hung"), rewritten)
    return each(row.form)(r, answer) if isinstance(row.form, Form) else row.form(r, answer)


def _hung(r: Redaction, hung: Answer, rewritten: Callable[[str], str]) -> dict[str, Answer]:
    """Return what is kept of a child that did not come back (topocheck.model.base.Hung)."""
    if not isinstance(hung, dict):
        return {}
    numbers: dict[str, Answer] = {
        k: v for k in ("pid", "waited_s", "cut_short") if isinstance(v := hung.get(k), int | float)
    }
    question, state, function = (str(hung.get(k, "")) for k in ("question", "state", "waits_in"))
    if state in _PROCESS_STATES:
        numbers["state"] = state
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]{0,80}", function, re.ASCII):
        numbers["waits_in"] = function
    return {"hung": {**numbers, "question": rewritten(question)}}


_PROCESS_STATES = tuple("RSDZTtXxKWPI")
_STATES = ("ok", "empty", "failed", "timed_out")
