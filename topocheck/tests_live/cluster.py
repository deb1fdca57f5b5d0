"""Facts of many nodes at rank 0: each node is asked once, each rank says where it runs.

A rank sends compressed recordings (host/snapshot.py). What does not come in time is named, and the rest is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from time import monotonic

import msgspec

from topocheck.tests_live.meeting import Meeting, node_here
from topocheck.tests_live.ranks import LaunchError, World
from topocheck.tests_live.roll_call import ranks_text


class RankWord(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank sends.

    Attributes:
        node: key of its node, see meeting.node_key.
        machine: recording of the node, from the one rank that asked it; empty from the others.
        own: recording of what differs from rank to rank of a node: environment, affinity.
        error: why there is no recording.
    """

    node: str
    machine: bytes = b""
    own: bytes = b""
    error: str = ""


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What came to rank 0: words by rank; `silent` maps each node or rank that did not answer to what it did last."""

    words: dict[int, RankWord]
    silent: dict[str, str] = {}


def exchange(
    world: World,
    ask_machine: Callable[[str], bytes],
    ask_self: Callable[[], bytes],
    deadline_s: float = 60.0,
) -> Heard | None:
    """Ask this node, or only this rank, and bring all words to rank 0; the other ranks get None.

    Args:
        world: this process's place.
        ask_machine: given the node's key, returns a recording of the node; called on one rank of each node.
        ask_self: returns a recording of what is this rank's own.
        deadline_s: how long rank 0 waits in all.

    Raises:
        LaunchError: the ranks cannot meet, or rank 0 was lost.
    """
    begun = monotonic()
    meeting = Meeting(world, deadline_s)
    node = node_here(world)
    meeting.put(f"node-of/{world.rank}", node.encode())
    word = RankWord(node=node)
    try:
        first = meeting.claim(f"asks/{node}")
        word = RankWord(node=node, machine=ask_machine(node) if first else b"", own=ask_self())
    except LaunchError:
        raise
    except Exception as e:  # noqa: BLE001 - whatever fails on one node must reach rank 0 as words
        word = RankWord(node=node, error=f"{type(e).__name__}: {e}")
    meeting.put(f"word/{world.rank}", msgspec.msgpack.encode(word))
    if world.rank:
        return None
    words: dict[int, RankWord] = {}
    quiet: dict[int, str] = {}
    for rank in range(world.size):
        left = max(0.2, deadline_s - (monotonic() - begun))
        text = meeting.get(f"word/{rank}", left)
        if text is not None:
            words[rank] = msgspec.msgpack.decode(text, type=RankWord)
        else:
            came = meeting.get(f"node-of/{rank}", 0.1)
            quiet[rank] = came.decode() if came else ""
    return Heard(words=words, silent=name_silent(words, quiet, _expected(os.environ), deadline_s))


def _expected(environ: Mapping[str, str]) -> list[str]:
    from topocheck.host.hostlist import expand_hostlist

    return expand_hostlist(environ.get("SLURM_STEP_NODELIST", ""))


def name_silent(
    words: Mapping[int, RankWord], quiet: Mapping[int, str], expected: list[str], deadline_s: float
) -> dict[str, str]:
    """Return node or rank -> what is missing from it.

    Args:
        words: what came, by rank.
        quiet: rank that sent no word -> its node's key, or the empty text where it did not even say that.
        expected: the nodes that the launcher named, where it did.
        deadline_s: how long was waited.
    """
    out: dict[str, str] = {}
    known = {w.node for w in words.values()} | {n for n in quiet.values() if n}
    absent = [n for n in expected if n not in known]
    unnamed = [r for r, n in quiet.items() if not n]
    for rank, node in quiet.items():
        if node:
            out[node] = f"rank {rank} began to read the machine's facts and sent nothing within {deadline_s:.0f} s"
    if unnamed:
        ranks = ranks_text(unnamed)
        if absent:
            out.update(dict.fromkeys(absent, f"no rank of it came within {deadline_s:.0f} s ({ranks} missing)"))
        else:
            out[ranks] = f"did not come within {deadline_s:.0f} s"
    for rank, w in words.items():
        if w.error:
            out[w.node] = f"rank {rank} could not read its facts: {w.error}"
    return out
