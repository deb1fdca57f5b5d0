"""How often each line of topocheck runs: work that is counted, so that no test of it depends on a machine's speed."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import topocheck

Line = tuple[str, int]
"""File below the package, and number of the line."""

_PACKAGE = os.path.dirname(os.path.abspath(topocheck.__file__)) + os.sep


def lines_run(call: Callable[[], object]) -> Counter[Line]:
    """Return how often each line of the package ran during a call; loops within one line count each round."""
    counts: Counter[tuple[Any, int]] = Counter()

    def within(frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            counts[frame.f_code, frame.f_lineno] += 1
        return within

    def called(frame: FrameType, event: str, arg: object) -> Any:
        return within if frame.f_code.co_filename.startswith(_PACKAGE) else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        call()
    finally:
        sys.settrace(before)
    out: Counter[Line] = Counter()
    for (code, line), n in counts.items():
        out[code.co_filename.removeprefix(_PACKAGE), line] += n
    return out


def grown(small: Counter[Line], large: Counter[Line], ratio: float, *, at_least: int = 1000) -> list[str]:
    """Return the lines that run more than `ratio` times as often in `large`, worst first, as text.

    Args:
        small: counts of the smaller input.
        large: counts of the larger one.
        ratio: what is allowed.
        at_least: lines that run less often than this in `large` are left out: what they do is little.
    """
    worse = [
        (n / max(1, small[line]), n, line) for line, n in large.items() if n >= at_least and n > ratio * small[line]
    ]
    return [
        f"{file}:{line} runs {n} times, {r:.1f} times as often" for r, n, (file, line) in sorted(worse, reverse=True)
    ]
