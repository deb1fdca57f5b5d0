"""Runs a scaling plan: collectives, then training, over torch's backends and over MPI."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from time import gmtime, monotonic, strftime

import msgspec

from topocheck.bandwidth.cases import CollectiveRow
from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.tests_live.collectives.mpi import mpi_problem, mpirun_command
from topocheck.tests_live.launch.job import RankJob
from topocheck.tests_live.launch.loopback import LOOPBACK_STEP, loopback_problem
from topocheck.tests_live.launch.ranks import Ranks, call_limit_s, environment, life_of, listen, placed
from topocheck.tests_live.launch.ranks import run_collectives as collectives
from topocheck.tests_live.launch.rendezvous import Rendezvous
from topocheck.tests_live.launch.training_job import TrainRow
from topocheck.tests_live.training.plan import collective_rows, places, split_mpi, train_rows
from topocheck.tests_live.training.report_types import JobLayout, ScaleOptions, ScaleReport

METHOD = (
    "Weak scaling: each rank takes the same batch. A step is zero_grad, forward, backward with the exchange of all "
    "gradients by DDP, and SGD, of square linear layers in fp32; steps back to back, mean over ranks, median of the "
    "samples. Efficiency is speed-up over ranks. Gradient error is |g - e| / |e|, e the exact mean. Digits: 1437 "
    "to train, 360 to test, the same global batch for any number of ranks. MPI is mpi4py on host memory: one "
    "all_reduce after the backward pass."
)
QUIET_S = 90.0
JOIN_S = 180.0
Tell = Callable[[str], None]
Outcome = Measurement | NotMeasured


def run(
    job: JobLayout,
    options: ScaleOptions,
    meeting: Rendezvous | None,
    tell: Tell = lambda words: None,
) -> tuple[ScaleReport, tuple[Outcome, ...]]:
    """Run everything; returns the report without its tables (see scale_summary) and what was measured or not.

    `meeting` is where the ranks of a launcher meet; None to start the ranks here.
    """
    begun, taken = monotonic(), strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())
    software: dict[str, str] = {}
    out: list[Outcome] = []

    def heard(kind: str, words: str) -> None:
        if kind == "measured":
            tell(words)

    swept = collective_rows(job, options)
    torch_rows, mpi_rows = (tuple(r for r in swept if (r.backend == "mpi") == mpi) for mpi in (False, True))
    trained, trained_mpi = split_mpi(train_rows(job, options))
    gpus = job.gpus if any(d == "gpu" for _, d in places(job, options)[0]) else ()
    out += collectives(torch_rows, meeting=meeting, local_gpus=gpus, heard=heard, software=software)
    # Where a rank of a launcher is lost, training would wait for it once more.
    gone = next((o for o in out if isinstance(o, NotMeasured) and o.required), None) if meeting is not None else None
    if gone is not None:
        out += [msgspec.structs.replace(gone, id=r.id) for r in trained]
    else:
        out += run_training(trained, meeting, gpus, software, heard)
    if trained_mpi:
        out += _over_mpi(mpi_rows, trained_mpi, meeting, software, heard)
    report = ScaleReport(
        taken_at=taken,
        job=job,
        options=options,
        software=software,
        method=METHOD,
        not_applicable=tuple(places(job, options)[1]),
        wall_s=round(monotonic() - begun, 2),
    )
    return report, tuple(out)


def run_training(
    rows: tuple[TrainRow, ...],
    meeting: Rendezvous | None,
    gpus: tuple[str, ...],
    software: dict[str, str],
    heard: Callable[[str, str], None],
    *,
    scope: str = "training",
    settings: dict[str, str] | None = None,
) -> Iterator[Outcome]:
    """Run rows over torch's backends and yield what comes of them.

    Args:
        rows: all ranks of a launcher must be given the same.
        meeting: where the ranks of a launcher meet; None to start the ranks here.
        gpus: address of each local rank's GPU.
        software: filled with versions as the ranks report them.
        heard: told what happens.
        scope: names these ranks at the meeting, of the sets that follow each other.
        settings: variables that the ranks get in addition.
    """
    if not rows:
        return
    local = max(r.ranks for r in rows) if meeting is None else 0
    if blocked := "" if meeting is not None else loopback_problem():
        yield from (NotMeasured(id=r.id, reason=blocked, required=True, next_step=LOOPBACK_STEP) for r in rows)
        return
    job = RankJob(
        train=rows,
        local_ranks=local,
        local_gpus=gpus,
        timeout_s=call_limit_s(meeting, QUIET_S - 10),
        meet_s=QUIET_S - 10,
    )
    env = environment(meeting) | (settings or {})
    ranks = Ranks(rows, placed(job, meeting, scope), env, heard, life=life_of(meeting))
    missing: list[NotMeasured] = []
    for outcome in heard_from(ranks, software):
        if isinstance(outcome, NotMeasured):
            missing.append(outcome)
        else:
            yield outcome
    at = {s.row for s in ranks.states.values() if not s.finished}
    later = rows_after_hook(rows, at) if meeting is None else ()
    lost = {r.id for r in later}
    yield from (o for o in missing if o.id not in lost)
    yield from run_training(later, meeting, gpus, software, heard, scope=scope, settings=settings)


def rows_after_hook(rows: tuple[TrainRow, ...], at: set[str]) -> tuple[TrainRow, ...]:
    """Return the rows to begin anew with, where a compression hook ended or hung the ranks in the rows `at`.

    A hook is foreign code and may end its process; that loses the rows of that hook, not those of others.
    """
    hit = next((i for i, r in enumerate(rows) if r.id in at), None)
    if hit is None or rows[hit].hook == "none":
        return ()
    bad = rows[hit]
    return tuple(r for r in rows[hit + 1 :] if (r.backend, r.device, r.hook) != (bad.backend, bad.device, bad.hook))


def _over_mpi(
    sweeps: tuple[CollectiveRow, ...],
    rows: tuple[TrainRow, ...],
    meeting: Rendezvous | None,
    software: dict[str, str],
    heard: Callable[[str, str], None],
) -> Iterator[Outcome]:
    """Run everything over MPI in one process a rank: a rank of mpirun can begin MPI only once."""
    world = None if meeting is None else meeting.world
    if why := mpi_problem(world):
        yield from (NotMeasured(id=i, reason=why) for i in [s.id for s in sweeps] + [r.id for r in rows])
        return
    if meeting is not None and meeting.life.text:
        why = meeting.life.text
        yield from (NotMeasured(id=i, reason=why, required=True) for i in [s.id for s in sweeps] + [r.id for r in rows])
        return
    size = max([s.ranks for s in sweeps] + [r.ranks for r in rows])
    local = size if world is None else 0
    job = RankJob(rows=sweeps, train=rows, local_ranks=local, timeout_s=QUIET_S - 10)
    start = mpirun_command(size) if world is None else []
    ranks = Ranks((*sweeps, *rows), job, environment(None), heard, start, life_of(meeting))
    yield from heard_from(ranks, software)


def heard_from(ranks: Ranks, software: dict[str, str]) -> Iterator[Outcome]:
    """Yield what ranks measure until they end; `software` gets the versions that they report."""
    try:
        yield from listen(ranks, QUIET_S, JOIN_S)
        software.update(ranks.software)
    finally:
        ranks.close()


def cpus_here() -> tuple[int, ...]:
    """Return the CPUs this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))
