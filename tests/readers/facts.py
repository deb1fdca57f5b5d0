"""Facts read from texts, compared with those of the machine that the texts are of: nothing may be reported wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from topocheck.host.base import Answer, Host, HostError, RecordedBackend
from topocheck.model.base import Missing, is_lost
from topocheck.model.node import Node
from topocheck.pipeline import read_node
from topocheck.readers.files import read_data

_NOT_FACTS = (
    "raw",
    "source",
    "sysfs_path",
    "probes",
    "lost",
    "made_from",
    "taken_at",
    "config_bytes",
    "counters_missing",
)


def read(text: str | bytes, name: str = "text") -> Node:
    """Return the facts of one text."""
    data = text.encode() if isinstance(text, str) else text
    return read_node(Host(RecordedBackend(read_data(name, data).answers), name))


def wrong(got: Any, want: Any, at: str = "", leave_out: Iterable[str] = ()) -> list[str]:
    """Return where `got` differs from `want`; what it does not report (`is_lost`) is not wrong.

    A list of devices is compared by address, name, node or link; `got` may hold fewer.
    """
    if isinstance(got, Missing) and (is_lost(got) or not isinstance(want, Missing)):
        return [] if is_lost(got) else [f"{at}: {got} for {want!r}"]
    if isinstance(got, Missing) or isinstance(want, Missing):
        # Two ways to say that there is none: what the reason is called in words may differ.
        return [] if isinstance(got, Missing) and isinstance(want, Missing) else [f"{at}: {got!r} for {want!r}"]
    if isinstance(got, msgspec.Struct) and type(got) is type(want):
        names = [n for n in got.__struct_fields__ if n not in (*_NOT_FACTS, *leave_out)]
        return [x for n in names for x in wrong(getattr(got, n), getattr(want, n), f"{at}.{n}", leave_out)]
    if isinstance(got, tuple) and got and isinstance(got[0], msgspec.Struct):
        wanted = {_key(w): w for w in want}
        return [
            x
            for g in got
            for x in (
                wrong(g, wanted[_key(g)], f"{at}[{_key(g)}]", leave_out)
                if _key(g) in wanted
                else [f"{at}: {_key(g)} is not there"]
            )
        ]
    if isinstance(got, dict):
        return [f"{at}[{k}]: {v!r} for {want.get(k)!r}" for k, v in got.items() if want.get(k) != v]
    if isinstance(got, tuple) and not got:
        return []  # a list that no text tells is empty
    return [] if got == want else [f"{at}: {got!r} for {want!r}"]


def _key(part: Any) -> Any:
    if hasattr(part, "from_address"):
        return part.from_address, part.to_address
    named = ("link", "port", "node", "line", "index", "name", "address")
    return next(getattr(part, n) for n in named if hasattr(part, n))


def told(answers: dict[str, Answer], start: str) -> int:
    """Return how many questions that begin so have an answer."""
    return sum(q.startswith(start) and not isinstance(a, HostError) for q, a in answers.items())
