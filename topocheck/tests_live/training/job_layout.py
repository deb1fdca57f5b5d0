"""What the ranks of a scaling run stand on: how many, on which nodes, with what."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import msgspec

from topocheck.model.bounded import Count, Name
from topocheck.tests_live.launch.exchange import Gathered, gather
from topocheck.tests_live.launch.rendezvous import Rendezvous
from topocheck.tests_live.launch.words import InvalidWordError, plain, read
from topocheck.tests_live.launch.world import LaunchError, RankLostError
from topocheck.tests_live.training.report_types import JobLayout
from topocheck.tests_live.training.run import cpus_here


class _Word(msgspec.Struct, frozen=True):
    """What each rank says of itself."""

    node: Name
    cpus: Annotated[tuple[Count, ...], msgspec.Meta(max_length=1 << 16)]
    gpus: Count


class _Told(msgspec.Struct, frozen=True):
    """What rank 0 tells all: the job, or why there is none."""

    job: JobLayout | None = None
    error: str = ""
    lost: bool = False
    """A rank did not come, rather than that one must not take part."""


def local_job(gpus: tuple[str, ...], ranks: int = 0) -> JobLayout:
    """Return the job of ranks that are started here: `ranks`, or one per GPU, or two."""
    return JobLayout(ranks=ranks or max(len(gpus), 2), cores=len(cpus_here()), gpus=gpus)


def common_job(meeting: Rendezvous, gpus: tuple[str, ...], deadline_s: float = 60.0) -> JobLayout:
    """Return the job of a launcher's ranks, the same on all of them but for the addresses of their GPUs.

    GPUs take part where every node has one for each of its ranks.

    Raises:
        RankLostError: a rank did not come; names it.
        LaunchError: a rank must not take part, or sent something invalid; names it.
    """
    mine = msgspec.msgpack.encode(_Word(meeting.node, cpus_here(), len(gpus)))
    got = gather(meeting.scoped("job"), mine, deadline_s)
    if got is not None:
        meeting.put("job", msgspec.msgpack.encode(_agreed(got, meeting, deadline_s)))
    text = meeting.get("job", deadline_s + 10)
    if text is None:
        raise RankLostError(f"rank 0 did not answer within {deadline_s + 10:.0f} s")
    try:
        told = read(text, _Told, "rank 0")
    except InvalidWordError as e:
        raise LaunchError(str(e)) from None
    if told.job is None:
        raise (RankLostError if told.lost else LaunchError)(plain(told.error, 1000))
    return msgspec.structs.replace(told.job, gpus=gpus if told.job.gpus else ())


def _agreed(got: Gathered, meeting: Rendezvous, deadline_s: float) -> _Told:
    """Return what rank 0 makes of the ranks' words."""
    words = []
    for rank, text in sorted(got.payloads.items()):
        try:
            words.append(read(text, _Word, meeting.name(rank)))
        except InvalidWordError as e:
            return _Told(error=str(e))
    if got.missing:
        late = f"{meeting.names(sorted(got.missing))} (of {meeting.world.size}) did not come within {deadline_s:.0f} s"
        return _Told(error=next(iter(got.refused.values()), late), lost=not got.refused)
    job = job_of(words, meeting.world.launcher)
    return _Told(msgspec.structs.replace(job, ranks_authenticated_by=meeting.authenticated_by))


def job_of(words: list[_Word], launcher: str) -> JobLayout:
    """Return what the ranks' words amount to."""
    nodes = Counter(w.node for w in words)
    per = set(nodes.values())
    block = next(iter(per)) if len(per) == 1 else 0
    in_blocks = block and all(len({w.node for w in words[i : i + block]}) == 1 for i in range(0, len(words), block))
    enough = all(w.gpus >= nodes[w.node] for w in words)
    return JobLayout(
        ranks=len(words),
        nodes=len(nodes),
        ranks_per_node=block if in_blocks else 0,
        # A launcher may bind each rank to a core of its own: a node's cores are those of all its ranks.
        cores=min(len({c for w in words if w.node == n for c in w.cpus}) for n in nodes),
        gpus=("all",) if enough else (),
        launcher=launcher,
    )
