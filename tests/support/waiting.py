"""How tests wait: for an event, never for a while; and how long at most, for what surely comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 600.0
"""Longest wait for what surely comes, on the slowest and busiest machine: reached only where something is broken."""


def until(
    happened: Callable[[], T],
    what: str = "it",
    *,
    else_: Callable[[], str] = str,
    pause_s: float = 0.02,
    limit_s: float | None = None,
) -> T:
    """Wait until a call gives something true, and return that; fail by name after PATIENCE_S.

    Args:
        happened: asked again and again.
        what: what is waited for.
        else_: what there is to say where it did not happen (logs, a state).
        pause_s: between two calls.
        limit_s: where something else would make it happen if PATIENCE_S were waited.
    """
    limit_s = PATIENCE_S if limit_s is None else limit_s
    end = time.monotonic() + limit_s
    while not (found := happened()):
        assert time.monotonic() < end, f"{what}: not within {limit_s:g} s\n{else_()}"
        time.sleep(pause_s)
    return found
