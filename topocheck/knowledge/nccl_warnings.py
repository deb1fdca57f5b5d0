"""Warnings of NCCL that come before an error (data/nccl_warnings.tsv)."""

import functools

import msgspec

from topocheck.knowledge.nccl_causes import ResultCode
from topocheck.knowledge.tables import Source, Table


class Warned(msgspec.Struct, frozen=True, kw_only=True):
    """A warning, and the code that the function which prints it returns.

    Attributes:
        text: the words that never change, in order; ` * ` stands for what is filled in.
    """

    text: str
    code: ResultCode
    source: Source


_WARNINGS = Table("nccl_warnings", Warned, key=("text",))


@functools.cache
def _parts() -> tuple[tuple[tuple[str, ...], Warned], ...]:
    # The longest first: of two that fit, the one that says more.
    rows = sorted(_WARNINGS.rows(), key=lambda r: -len(r.text))
    return tuple((tuple(r.text.split(" * ")), r) for r in rows)


def warning_of(text: str) -> Warned | None:
    """Return the row whose words a warning has in their order, or None."""
    for parts, row in _parts():
        at = 0
        for part in parts:
            at = text.find(part, at)
            if at < 0:
                break
            at += len(part)
        else:
            return row
    return None
