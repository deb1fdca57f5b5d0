"""The training step over MPI with mpi4py.

torch's wheels have no MPI backend, so the gradients, in host memory, go in one exchange after the backward pass,
without overlap; compressed as the row says (codecs.py).
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from topocheck.model.measurement import Hook, TrainingKind
from topocheck.tests_live.collectives.wire import MpiWire
from topocheck.tests_live.launch.job import Events
from topocheck.tests_live.launch.training_job import TrainRow
from topocheck.tests_live.training.codecs import Memory, mean, shapes_of
from topocheck.tests_live.training.digits import DigitsError, learn, load, network
from topocheck.tests_live.training.rank import measurement
from topocheck.tests_live.training.step import WARM_STEPS, Stepper, UnsupportedHookError, stopped

Told = list[tuple[TrainingKind, list[float], str]]


def average(torch: Any, wire: MpiWire, net: Any, hook: Hook, memory: Memory) -> None:
    """Replace the gradients by their mean over all ranks."""
    got, _ = mean(torch, wire, hook, torch.cat([p.grad.reshape(-1) for p in net.parameters()]), memory)
    at = 0
    for p in net.parameters():
        p.grad.copy_(got[at : at + p.numel()].view_as(p))
        at += p.numel()


def run_rows(rows: tuple[TrainRow, ...], world: Any, events: Events) -> None:
    """Be one rank of MPI's world for some rows; rank 0 sends what is measured."""
    import torch

    torch.set_num_threads(1)
    for row in rows:
        comm = world.Split(0 if world.rank < row.ranks else 1, world.rank)
        if world.rank < row.ranks:
            events.at(row.id, f"{row.kind} over MPI")
            wire = MpiWire(torch, comm)
            try:
                told = _digits(torch, row, wire) if row.kind == "digits" else _step(torch, row, wire)
            except (DigitsError, UnsupportedHookError) as e:
                told = []
                if wire.rank == 0:
                    events.send("unsupported", row=row.id, id=row.id, reason=f"mpi, {row.device}: {e}")
            for kind, samples, unit in told:
                if wire.rank == 0:
                    events.send("measured", row=row.id, measurement=measurement(row, kind, samples, unit))
        world.Barrier()


def _digits(torch: Any, row: TrainRow, wire: MpiWire) -> Told:
    task = load(torch, row.data)
    net = network(torch, task)
    memory = Memory(shapes_of(net.parameters()))
    got = learn(
        torch, task, net, net, wire.rank, wire.size, row.epochs, wire.device,
        lambda: average(torch, wire, net, row.hook, memory), lambda taken_s: wire.largest(taken_s) > row.limit_s,
    )  # fmt: skip
    if got.epochs < row.epochs:
        raise UnsupportedHookError(stopped(row.limit_s, f"in epoch {got.epochs} of {row.epochs}"))
    return [("accuracy", [got.accuracy], "share"), ("epoch", [got.epoch_s * 1e6], "us")]


def _step(torch: Any, row: TrainRow, wire: MpiWire) -> Told:
    local = TrainRow(
        id=row.id,
        backend="mpi",
        ranks=1,
        model=row.model,
        gradient_bytes=row.gradient_bytes,
        batch=row.batch,
        exact=row.exact,
    )
    stepper = Stepper(torch, local, wire.rank, None, wire.device)
    memory = Memory(shapes_of(stepper.net.parameters()))
    told: Told = []
    if row.exact and stepper.own is not None:
        exact = stepper.own.float()
        wire.all_reduce(exact)
        stepper.gradients()
        average(torch, wire, stepper.net, row.hook, memory)
        told.append(("gradient_error", [stepper.error(exact.double() / wire.size)], "relative"))

    def step() -> None:
        stepper.gradients()
        average(torch, wire, stepper.net, row.hook, memory)
        stepper.optimizer.step()

    def once() -> float:
        wire.barrier()
        start = perf_counter()
        step()
        return wire.largest(perf_counter() - start)

    # What the first step loads is not its own.
    if once() > row.limit_s and (took := once()) > row.limit_s:
        raise UnsupportedHookError(stopped(row.limit_s, f"one step takes {took:.1f} s"))
    for _ in range(WARM_STEPS):
        step()
    calls = max(2, min(500, int(row.sample_s / max(once(), 1e-6))))
    samples = []
    for _ in range(row.samples):
        wire.barrier()
        samples.append(wire.total(stepper.timed(step, calls)) / wire.size * 1e6)
    return [*told, ("train_step", samples, "us")]
