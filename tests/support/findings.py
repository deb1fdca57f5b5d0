"""All findings over all described machines, as a table to be read: `python -m tests.support.findings [NAME ...]`.

Columns: machine, state, check, subject, title, fix. Equal findings on several devices of a machine are one line with
their number.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import msgspec

from tests.conftest import LARGE
from tests.machines.builder import cached, case_names, names
from topocheck.model.base import Finding
from topocheck.pipeline import build_report


class Line(msgspec.Struct, frozen=True):
    """One line of the table: a finding, and on how many subjects of the machine it stands in the same words."""

    machine: str
    finding: Finding
    subjects: int


def lines(machines: Sequence[str]) -> Iterator[Line]:
    """Yield the findings of some machines, those that say the same of several devices once."""
    for name in machines:
        found: dict[tuple[str, str, str | None], list[Finding]] = {}
        for f in build_report(cached(name).host()).findings:
            found.setdefault((f.id, f.title, f.fix), []).append(f)
        yield from (Line(name, same[0], len(same)) for same in found.values())


def table(machines: Sequence[str]) -> str:
    """Return the table as tab-separated text."""
    out = ["machine\tstate\tcheck\tsubject\ttitle\tfix"]
    for x in lines(machines):
        f = x.finding
        subject = f.subject + (f" and {x.subjects - 1} more" if x.subjects > 1 else "")
        out.append("\t".join((x.machine, f.state.value, f.id, subject, f.title, f.fix or "-")))
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(sys.argv[1:] or [n for n in (*names(), *case_names()) if n != LARGE]))
