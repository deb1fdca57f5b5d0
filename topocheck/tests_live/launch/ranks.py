"""The parent's side of the ranks: start or join, deadlines, and a message that names the rank that is missing."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import msgspec

from topocheck.bandwidth.cases import CollectiveRow
from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.process.child import PIDS, Child
from topocheck.process.python import python_argv
from topocheck.tests_live.launch import secret
from topocheck.tests_live.launch.address import is_loopback
from topocheck.tests_live.launch.failures import SILENT_STEP, RankState, failure_text, hang_text
from topocheck.tests_live.launch.job import RankJob
from topocheck.tests_live.launch.loopback import LOOPBACK_STEP, loopback_problem
from topocheck.tests_live.launch.pulse import Life
from topocheck.tests_live.launch.rendezvous import Rendezvous
from topocheck.tests_live.launch.shared_memory import SHM_STEP, shared_memory_problem

QUIET_S = 75.0
"""Seconds without any word from any rank until the ranks are taken for hung; torch's own limit is 60."""
JOIN_S = 180.0
"""The same while ranks import torch and meet: on a cold file system that takes minutes."""
LEAST_CALL_S = 30.0
RANK_MODULE = "topocheck.tests_live.rank_child"
Heard = Callable[[str, str], None]
"""Told (`at` | `measured` | `failed`, words) as it happens."""


class Named(Protocol):
    """A row of whatever kind."""

    @property
    def id(self) -> str:
        """Name of the row."""


class Ranks:
    """The ranks this process looks after, and the socket they speak to.

    Args:
        rows: what is to be measured.
        job: what the ranks are reported; where they meet and speak is added here.
        env: their environment.
        heard: told what happens.
        mpi: for ranks of MPI, the command that starts them; empty where a launcher started this process as one.
        life: of a launcher's ranks, which are lost.
    """

    def __init__(
        self,
        rows: Sequence[Named],
        job: RankJob,
        env: dict[str, str],
        heard: Heard,
        mpi: list[str] | None = None,
        life: Life | None = None,
    ) -> None:
        self.rows, self.heard = rows, heard
        self.life = life or Life()
        self.expected = job.local_ranks
        self.states: dict[int, RankState] = {}
        self.settled: set[str] = set()
        self.software: dict[str, str] = {}
        self.hosts: dict[int, str] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="topocheck-"))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._folder / "events"))
        self._socket.setblocking(False)
        told = self._folder / "job"
        places = {"events": str(self._folder / "events"), "store": str(self._folder / "store")}
        told.touch(0o600)
        told.write_bytes(msgspec.json.encode(msgspec.structs.replace(job, **places)))
        argv = python_argv(RANK_MODULE, str(told), "{fd}" if mpi is None else "mpi")
        self.process = Child([*(mpi or ()), *argv], env)
        self.life.child = self.process.pid

    def words(self) -> Iterator[dict[str, Any]]:
        """Yield what the ranks said since the last call."""
        while True:
            try:
                yield dict(msgspec.json.decode(self._socket.recv(1 << 20)))
            except BlockingIOError:
                return

    def launcher_word(self) -> dict[str, Any] | None:
        """Return the launcher's word: `done`, `failed`, or `gone` where it ended without one; None while it works."""
        try:
            event = self.process.next_event(monotonic() + 0.05)
        except TimeoutError:
            return None
        if event is not None:
            return event
        return {"event": "done" if self.process.wait(30) == 0 else "gone"}

    def close(self) -> None:
        """End every process and remove the socket."""
        self.life.child = 0
        self.process.end()
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def run_collectives(
    rows: tuple[CollectiveRow, ...],
    *,
    meeting: Rendezvous | None = None,
    scope: str = "collectives",
    local_gpus: tuple[str, ...] = (),
    local_cpus: tuple[str, ...] = (),
    heard: Heard = lambda kind, words: None,
    software: dict[str, str] | None = None,
    begun: set[str] | None = None,
    quiet_s: float = QUIET_S,
    join_s: float = JOIN_S,
    torch_limit_s: float | None = None,
    mpi: list[str] | None = None,
    life: Life | None = None,
) -> Iterator[Measurement | NotMeasured]:
    """Run sweeps and yield what comes of them; a rank of a launcher other than rank 0 yields only failures.

    Args:
        rows: the sweeps; all ranks of a launcher must be given the same.
        meeting: where the ranks of a launcher meet, of which this process is one; None to start the ranks here.
        scope: names these ranks there, of the sets that follow each other.
        local_gpus: address of each local rank's GPU.
        local_cpus: kernel list of the CPUs near it.
        heard: told what happens.
        software: filled with versions as the ranks report them.
        begun: filled with the ids of the sweeps of which something came.
        quiet_s: seconds of silence that count as a hang.
        join_s: the same before the ranks have met.
        torch_limit_s: seconds after which torch itself gives a call up; a little less than `quiet_s` where None.
        mpi: for ranks of MPI, the command that starts them; empty where a launcher started this process as one.
        life: of a launcher's ranks of MPI, which are lost.
    """
    if not rows:
        return
    blocked, step = shared_memory_problem(max(r.ranks for r in rows), {r.backend for r in rows}), SHM_STEP
    if not blocked and meeting is None and mpi is None:
        blocked, step = loopback_problem(), LOOPBACK_STEP
    if blocked:
        for row in rows:
            yield NotMeasured(id=row.id, reason=blocked, required=True, next_step=step)
        return
    job = RankJob(
        rows=rows,
        local_ranks=max(r.ranks for r in rows) if meeting is None and mpi != [] else 0,
        local_gpus=local_gpus,
        local_cpus=local_cpus,
        timeout_s=call_limit_s(meeting, torch_limit_s or quiet_s - 5),
        meet_s=torch_limit_s or quiet_s - 5,
    )
    ranks = Ranks(rows, placed(job, meeting, scope), environment(meeting), heard, mpi, life or life_of(meeting))
    if begun is not None:
        ranks.settled = begun
    try:
        yield from listen(ranks, quiet_s, join_s)
        if software is not None:
            software.update(ranks.software)
    finally:
        ranks.close()


def call_limit_s(meeting: Rendezvous | None, most: float) -> float:
    """Return after how many seconds torch gives up a call that does not come back.

    A launcher's ranks wait for each other no longer than --deadline, but at least LEAST_CALL_S: a step may take that.
    """
    deadline_s = meeting.life.limit_s if meeting is not None else 0.0
    return min(most, max(LEAST_CALL_S, deadline_s)) if deadline_s else most


def life_of(meeting: Rendezvous | None) -> Life | None:
    """Return what is known of a launcher's ranks, where there is one."""
    return None if meeting is None else meeting.life


def placed(job: RankJob, meeting: Rendezvous | None, scope: str) -> RankJob:
    """Return the job of a rank that meets those of a launcher, where there is one."""
    if meeting is None:
        return job
    return msgspec.structs.replace(job, world=meeting.world, ticket=meeting.ticket, scope=scope)


def environment(meeting: Rendezvous | None) -> dict[str, str]:
    """Return the environment of the ranks: ours, with allocator settings that change what is measured taken back."""
    env = dict(os.environ)
    env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    env["PYTORCH_CUDA_ALLOC_CONF"] = "backend:native,expandable_segments:False"
    env.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "60")
    env["OMP_NUM_THREADS"] = "1"
    env["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    for name in (secret.VARIABLE, "MASTER_ADDR", "MASTER_PORT"):
        env.pop(name, None)
    if meeting is None:
        # Ranks of one node meet over loopback; the host's name need not resolve.
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            env.pop(name, None)
    else:
        env.update(meeting.world.environment())
        if is_loopback(meeting.own_address):
            env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return env


def listen(ranks: Ranks, quiet_s: float, join_s: float) -> Iterator[Measurement | NotMeasured]:
    """Yield what the ranks measure, until they end or say nothing for `quiet_s` (before they have met, `join_s`)."""
    last = monotonic()
    ended: dict[str, Any] | None = None
    met = False
    while True:
        for word in ranks.words():
            last = monotonic()
            state = ranks.states.setdefault(int(word["rank"]), RankState())
            state.pid = int(word["pid"])
            PIDS.add(state.pid)
            kind = word["event"]
            if kind == "at":
                state.step, state.row, state.call = int(word["step"]), str(word["row"]), str(word["call"])
                met = met or bool(state.row)
                ranks.heard("at", f"rank {word['rank']}: {state.call}")
            elif kind == "ready":
                ranks.software.update(word["software"])
                ranks.hosts[int(word["rank"])] = str(word["host"])
            elif kind == "measured":
                m = msgspec.convert(word["measurement"], Measurement)
                ranks.settled.add(str(word["row"]))
                ranks.heard("measured", m.id)
                yield m
            elif kind == "unsupported":
                ranks.settled.add(str(word["row"]))
                yield NotMeasured(id=str(word["id"]), reason=str(word["reason"]))
            elif kind == "failed":
                state.failed, state.cause = str(word["reason"]), str(word.get("cause", ""))
            elif kind == "finished":
                state.finished = True
        if ended is not None:
            break
        ended = ranks.launcher_word()
        if ended is None and (lost := ranks.life.text):
            ranks.heard("failed", lost)
            yield from _unsettled(ranks, lost, SILENT_STEP)
            return
        limit = quiet_s if met else join_s
        if ended is None and monotonic() - last > limit:
            reason = hang_text(ranks.states, limit, ranks.expected)
            ranks.heard("failed", reason)
            yield from _unsettled(ranks, reason, "check that process (its stack: py-spy dump --pid PID) and its node")
            return
    if ended["event"] == "done":
        return
    reason, step = failure_text(ranks.rows, ranks.states, ranks.process, ended)
    ranks.heard("failed", reason)
    yield from _unsettled(ranks, reason, step)


def _unsettled(ranks: Ranks, reason: str, step: str) -> Iterator[NotMeasured]:
    """Yield the rows that are not, or not wholly, measured; the row in which it happened is among them."""
    at = {s.row for s in ranks.states.values() if not s.finished}
    for row in ranks.rows:
        if row.id not in ranks.settled or row.id in at:
            yield NotMeasured(id=row.id, reason=reason, required=True, next_step=step)
