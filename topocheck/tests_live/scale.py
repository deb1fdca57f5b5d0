"""Runs a scaling plan: collectives, then training, over torch's backends and over MPI."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import gmtime, monotonic, strftime

import msgspec

from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.tests_live.collect import Ranks, environment, listen
from topocheck.tests_live.collect import run_collectives as collectives
from topocheck.tests_live.collectives import RankJob
from topocheck.tests_live.loopback import LOOPBACK_STEP, loopback_problem
from topocheck.tests_live.mpi import mpi_problem, mpirun_command
from topocheck.tests_live.rank_child import LaunchJob
from topocheck.tests_live.ranks import World, meet
from topocheck.tests_live.rows import CollectiveRow
from topocheck.tests_live.scale_plan import collective_rows, places, split_mpi, train_rows
from topocheck.tests_live.scale_types import Ground, ScaleOptions, ScaleReport
from topocheck.tests_live.train_types import TrainJob, TrainRow

METHOD = (
    "Weak scaling: each rank takes the same batch. A step is zero_grad, forward, backward with the exchange of all "
    "gradients by DDP, and SGD, of square linear layers in fp32; steps back to back, mean over ranks, median of the "
    "samples. Efficiency is speed-up over ranks. Gradient error is |g - e| / |e| beside the exact mean. Digits: 1437 "
    "to train, 360 to test, the same global batch for any number of ranks. MPI is mpi4py on host memory: one "
    "all_reduce after the backward pass."
)
QUIET_S = 90.0
JOIN_S = 180.0
SETS = 2
"""Sets of ranks over torch that follow each other: for the collectives, and for training."""
Tell = Callable[[str], None]
Outcome = Measurement | NotMeasured


def run(
    ground: Ground,
    options: ScaleOptions,
    world: World | None,
    tell: Tell = lambda words: None,
    ports: tuple[int, ...] = (),
) -> tuple[ScaleReport, tuple[Outcome, ...]]:
    """Run everything; returns the report without its tables (see scale_summary) and what was measured or not.

    `ports` are those at which a launcher's sets of ranks meet, one for each of SETS (scale_ground.common_ground).
    """
    begun, taken = monotonic(), strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())
    software: dict[str, str] = {}
    out: list[Outcome] = []
    if world is not None:
        world = meet(world)
        # Under torchrun all would meet at the agent's store, where the keys of the first set of ranks stay.
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"

    def heard(kind: str, words: str) -> None:
        if kind == "measured":
            tell(words)

    swept = collective_rows(ground, options)
    torch_rows, mpi_rows = (tuple(r for r in swept if (r.backend == "mpi") == mpi) for mpi in (False, True))
    trained, trained_mpi = split_mpi(train_rows(ground, options))
    gpus = ground.gpus if any(d == "gpu" for _, d in places(ground, options)[0]) else ()
    out += collectives(torch_rows, world=_at(world, ports, 0), local_gpus=gpus, heard=heard, software=software)
    out += _training(trained, _at(world, ports, 1), gpus, software, heard)
    if trained_mpi:
        out += _over_mpi(mpi_rows, trained_mpi, world, software, heard)
    report = ScaleReport(
        taken_at=taken,
        ground=ground,
        options=options,
        software=software,
        method=METHOD,
        not_applicable=tuple(places(ground, options)[1]),
        wall_s=round(monotonic() - begun, 2),
    )
    return report, tuple(out)


def _at(world: World | None, ports: tuple[int, ...], number: int) -> World | None:
    """Return the world with the port of one set of ranks; the launcher's own where none was agreed on."""
    if world is None or number >= len(ports):
        return world
    return msgspec.structs.replace(world, port=ports[number])


def _training(
    rows: tuple[TrainRow, ...],
    world: World | None,
    gpus: tuple[str, ...],
    software: dict[str, str],
    heard: Callable[[str, str], None],
) -> Iterator[Outcome]:
    if not rows:
        return
    local = max(r.ranks for r in rows) if world is None else 0
    if blocked := "" if world is not None else loopback_problem():
        yield from (NotMeasured(id=r.id, reason=blocked, required=True, next_step=LOOPBACK_STEP) for r in rows)
        return
    outcomes, at = _train_once(rows, local, world, gpus, software, heard)
    later = rows_after_hook(rows, at) if world is None else ()
    lost = {r.id for r in later}
    yield from (o for o in outcomes if o.id not in lost)
    yield from _training(later, world, gpus, software, heard)


def _train_once(
    rows: tuple[TrainRow, ...],
    local: int,
    world: World | None,
    gpus: tuple[str, ...],
    software: dict[str, str],
    heard: Callable[[str, str], None],
) -> tuple[list[Outcome], set[str]]:
    """Return what one set of ranks makes of the rows, and the rows in which ranks ended or hung."""
    with tempfile.TemporaryDirectory(prefix="topocheck-") as folder:
        told = Path(folder) / "rows"
        told.write_bytes(msgspec.json.encode(TrainJob(rows=rows)))
        job = LaunchJob(ranks=RankJob(rows=(), events="", local_gpus=gpus, timeout_s=QUIET_S - 10), local_ranks=local)

        def argv(path: str) -> list[str]:
            return [sys.executable, "-m", "topocheck.tests_live.train_child", "{fd}", path, str(told)]

        ranks = Ranks(rows, job, environment(world), heard, argv)
        outcomes = list(_heard(ranks, software))
        return outcomes, {s.row for s in ranks.states.values() if not s.finished}


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
    world: World | None,
    software: dict[str, str],
    heard: Callable[[str, str], None],
) -> Iterator[Outcome]:
    """Run everything over MPI in one process a rank: a rank of mpirun can begin MPI only once."""
    if why := mpi_problem(world):
        yield from (NotMeasured(id=i, reason=why) for i in [s.id for s in sweeps] + [r.id for r in rows])
        return
    with tempfile.TemporaryDirectory(prefix="topocheck-") as folder:
        told = Path(folder) / "rows"
        told.write_bytes(msgspec.json.encode(TrainJob(rows=rows)))
        job = LaunchJob(ranks=RankJob(rows=sweeps, events="", timeout_s=QUIET_S - 10))
        start = mpirun_command(max(r.ranks for r in rows)) if world is None else []

        def argv(path: str) -> list[str]:
            return [*start, sys.executable, "-m", "topocheck.tests_live.train_child", "mpi", path, str(told)]

        yield from _heard(Ranks((*sweeps, *rows), job, environment(world), heard, argv), software)


def _heard(ranks: Ranks, software: dict[str, str]) -> Iterator[Outcome]:
    try:
        yield from listen(ranks, QUIET_S, JOIN_S)
        software.update(ranks.software)
    finally:
        ranks.close()


def cpus_here() -> tuple[int, ...]:
    """Return the CPUs this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))
