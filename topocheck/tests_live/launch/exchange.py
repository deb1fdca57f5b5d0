"""Facts of many nodes at rank 0: each node is asked once, each rank says where it runs.

A rank sends compressed recordings (host/recording/snapshot.py). What does not come in time is named,
and the rest is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from time import monotonic

import msgspec

from topocheck.model.bounded import Name, Text
from topocheck.tests_live.launch.rendezvous import Rendezvous
from topocheck.tests_live.launch.words import InvalidWordError, plain, ranks_text, read
from topocheck.tests_live.launch.world import LaunchError


class RankWord(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank sends.

    Attributes:
        node: key of its node, see world.node_key.
        machine: recording of the node, from the one rank that asked it; empty from the others.
        own: recording of what differs from rank to rank of a node: environment, affinity.
        error: why there is no recording.
    """

    node: Name
    machine: bytes = b""
    own: bytes = b""
    error: Text = ""


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What came to rank 0: words by rank; `unresponsive`: node or rank without an answer -> what it did last."""

    words: dict[int, RankWord]
    unresponsive: dict[str, str] = {}


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """What came from each rank; `late` has those that sent nothing, `missing` why for each of them."""

    payloads: dict[int, bytes]
    missing: dict[int, str]
    refused: dict[int, str] = {}

    @property
    def late(self) -> list[int]:
        """Ranks that neither came nor were refused."""
        return [r for r in self.missing if r not in self.refused]


def gather(meeting: Rendezvous, payload: bytes, deadline_s: float = 60.0) -> Gathered | None:
    """Give rank 0 the bytes of every rank; the other ranks get None.

    Raises:
        LaunchError: rank 0 is gone.
    """
    meeting.put(f"word/{meeting.world.rank}", payload)
    return None if meeting.world.rank else gather_words(meeting, "word", deadline_s)


def gather_words(meeting: Rendezvous, what: str, deadline_s: float) -> Gathered:
    """Return on rank 0 what the ranks put at `what/RANK`. Ranks that do not come cost no more than one of them.

    Raises:
        LaunchError: the place is gone.
    """
    size = meeting.world.size
    late = {int(k.rpartition("/")[2]) for k in meeting.missing([f"{what}/{r}" for r in range(size)], deadline_s)}
    payloads = {r: meeting.get(f"{what}/{r}") or b"" for r in range(size) if r not in late}
    # Of two processes that say they are one rank nobody knows which one is of this job.
    doubled = meeting.doubled()
    payloads = {r: p for r, p in payloads.items() if r not in doubled}
    refused = {r: why for r in sorted(late) if (why := meeting.refused(r))} | doubled
    missing = {r: f"{meeting.name(r)} sent nothing within {deadline_s:.0f} s" for r in sorted(late)} | refused
    return Gathered(payloads=payloads, missing=missing, refused=refused)


def exchange(
    meeting: Rendezvous,
    ask_machine: Callable[[str], bytes],
    ask_self: Callable[[], bytes],
    deadline_s: float = 60.0,
) -> Heard | None:
    """Ask this node, or only this rank, and bring all words to rank 0; the other ranks get None.

    Args:
        meeting: where the ranks meet.
        ask_machine: given the node's key, returns a recording of the node; called on one rank of each node.
        ask_self: returns a recording of what is this rank's own.
        deadline_s: how long rank 0 waits in all.

    Raises:
        LaunchError: rank 0 was lost.
    """
    begun, node = monotonic(), meeting.node
    meeting.put(f"node-of/{meeting.world.rank}", node.encode())
    try:
        first = meeting.claim(f"asks/{node}")
        word = RankWord(node=node, machine=ask_machine(node) if first else b"", own=ask_self())
    except LaunchError:
        raise
    except Exception as e:  # noqa: BLE001 - whatever fails on one node must reach rank 0 as words
        word = RankWord(node=node, error=plain(f"{type(e).__name__}: {e}", 1000))
    got = gather(meeting, msgspec.msgpack.encode(word), max(0.2, deadline_s - (monotonic() - begun)))
    if got is None:
        return None
    words: dict[int, RankWord] = {}
    quiet: dict[int, str] = {}
    invalid: dict[str, str] = {}
    for rank, text in got.payloads.items():
        try:
            words[rank] = read(text, RankWord, meeting.name(rank))
        except InvalidWordError as e:
            invalid[f"rank {rank}"] = str(e)
    invalid |= {f"rank {rank}": why for rank, why in got.refused.items()}
    for rank in got.late:
        quiet[rank] = plain((meeting.get(f"node-of/{rank}") or b"").decode(errors="replace"))
    return Heard(words=words, unresponsive=name_unresponsive(words, quiet, _expected(os.environ), deadline_s) | invalid)


def _expected(environ: Mapping[str, str]) -> list[str]:
    from topocheck.model.hostlist import expand_hostlist

    return expand_hostlist(environ.get("SLURM_STEP_NODELIST", ""))


def name_unresponsive(
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
            out[w.node] = f"rank {rank} could not read its facts: {plain(w.error, 1000)}"
    return out
