"""The training step over MPI with mpi4py.

torch's wheels have no MPI backend, so the gradients, in host memory, go in one all_reduce after the backward pass,
without overlap.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from topocheck.tests_live.collectives import Events, RankJob
from topocheck.tests_live.mpi import need_ranks, run_sweeps
from topocheck.tests_live.train_digits import DigitsError, learn, network
from topocheck.tests_live.train_rank import measurement
from topocheck.tests_live.train_step import WARM_STEPS, Stepper
from topocheck.tests_live.train_types import TrainRow


def average(torch: Any, comm: Any, net: Any) -> None:
    """Replace the gradients by their mean over all ranks."""
    from mpi4py import MPI

    flat = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
    comm.Allreduce(MPI.IN_PLACE, flat.numpy(), op=MPI.SUM)
    flat /= comm.size
    at = 0
    for p in net.parameters():
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()


def run_rows(job: RankJob, rows: tuple[TrainRow, ...]) -> None:
    """Be one rank of MPI's world: the sweeps of the job, then the training rows."""
    import torch
    from mpi4py import MPI

    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    events = Events(job.events, world.rank)
    version = MPI.Get_library_version().split(",")[0].splitlines()[0].strip()
    events.send("ready", software={"mpi": version[:80]}, host=MPI.Get_processor_name())
    try:
        need_ranks(world, max((r.ranks for r in rows), default=1))
    except RuntimeError as e:
        events.send("failed", reason=str(e))
        return
    run_sweeps(job.rows, world, events)
    for row in rows:
        comm = world.Split(0 if world.rank < row.ranks else 1, world.rank)
        if world.rank < row.ranks:
            events.at(row.id, f"{row.kind} over MPI")
            try:
                told = _row(torch, row, comm)
            except DigitsError as e:
                told = []
                if comm.rank == 0:
                    events.send("unsupported", row=row.id, id=row.id, reason=f"mpi, {row.device}: {e}")
            for kind, samples, unit in told:
                if comm.rank == 0:
                    events.send("measured", row=row.id, measurement=measurement(row, kind, samples, unit))
        world.Barrier()
    events.send("finished")


def _row(torch: Any, row: TrainRow, comm: Any) -> list[tuple[str, list[float], str]]:
    cpu = torch.device("cpu")
    if row.kind == "digits":
        net = network(torch)
        got = learn(torch, net, net, comm.rank, comm.size, row.epochs, cpu, lambda: average(torch, comm, net))
        return [("accuracy", [got.accuracy], "share"), ("epoch", [got.epoch_s * 1e6], "us")]
    local = TrainRow(id=row.id, backend="mpi", ranks=1, gradient_bytes=row.gradient_bytes, batch=row.batch)
    stepper = Stepper(torch, local, comm.rank, None, cpu)

    def step() -> None:
        stepper.gradients()
        average(torch, comm, stepper.net)
        stepper.optimizer.step()

    for _ in range(WARM_STEPS):
        step()
    start = perf_counter()
    step()
    once = comm.allreduce(perf_counter() - start) / comm.size
    calls = max(2, min(500, int(row.sample_s / max(once, 1e-6))))
    samples = []
    for _ in range(row.samples):
        comm.Barrier()
        samples.append(comm.allreduce(stepper.timed(step, calls)) / comm.size * 1e6)
    return [("train_step", samples, "us")]
