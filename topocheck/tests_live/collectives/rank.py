"""What one rank does: join, make the groups, run the sweeps.

Gloo is the control plane whatever is measured: it agrees on when to stop, averages the ranks' times, and notices at
once when a rank is gone.
"""

from __future__ import annotations

import contextlib
import gc
import re
import socket
import traceback
from datetime import timedelta
from typing import Any

from topocheck.bandwidth.cases import CollectiveRow
from topocheck.tests_live.collectives.nccl_timing import DIRECT_MODES, DirectNccl, connect
from topocheck.tests_live.collectives.sweep import Sweep
from topocheck.tests_live.copies.numa_pages import on_cpus
from topocheck.tests_live.launch.job import Events, RankJob
from topocheck.tests_live.launch.rank_status import LAST_WORD_S, RollCall, lost, within
from topocheck.tests_live.launch.rendezvous import Rendezvous, rejoin
from topocheck.tests_live.launch.torch_store import torch_store
from topocheck.tests_live.launch.world import LaunchError

PATIENCE_S = 30.0
"""How much longer than torch's limit a rank waits for NCCL itself: the parent's verdict, which names the rank that is
behind, comes first."""


class Rank:
    """One rank among `size`, with its control group and what it measures on."""

    def __init__(self, job: RankJob, rank: int, size: int, local_rank: int) -> None:
        self.job, self.rank, self.size, self.local_rank = job, rank, size, local_rank
        self.events = Events(job.events, rank)
        self.torch: Any = None
        self.direct: dict[tuple[int, ...], tuple[DirectNccl | None, str]] = {}
        self.device: Any = None
        self.meeting: Rendezvous | None = None
        self.roll: RollCall | None = None

    def join(self) -> None:
        """Import torch, take the device, meet the others."""
        self.events.at("", "import torch")
        try:
            import torch
        except ImportError as e:
            raise LaunchError(f"torch cannot be imported ({e}): pip install torch") from None
        self.torch = torch
        torch.set_num_threads(1)
        if self.job.local_gpus:
            self.events.at("", f"torch.cuda.set_device({self.local_rank})")
            self.device = self._gpu(self.job.local_gpus[self.local_rank])
            torch.cuda.set_device(self.device)
        limit = timedelta(seconds=self.job.timeout_s)
        if self.job.world is None or self.job.ticket is None:
            # A file of this user's alone: nothing listens for the ranks of one node.
            store = torch.distributed.FileStore(self.job.store, self.size)
        else:
            self.events.at("", "meeting of all ranks")
            self.meeting = rejoin(self.job.world, self.job.ticket, self.job.meet_s)
            self.roll = RollCall(self.meeting.scoped(self.job.scope))
            self.roll.wait_for_all(self.job.meet_s)
            store = torch_store(torch, self.meeting.scoped(f"{self.job.scope}/torch"), self.job.timeout_s)
        self.events.at("", "init_process_group")
        torch.distributed.init_process_group("gloo", timeout=limit, store=store, rank=self.rank, world_size=self.size)
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
        raise RuntimeError(f"{address} is not among the devices torch sees; check CUDA_VISIBLE_DEVICES")

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

    def run(self) -> None:
        """Be this rank from its start to its end; an error is reported to the parent, and raised."""
        cpus = self.job.local_cpus[self.local_rank] if self.local_rank < len(self.job.local_cpus) else ""
        with on_cpus(cpus) if cpus else contextlib.nullcontext():
            try:
                self.join()
                self.work()
                self.events.at("", "ncclCommDestroy")
                self.leave()
                self.events.at("", "destroy_process_group")
                self.torch.distributed.destroy_process_group()
                if self.meeting is not None:
                    self.meeting.close()
            except Exception as e:
                # Gloo puts the line of its source in front: [buffer.cc:72] Timed out waiting ...
                text = re.sub(r"^\[[^\]]*\] ", "", str(e)).partition("\n")[0].partition(" This is typically")[0][:300]
                # Its frames hold the groups, perhaps a graph, and that the communicator: none could be closed.
                traceback.clear_frames(e.__traceback__)
                e.__traceback__ = None
                self.events.send("failed", reason=f"{type(e).__name__}: {text}", cause=self.cause(e, text))
                self.abort()
                raise
        self.events.send("finished")

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
        return "rank 0, which holds the rendezvous store, no longer answers" if said is None else said

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
