"""Runs a lab: its rows over torch's backends and over MPI, then its tables."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from time import gmtime, monotonic, strftime

import msgspec

from topocheck.bandwidth.lab_catalogue import BY_NAME
from topocheck.model.lab import JobRecord, LabReport, Words
from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.model.node import Node
from topocheck.tests_live.collectives.mpi import mpi_problem, mpirun_command
from topocheck.tests_live.labs.plans import (
    bounds,
    compression,
    fusion,
    gdr,
    messages,
    servers,
    stages,
    training,
    unmeasured,
)
from topocheck.tests_live.labs.plans.common import Filled, LabOptions, Results, Rows
from topocheck.tests_live.launch.job import RankJob
from topocheck.tests_live.launch.loopback import LOOPBACK_STEP, loopback_problem
from topocheck.tests_live.launch.ranks import Ranks, call_limit_s, environment, life_of, placed
from topocheck.tests_live.launch.rendezvous import Rendezvous
from topocheck.tests_live.launch.words import InvalidWordError, read
from topocheck.tests_live.launch.world import LaunchError, RankLostError
from topocheck.tests_live.training.plan import split_mpi
from topocheck.tests_live.training.report_types import JobLayout
from topocheck.tests_live.training.run import QUIET_S, Outcome, heard_from, run_training
from topocheck.topology.types import Topology

METHOD = (
    "Calls back to back, the same number on all ranks; the time is the mean over ranks, the headline the median of the "
    "samples. What is exchanged is compared with what was sent. Predictions take alpha and beta from ping-pongs of the "
    "same run."
)
Plan = Callable[[JobLayout, LabOptions, dict[str, str]], Rows]
Fill = Callable[[JobLayout, LabOptions, dict[str, str], Rows, Results], Filled]
LIVE: dict[str, tuple[Plan, Fill]] = {
    "p2p": (messages.plan_p2p, messages.fill_p2p),
    "collectives": (messages.plan_collectives, messages.fill_collectives),
    "broadcast": (messages.plan_broadcast, messages.fill_broadcast),
    "parameter-server": (servers.plan, servers.fill),
    "compression": (compression.plan, compression.fill),
    "fusion": (fusion.plan, fusion.fill),
    "pipeline": (stages.plan_pipeline, stages.fill_pipeline),
    "halo": (stages.plan_halo, stages.fill_halo),
    "models": (training.plan_models, training.fill_models),
}


SCATTER = 0.2
"""Spread of the samples of one timing (interquartile range over median) from which a note says so."""
FIRST_S = 120.0
"""Seconds that the other ranks wait for what rank 0 decides; before it, it may run the rows of other backends."""
Texts = dict[Words, Words]


class Runner:
    """One lab on one process: a rank of a launcher, or the one that starts the ranks.

    Args:
        job: what the ranks stand on.
        options: as asked.
        meeting: where the ranks of a launcher meet; None to start the ranks here.
        tell: told what was measured.
    """

    def __init__(
        self,
        job: JobLayout,
        options: LabOptions,
        meeting: Rendezvous | None,
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.job, self.options, self.meeting, self._tell = job, options, meeting, tell
        self.software: dict[str, str] = {}
        self.interrupted = False
        self.without = from_first(meeting, "without", absent_backends(job, meeting))

    def run(self, name: str, record: JobRecord, node: Node, topology: Topology) -> LabReport:
        """Run a lab; on ranks other than 0 the report has no numbers."""
        begun, taken = monotonic(), strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())
        lab = BY_NAME[name]
        outcomes: list[Outcome] = []
        filled = Filled(tables=())
        if name == "bounds":
            filled = bounds.fill(topology, self.options)
        elif name == "backends":
            rows = training.plan_backends(self.job, self.options, self.without)
            outcomes = self._outcomes(rows)
            filled, more = self._with_gdr(rows, outcomes, node, topology)
            outcomes += more
        elif name in LIVE:
            plan, fill = LIVE[name]
            rows = plan(self.job, self.options, self.without)
            outcomes = self._outcomes(rows)
            filled = fill(self.job, self.options, self.without, rows, Results(outcomes))
        return LabReport(
            lab=name,
            question=lab.question,
            taken_at=taken,
            wall_s=round(monotonic() - begun, 2),
            record=record,
            software=self.software,
            method=METHOD if lab.backends else "",
            reading=lab.reading,
            source=lab.source,
            tables=filled.tables,
            notes=(*scattered_note(outcomes), *filled.notes),
            fits=filled.fits,
            not_measured=tuple(o for o in outcomes if isinstance(o, NotMeasured) and o.required),
            measurements=tuple(o for o in outcomes if isinstance(o, Measurement)),
        )

    def _heard(self, kind: str, words: str) -> None:
        if kind == "measured":
            self._tell(words)

    def _with_gdr(
        self, rows: Rows, outcomes: list[Outcome], node: Node, topology: Topology
    ) -> tuple[Filled, list[Outcome]]:
        """Return the table of backends with the rows of GPUDirect RDMA on and off, and what these measured."""
        mine = self.without.get("nccl") or gdr.why_not(self.job, node, topology)
        why = from_first(self.meeting, "gdr", {"why": mine}).get("why", mine)
        settings = gdr.SETTINGS if "nccl" in (self.options.backends or ("nccl",)) else {}
        more: list[Outcome] = []
        gone = self.meeting is not None and self.meeting.life.text
        if not why and not self.interrupted and not gone:
            for setting, variables in settings.items():
                some = gdr.rows_of(rows.train, setting)
                gpus = self.job.gpus
                more += run_training(
                    some, self.meeting, gpus, self.software, self._heard, scope=f"gdr {setting}", settings=variables
                )
        filled = training.fill_backends(
            self.job, self.options, self.without, rows, Results([*outcomes, *more]), dict.fromkeys(settings, why)
        )
        binding = importlib.util.find_spec(unmeasured.ONECCL) is not None
        return unmeasured.added(filled, self.options, node.software.mpi_cuda_aware, binding=binding), more

    def _outcomes(self, rows: Rows) -> list[Outcome]:
        """Return what came of all rows; those measured before an interrupt are kept, the others are `interrupted`."""
        out: list[Outcome] = []
        try:
            for outcome in self._measure(rows):
                out.append(outcome)  # noqa: PERF402 - what came before an interrupt is kept
        except KeyboardInterrupt:
            if self.meeting is not None:  # the other ranks wait for this one
                raise
            self.interrupted = True
            begun = {o.id for o in out} | {o.id.rpartition(":")[0] for o in out}
            ids = [r.id for r in rows.train] + [r.id for r in rows.lab]
            left = [i for i in ids if i not in begun]
            out += [NotMeasured(id=i, reason="interrupted", required=True) for i in left]
        return out

    def _measure(self, rows: Rows) -> Iterator[Outcome]:
        torch_train, mpi_train = split_mpi(rows.train)
        torch_lab, mpi_lab = (tuple(r for r in rows.lab if (r.backend == "mpi") == mpi) for mpi in (False, True))
        on_gpus = any(r.device == "gpu" for r in torch_train) or any(r.device == "gpu" for r in torch_lab)
        gpus = self.job.gpus if on_gpus else ()
        gone: NotMeasured | None = None
        for outcome in run_training(torch_train, self.meeting, gpus, self.software, self._heard):
            yield outcome
            # Where a rank of a launcher is lost, the next rows would wait for it once more.
            if gone is None and self.meeting and isinstance(outcome, NotMeasured) and outcome.required:
                gone = outcome
        if gone is not None:
            left = [r.id for r in (*torch_lab, *mpi_lab)] + [r.id for r in mpi_train]
            yield from (msgspec.structs.replace(gone, id=i) for i in left)
            return
        lost = False
        if torch_lab:
            for outcome in self._by_torch(Rows(lab=torch_lab), gpus):
                lost = lost or (self.meeting is not None and isinstance(outcome, NotMeasured) and outcome.required)
                yield outcome
        if (mpi_train or mpi_lab) and not lost:
            yield from self._by_mpi(Rows(train=mpi_train, lab=mpi_lab))

    def _by_torch(self, rows: Rows, gpus: tuple[str, ...]) -> Iterator[Outcome]:
        if self.meeting is None and (blocked := loopback_problem()):
            for r in rows.lab:
                yield NotMeasured(id=r.id, reason=blocked, required=True, next_step=LOOPBACK_STEP)
            return
        local = max(max(r.who) for r in rows.lab) + 1 if self.meeting is None else 0
        job = RankJob(
            lab=rows.lab,
            local_ranks=local,
            local_gpus=gpus,
            timeout_s=call_limit_s(self.meeting, QUIET_S - 10),
            meet_s=QUIET_S - 10,
        )
        life, env = life_of(self.meeting), environment(self.meeting)
        ranks = Ranks(rows.lab, placed(job, self.meeting, "lab"), env, self._heard, life=life)
        yield from heard_from(ranks, self.software)

    def _by_mpi(self, rows: Rows) -> Iterator[Outcome]:
        """Run everything in one process a rank: a rank of mpirun can begin MPI only once."""
        size = max([r.ranks for r in rows.train] + [max(r.who) + 1 for r in rows.lab])
        job = RankJob(
            train=rows.train, lab=rows.lab, local_ranks=size if self.meeting is None else 0, timeout_s=QUIET_S - 10
        )
        start = mpirun_command(size) if self.meeting is None else []
        life = life_of(self.meeting)
        ranks = Ranks((*rows.train, *rows.lab), job, environment(None), self._heard, start, life)
        yield from heard_from(ranks, self.software)


def scattered_note(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Return the note where samples of one timing are far apart: times and ratios of such a run are rough."""
    timed = [o for o in outcomes if isinstance(o, Measurement) and len(o.samples) > 1]
    wide = [m.spread for m in timed if m.spread > SCATTER]
    if not wide:
        return ()
    return (
        f"Samples of {len(wide)} of {len(timed)} timings spread over more than {SCATTER:.0%} of their median "
        f"(up to {max(wide):.0%}), so these are rough: something else ran meanwhile, or ranks shared cores. Run it "
        "again on a node at rest.",
    )


def from_first(meeting: Rendezvous | None, key: str, mine: dict[str, str]) -> dict[str, str]:
    """Return rank 0's texts on all ranks, since all must run the same rows; one's own where nobody else is there.

    Raises:
        LaunchError: rank 0 is gone, or sent something else.
    """
    if meeting is None:
        return mine
    place = meeting.scoped("lab")
    if meeting.world.rank == 0:
        place.put(key, msgspec.msgpack.encode(mine))
        return mine
    text = place.get(key, FIRST_S)
    if text is None:
        raise RankLostError(f"rank 0 did not say within {FIRST_S:.0f} s what runs")
    try:
        return read(text, Texts, "rank 0")
    except InvalidWordError as e:
        raise LaunchError(str(e)) from None


def absent_backends(job: JobLayout, meeting: Rendezvous | None) -> dict[str, str]:
    """Return backend -> why it cannot run here."""
    out: dict[str, str] = {}
    if importlib.util.find_spec("torch") is None:
        missing = "torch is not installed: pip install torch"
        out |= {"nccl": missing, "gloo": missing}
    elif not job.gpus:
        out["nccl"] = "needs one GPU for each rank, and no GPU is used here"
    if why := mpi_problem(None if meeting is None else meeting.world):
        out["mpi"] = why.removeprefix("mpi: ")
    return out
