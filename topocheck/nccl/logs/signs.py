"""Finds the signs of `knowledge/data/nccl_causes.tsv` in the lines of a log."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import msgspec

from topocheck.knowledge.nccl_causes import Cause, causes
from topocheck.nccl.logs.phrases import Phrases
from topocheck.nccl.logs.types import LogCause


class _Sign(msgspec.Struct, frozen=True):
    row: Cause
    pattern: Phrases


@functools.cache
def rows() -> dict[str, Cause]:
    """Return the rows that have a pattern, by id."""
    return {r.id: r for r in causes() if r.pattern is not None}


@functools.cache
def _signs(program: bool) -> tuple[_Sign, ...]:
    return tuple(
        _Sign(r, Phrases(r.pattern))
        for r in rows().values()
        if r.pattern is not None and (r.reads == "program" or not program)
    )


@functools.lru_cache(maxsize=1 << 10)
def signs_in(text: str, *, program: bool = False) -> tuple[Cause, ...]:
    """Return the signs in a line, in the order of the table.

    Args:
        text: the line; in front of a warning's words may stand its source file.
        program: the line names neither NCCL nor CUDA, so only rows that read any line count.
    """
    found = [s.row for s in _signs(program) if s.pattern.search(text)]
    exact = [r for r in found if r.kind != "general"]
    found = exact or found[:1]
    wrong = {(id_, r.code) for r in found for id_ in r.instead_of}
    return tuple(r for r in found if (r.id, r.code) not in wrong)


def fallback(code: str) -> list[LogCause]:
    """Return what is said of a failure of that code without a better sign."""
    return [LogCause(id=r.id, cause=r.cause, next=r.next) for r in causes() if r.code == code and r.pattern is None]


def ranked(first: Iterable[str], own: Iterable[LogCause], found: dict[str, LogCause]) -> list[LogCause]:
    """Return causes, the best supported first.

    Args:
        first: ids of the signs nearest before the failure.
        own: signs of the failure's code, in order of lines.
        found: all signs of the log.

    A sign that explains another ranks before it, a consequence ranks last, and one that is wrong where another is found
    is left out.
    """
    table = rows()
    wanted = dict.fromkeys(id_ for id_ in (*first, *(c.id for c in own)) if id_ in found)
    for id_, row in table.items():
        if id_ in found and wanted.keys() & set(row.explains):
            wanted[id_] = None
    wrong = {x for id_ in wanted for x in table[id_].instead_of}
    place = {id_: n for n, id_ in enumerate(wanted)}

    def order(id_: str) -> tuple[bool, int, int]:
        explained = sum(id_ in table[x].explains for x in wanted)
        return table[id_].kind == "consequence", explained, place[id_]

    return [found[id_] for id_ in sorted(wanted, key=order) if id_ not in wrong]
