"""What every rank is reported, and how it tells its parent what happens."""

from __future__ import annotations

import os
import socket
from typing import Any

import msgspec

from topocheck.bandwidth.cases import CollectiveRow
from topocheck.tests_live.launch.connection import Ticket
from topocheck.tests_live.launch.lab_job import LabRow
from topocheck.tests_live.launch.training_job import TrainRow
from topocheck.tests_live.launch.world import World

STEPS_OF_A_SWEEP = 1_000_000
"""More than a sweep has."""


class RankJob(msgspec.Struct, frozen=True, kw_only=True):
    """What every rank is reported.

    Attributes:
        rows: sweeps of collectives.
        train: rows of training; ranks take these where there are any, and ranks of MPI both.
        lab: rows of a lab, after those of training.
        events: path of the datagram socket that takes events.
        store: path of the file where ranks meet that are started here.
        local_ranks: how many are to be started here; 0 to be the one rank that a launcher started.
        local_gpus: address of the GPU of each local rank; empty where no GPU takes part.
        local_cpus: kernel list of CPUs for each local rank; empty texts where nothing is known.
        timeout_s: after which a collective that does not come back is given up by torch itself.
        meet_s: how long ranks of a launcher wait for each other once they have torch.
        world: the place of this rank among those of a launcher; None where all ranks are started and heard here.
        ticket: by which it meets the others.
        scope: names this set of ranks there, of those that follow each other.
    """

    rows: tuple[CollectiveRow, ...] = ()
    train: tuple[TrainRow, ...] = ()
    lab: tuple[LabRow, ...] = ()
    events: str = ""
    store: str = ""
    local_ranks: int = 0
    local_gpus: tuple[str, ...] = ()
    local_cpus: tuple[str, ...] = ()
    timeout_s: float = 60.0
    meet_s: float = 60.0
    world: World | None = None
    ticket: Ticket | None = None
    scope: str = ""


class Events:
    """Datagrams to the parent: each is one JSON object, whole or not at all."""

    def __init__(self, path: str, rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._path = path
        self.rank = rank
        self.step = 0
        self.row = ""

    def send(self, event: str, **fields: Any) -> None:
        """Send one event; a parent that is gone ends the rank."""
        message = {"event": event, "rank": self.rank, "pid": os.getpid()} | fields
        try:
            self._socket.sendto(msgspec.json.encode(message), self._path)
        except (FileNotFoundError, ConnectionRefusedError):
            os._exit(1)

    def at(self, row: str, call: str, after_sweep: int = 0) -> None:
        """Say which call comes next; steps are counted alike on all ranks, so the one behind is known.

        `after_sweep` is the number of the sweep that is done, from 1: ranks that had no part in it are level there with
        those that had.
        """
        self.step = max(self.step + 1, after_sweep * STEPS_OF_A_SWEEP)
        self.row = row
        self.send("at", row=row, call=call, step=self.step)
