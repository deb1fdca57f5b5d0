"""What one rank does: join, make the groups, run the sweeps.

Gloo is the control plane whatever is measured: it agrees on when to stop, averages the ranks' times, and notices at
once when a rank is gone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import socket
import traceback
from datetime import timedelta
from typing import Any

import msgspec

from topocheck.tests_live.nccl_timing import DIRECT_MODES, DirectNccl, connect
from topocheck.tests_live.pages import on_cpus
from topocheck.tests_live.rank_sweep import Sweep
from topocheck.tests_live.ranks import LaunchError, World
from topocheck.tests_live.roll_call import LAST_WORD_S, RollCall, lost, within
from topocheck.tests_live.rows import CollectiveRow

STEPS_OF_A_SWEEP = 1_000_000
"""More than a sweep has."""
PATIENCE_S = 30.0
"""How much longer than torch's limit a rank waits for NCCL itself: the parent's verdict, which names the rank that is
behind, comes first."""


class RankJob(msgspec.Struct, frozen=True, kw_only=True):
    """What every rank is told.

    Attributes:
        events: path of the datagram socket that takes events.
        local_gpus: address of the GPU of each local rank; empty where no GPU takes part.
        local_cpus: kernel list of CPUs for each local rank; empty texts where nothing is known.
        timeout_s: after which a collective that does not come back is given up by torch itself.
        world: the place of this rank among those of a launcher; None where all ranks are started and heard here.
    """

    rows: tuple[CollectiveRow, ...]
    events: str
    local_gpus: tuple[str, ...] = ()
    local_cpus: tuple[str, ...] = ()
    timeout_s: float = 60.0
    world: World | None = None


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


class Rank:
    """One rank among `size`, with its control group and what it measures on."""

    def __init__(self, job: RankJob, rank: int, size: int, local_rank: int) -> None:
        self.job, self.rank, self.size, self.local_rank = job, rank, size, local_rank
        self.events = Events(job.events, rank)
        self.torch: Any = None
        self.direct: dict[tuple[int, ...], tuple[DirectNccl | None, str]] = {}
        self.device: Any = None
        self.roll: RollCall | None = None

    def join(self) -> None:
        """Import torch, take the device, meet the others."""
        self.events.at("", "import torch")
        import torch

        self.torch = torch
        torch.set_num_threads(1)
        if self.job.local_gpus:
            self.events.at("", f"torch.cuda.set_device({self.local_rank})")
            self.device = self._gpu(self.job.local_gpus[self.local_rank])
            torch.cuda.set_device(self.device)
        limit = timedelta(seconds=self.job.timeout_s)
        if self.job.world is None:
            self.events.at("", "init_process_group")
            torch.distributed.init_process_group("gloo", timeout=limit)
        else:
            self.events.at("", "meeting of all ranks")
            self.roll = RollCall(torch, self.job.world, self.job.timeout_s)
            self.roll.wait_for_all(self.job.timeout_s)
            self.events.at("", "init_process_group")
            torch.distributed.init_process_group(
                "gloo", timeout=limit, store=self.roll.store, rank=self.rank, world_size=self.size
            )
        software = {"torch": str(torch.__version__)}
        if self.device is not None:
            software["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
            software["torch_cuda"] = str(torch.version.cuda)
        self.events.send("ready", software=software, host=socket.gethostname())

    def _gpu(self, address: str) -> Any:
        """Return the device at an address; under srun each task may see only its own, which is then number 0."""
        torch = self.torch
        for i in range(torch.cuda.device_count()):
            p = torch.cuda.get_device_properties(i)
            if f"{p.pci_domain_id:04x}:{p.pci_bus_id:02x}:{p.pci_device_id:02x}.0" == address:
                return torch.device("cuda", i)
        if torch.cuda.device_count() == 1:
            return torch.device("cuda", 0)
        raise RuntimeError(f"{address} is not among the devices torch sees; look at CUDA_VISIBLE_DEVICES")

    def work(self) -> None:
        """Run all sweeps; graphs last, since a capture that fails can spoil the device for what follows."""
        dist, limit = self.torch.distributed, timedelta(seconds=self.job.timeout_s)
        # Every rank makes every group, in the same order, whether it is a member or not.
        control: dict[int, Any] = {self.size: None}
        measured: dict[tuple[str, int], Any] = {}
        for row in self.job.rows:
            if row.ranks not in control:
                self.events.at(row.id, f"new_group gloo of {row.ranks}")
                control[row.ranks] = dist.new_group(list(range(row.ranks)), timeout=limit, backend="gloo")
            key = (row.backend, row.ranks)
            if key not in measured:
                self.events.at(row.id, f"new_group {row.backend} of {row.ranks}")
                measured[key] = dist.new_group(list(range(row.ranks)), timeout=limit, backend=row.backend)
            if row.backend == "nccl" and any(m in DIRECT_MODES for m in row.modes):
                self._connect(row, control[row.ranks])
        done = 0
        for graphs in (False, True):
            for row in self.job.rows:
                modes = tuple(m for m in row.modes if (m == "graph") == graphs)
                if not modes:
                    continue
                if self.rank < row.ranks:
                    members = tuple(range(row.ranks)) if row.backend == "nccl" else ()
                    direct, no_direct = self.direct.get(members, (None, ""))
                    device = self.device if row.backend == "nccl" else self.torch.device("cpu")
                    sweep = Sweep(
                        torch=self.torch,
                        row=row,
                        rank=self.rank,
                        group=measured[row.backend, row.ranks],
                        control=control[row.ranks],
                        device=device,
                        events=self.events,
                        direct=direct,
                        no_direct=no_direct,
                    )
                    sweep.run(modes)
                done += 1
                self.events.at(row.id, "barrier after the sweep", after_sweep=done)
                dist.barrier()

    def _connect(self, row: CollectiveRow, control: Any) -> None:
        """Make the communicator of a list of members, once."""
        members = tuple(range(row.ranks))
        if members in self.direct:
            return
        self.events.at(row.id, f"ncclCommInitRank of {row.ranks}")
        self.direct[members] = (None, "")
        if self.rank in members:
            self.direct[members] = connect(
                self.torch,
                control,
                rank=members.index(self.rank),
                size=row.ranks,
                device=self.device,
                limit_s=self.job.timeout_s + PATIENCE_S,
            )

    def leave(self) -> None:
        """Free the communicators."""
        gc.collect()  # a graph that is still about would hold one for ever
        for direct, _ in self.direct.values():
            if direct is not None:
                direct.communicator.destroy()

    def cause(self, error: Exception, text: str) -> str:
        """Return which of the launcher's ranks is the cause of an error; the empty text where that is not known."""
        if isinstance(error, LaunchError):
            return text
        if self.roll is None:
            return ""
        roll, reason = self.roll, f"{type(error).__name__}: {text}"
        if lost(reason):
            self.events.at(self.events.row, "asking the other ranks")
        said = within(2 * LAST_WORD_S, lambda: roll.cause(reason, self._let_go))
        return "rank 0, who holds the place where the ranks meet, no longer answers" if said is None else said

    def _let_go(self) -> None:
        """Close the connections to the other ranks."""
        self.abort()
        self.torch.distributed.destroy_process_group()
        gc.collect()

    def abort(self) -> None:
        """End what NCCL still does on the device."""
        direct, self.direct = self.direct, {}
        for one, _ in direct.values():
            if one is not None:
                one.communicator.abort()


def rank_work(job: RankJob, rank: int, size: int, local_rank: int) -> None:
    """Be one rank from its start to its end. The environment names rank 0's place (`env://`)."""
    from topocheck.tests_live.child import die_with_parent

    die_with_parent()
    me = Rank(job, rank, size, local_rank)
    cpus = job.local_cpus[local_rank] if local_rank < len(job.local_cpus) else ""
    with on_cpus(cpus) if cpus else contextlib.nullcontext():
        try:
            me.join()
            me.work()
            me.events.at("", "ncclCommDestroy")
            me.leave()
            me.events.at("", "destroy_process_group")
            me.torch.distributed.destroy_process_group()
        except Exception as e:
            # Gloo puts the line of its source in front: [buffer.cc:72] Timed out waiting ...
            text = re.sub(r"^\[[^\]]*\] ", "", str(e)).partition("\n")[0].partition(" This is typically")[0][:300]
            # Its frames hold the groups, perhaps a graph, and that the communicator: none could be closed.
            traceback.clear_frames(e.__traceback__)
            e.__traceback__ = None
            me.events.send("failed", reason=f"{type(e).__name__}: {text}", cause=me.cause(e, text))
            me.abort()
            raise
    me.events.send("finished")
