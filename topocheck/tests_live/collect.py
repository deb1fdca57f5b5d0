"""The parent's side of the ranks: start or join, deadlines, and a message that names the rank that is missing."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import msgspec

from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.tests_live.collectives import RankJob
from topocheck.tests_live.loopback import LOOPBACK_STEP, loopback_problem
from topocheck.tests_live.rank_child import LaunchJob
from topocheck.tests_live.rank_failures import RankState, failure_text, hang_text
from topocheck.tests_live.ranks import World
from topocheck.tests_live.rows import CollectiveRow
from topocheck.tests_live.shared_memory import SHM_STEP, shared_memory_problem
from topocheck.tests_live.supervise import OURS, Process

QUIET_S = 75.0
"""Seconds without any word from any rank until the ranks are taken for hung; torch's own limit is 60."""
JOIN_S = 180.0
"""The same while ranks import torch and meet: on a cold file system that takes minutes."""
RANK_MODULE = "topocheck.tests_live.rank_child"
Heard = Callable[[str, str], None]
"""Told (`at` | `measured` | `failed`, words) as it happens."""


class Named(Protocol):
    """A row of whatever kind."""

    @property
    def id(self) -> str:
        """Name of the row."""


class Ranks:
    """The ranks this process looks after, and the socket they speak to."""

    def __init__(
        self,
        rows: Sequence[Named],
        job: LaunchJob,
        env: dict[str, str],
        heard: Heard,
        argv: Callable[[str], list[str]] | None = None,
    ) -> None:
        self.rows, self.heard = rows, heard
        self.expected = job.local_ranks
        self.port = env.get("MASTER_PORT", "")
        self.states: dict[int, RankState] = {}
        self.settled: set[str] = set()
        self.software: dict[str, str] = {}
        self.hosts: dict[int, str] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="topocheck-"))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._folder / "events"))
        self._socket.setblocking(False)
        ranks = msgspec.structs.replace(job.ranks, events=str(self._folder / "events"))
        if job.local_ranks:
            # torch's launcher, when it is ended, leaves its own folder and error files behind.
            env = env | {"TMPDIR": str(self._folder)}
        message = msgspec.json.encode(msgspec.structs.replace(job, ranks=ranks))
        told = self._folder / "job"
        told.write_bytes(message)
        self.process = Process(argv(str(told)) if argv else [sys.executable, "-m", RANK_MODULE, "{fd}"], env)
        self.process.tell(message)

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
            event = self.process.event(monotonic() + 0.05)
        except TimeoutError:
            return None
        if event is not None:
            return event
        self.process.process.wait(30)
        return {"event": "done" if self.process.process.returncode == 0 else "gone"}

    def close(self) -> None:
        """End every process and remove the socket."""
        self.process.end()
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def run_collectives(
    rows: tuple[CollectiveRow, ...],
    *,
    world: World | None = None,
    local_gpus: tuple[str, ...] = (),
    local_cpus: tuple[str, ...] = (),
    heard: Heard = lambda kind, words: None,
    software: dict[str, str] | None = None,
    quiet_s: float = QUIET_S,
    join_s: float = JOIN_S,
    torch_limit_s: float | None = None,
    argv: Callable[[str], list[str]] | None = None,
) -> Iterator[Measurement | NotMeasured]:
    """Run sweeps and yield what comes of them; a rank of a launcher other than rank 0 yields only failures.

    Args:
        rows: the sweeps; all ranks of a launcher must be given the same.
        world: this process's place among the ranks of a launcher; None to start the ranks here.
        local_gpus: address of each local rank's GPU.
        local_cpus: kernel list of the CPUs near it.
        heard: told what happens.
        software: filled with versions as the ranks report them.
        quiet_s: seconds of silence that count as a hang.
        join_s: the same before the ranks have met.
        torch_limit_s: seconds after which torch itself gives a call up; a little less than `quiet_s` where None.
        argv: makes the command that starts the ranks from the path of the job; torch's launcher where None.
    """
    if not rows:
        return
    blocked, step = shared_memory_problem(max(r.ranks for r in rows), {r.backend for r in rows}), SHM_STEP
    if not blocked and world is None and argv is None:
        blocked, step = loopback_problem(), LOOPBACK_STEP
    if blocked:
        for row in rows:
            yield NotMeasured(id=row.id, reason=blocked, required=True, next_step=step)
        return
    local = max(r.ranks for r in rows) if world is None else 0
    job = LaunchJob(
        ranks=RankJob(
            rows=rows,
            events="",
            local_gpus=local_gpus,
            local_cpus=local_cpus,
            timeout_s=torch_limit_s or quiet_s - 5,
            world=world,
        ),
        local_ranks=local,
    )
    ranks = Ranks(rows, job, environment(world), heard, argv)
    try:
        yield from listen(ranks, quiet_s, join_s)
        if software is not None:
            software.update(ranks.software)
    finally:
        ranks.close()


def environment(world: World | None) -> dict[str, str]:
    """Return the environment of the ranks: ours, with allocator settings that change what is measured taken back."""
    env = dict(os.environ)
    env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    env["PYTORCH_CUDA_ALLOC_CONF"] = "backend:native,expandable_segments:False"
    env.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "60")
    env["OMP_NUM_THREADS"] = "1"
    env["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    if world is None:
        # Ranks of one node meet over loopback; the host's name need not resolve.
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            env.pop(name, None)
    else:
        env.update(world.environment())
        if world.address in ("127.0.0.1", "localhost", "::1"):
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
            OURS.add(state.pid)
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
        limit = quiet_s if met else join_s
        if ended is None and monotonic() - last > limit:
            reason = hang_text(ranks.states, limit, ranks.expected)
            ranks.heard("failed", reason)
            yield from _unsettled(ranks, reason, "look at that process (its stack: py-spy dump --pid PID) and its node")
            return
    if ended["event"] == "done":
        return
    reason, step = failure_text(ranks, ended)
    ranks.heard("failed", reason)
    yield from _unsettled(ranks, reason, step)


def _unsettled(ranks: Ranks, reason: str, step: str) -> Iterator[NotMeasured]:
    """Yield the rows that are not, or not wholly, measured; the row in which it happened is among them."""
    at = {s.row for s in ranks.states.values() if not s.finished}
    for row in ranks.rows:
        if row.id not in ranks.settled or row.id in at:
            yield NotMeasured(id=row.id, reason=reason, required=True, next_step=step)
