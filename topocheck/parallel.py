"""Many pieces of work at once, in child processes. Stands between the commands and the process room."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from topocheck.process.fork import one_thread
from topocheck.process.pool import Lost, work_through

__all__ = ["Lost", "in_children"]


def in_children(
    pieces: Iterator[bytes], work: Callable[[bytes], bytes], children: int
) -> Iterator[tuple[bytes, bytes | Lost]]:
    """Yield each piece with what `work` makes of it, in no certain order; `Lost` where its process died or hung.

    The work is done here where this process has threads, which a fork does not survive.
    """
    if children > 1 and one_thread():
        yield from work_through(pieces, work, children)
        return
    for piece in pieces:
        yield piece, work(piece)
