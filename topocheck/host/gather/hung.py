"""What the kernel says of a child that does not come back from a question, before it is left behind."""

from __future__ import annotations

import re

from topocheck.model.base import Hung


def look_at(pid: int, question: str, waited_s: float, *, cut_short: bool) -> Hung:
    """Return what a child does: its state, and the kernel function it waits in, as far as they can be read."""
    return Hung(
        question=question,
        pid=pid,
        state=process_state(_text(f"/proc/{pid}/stat")),
        waits_in=waiting_in(_text(f"/proc/{pid}/wchan")),
        waited_s=round(waited_s, 1),
        cut_short=cut_short,
    )


def process_state(stat: str) -> str:
    """Return the letter after the name in /proc/PID/stat; the name may hold anything, brackets too (proc(5))."""
    m = re.match(r"\s([A-Za-z])\s", stat.rpartition(")")[2])
    return m[1] if m else ""


def waiting_in(wchan: str) -> str:
    """Return the function in /proc/PID/wchan; `0` stands for none, and for one that may not be seen."""
    name = wchan.strip("\0 \n")
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]{0,80}", name, re.ASCII) else ""


def _text(path: str) -> str:
    try:
        with open(path, "rb") as f:
            return f.read(4096).decode("utf-8", "replace")
    except OSError:
        return ""
