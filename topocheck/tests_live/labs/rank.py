"""What one rank does with the rows of a lab, over torch.distributed and over MPI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from topocheck.bandwidth.stats import median, spread
from topocheck.model.measurement import Measurement
from topocheck.tests_live.collectives.wire import Members, MpiWire, TorchWire, Wire
from topocheck.tests_live.labs import compress, exchange, servers, stages
from topocheck.tests_live.labs.bench import Bench, Told
from topocheck.tests_live.launch.job import Events
from topocheck.tests_live.launch.lab_job import LabRow
from topocheck.tests_live.training.rank import TrainRank, reason

RUN: dict[str, Callable[[Bench], Iterator[Told]]] = {
    "gather": exchange.run,
    "scatter": exchange.run,
    "all_reduce": exchange.run,
    "ring_all_reduce": exchange.run,
    "hierarchical_all_reduce": exchange.run,
    "broadcast": exchange.run,
    "ring_broadcast": exchange.run,
    "all_gather": exchange.run,
    "reduce_scatter": exchange.run,
    "fused": exchange.fused,
    "ping_pong": exchange.ping_pong,
    "one_way": exchange.one_way,
    "both_ways": exchange.one_way,
    "halo": exchange.halo,
    "pipeline": stages.run,
    "torch_pipeline": stages.by_torch,
    "ring_workers": servers.workers_by_ring,
    "sync_servers": servers.synchronous,
    "async_servers": servers.asynchronous,
    "codec": compress.run,
}


def do_row(torch: Any, wire: Wire, row: LabRow, events: Events) -> None:
    """Do a row on one of its ranks; rank 0 sends what is measured."""
    # NCCL makes a group's communicator in its first call, which all ranks must make; not all send or receive.
    wire.all_reduce(torch.zeros(1, device=wire.device))
    for told in RUN[row.work](Bench(torch, wire, row, lambda call: events.at(row.id, call))):
        if wire.rank == 0:
            events.send("measured", row=row.id, measurement=measurement(row, told))


def measurement(row: LabRow, told: Told) -> Measurement:
    """Return a quantity of a row as a Measurement."""
    return Measurement(
        id=f"{row.id}:{told.name}",
        kind="lab",
        backend=row.backend,
        ranks=row.ranks,
        direction="collective",
        engine="mpi4py" if row.backend == "mpi" else "torch",
        dtype="float32",
        placement=row.device,
        size_bytes=row.size_bytes,
        samples=tuple(told.samples),
        median=median(told.samples),
        min=min(told.samples),
        max=max(told.samples),
        spread=spread(told.samples),
        unit=told.unit,
        time_us=median(told.samples) if told.unit == "us" else None,
        verified=None if told.wrong is None else told.wrong == 0,
        wrong=f"{told.wrong} wrong elements on all ranks together" if told.wrong else "",
    )


class LabRank(TrainRank):
    """One rank: joined as any other, its rows of training, then those of the lab."""

    def work(self) -> None:
        """Run all rows; what this torch or backend does not do loses one row."""
        super().work()
        dist = self.torch.distributed
        made: dict[tuple[str, Members], tuple[Any, Any]] = {}
        for row in self.job.lab:
            everybody = row.who
            # A row with members of its own has no groups within: theirs are counted among the first ranks.
            within = exchange.members(row)
            # Every rank makes every group, in the same order, whether it is a member or not.
            for m in (everybody, *within):
                if (row.backend, m) not in made:
                    self.events.at(row.id, "new groups")
                    made[row.backend, m] = self._groups(row.backend, m)
            refused = self.torch.zeros(1)
            if self.rank in everybody:
                device = self.device if row.device == "gpu" else self.torch.device("cpu")
                subs = {m: made[row.backend, m] for m in within}
                group, control = made[row.backend, everybody]
                try:
                    wire = TorchWire(self.torch, group, control, device, row.backend, subs)
                    do_row(self.torch, wire, row, self.events)
                except Exception as e:  # noqa: BLE001 - what a backend does not do loses its own row only
                    self._cannot(row, e)
                    refused += 1
            self.events.at(row.id, "meet after the row")
            dist.all_reduce(refused)
            if refused:
                # An exchange that failed halfway must not be met by the next row's.
                made = {k: v for k, v in made.items() if k[0] != row.backend}

    def _groups(self, backend: str, members: Members) -> tuple[Any, Any]:
        dist, limit = self.torch.distributed, timedelta(seconds=self.job.timeout_s)
        group = dist.new_group(list(members), timeout=limit, backend=backend)
        return group, dist.new_group(list(members), timeout=limit, backend="gloo")

    def _cannot(self, row: LabRow, error: Exception) -> None:
        """Say what cannot be done; an error of the network is a failure and not a refusal."""
        text = reason(error)
        if any(w in text.lower() for w in ("timed out", "timeout", "connection", "peer", "out of memory")):
            raise error
        if self.rank == 0:
            self.events.send("unsupported", row=row.id, id=row.id, reason=f"{row.backend}, {row.device}: {text}")


def run_over_mpi(rows: tuple[LabRow, ...], world: Any, events: Events) -> None:
    """Be one rank of MPI's world for some rows; rank 0 sends what is measured."""
    import torch

    torch.set_num_threads(1)
    for row in rows:
        taken = world.rank in row.who
        comm = world.Split(0 if taken else 1, world.rank)
        if taken:
            events.at(row.id, f"{row.work} over MPI")
            do_row(torch, MpiWire(torch, comm), row, events)
        world.Barrier()
