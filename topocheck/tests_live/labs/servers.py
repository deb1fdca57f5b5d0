"""Parameter servers, synchronous and asynchronous, and workers that sum by a ring instead.

Workers wait where they would compute. The servers come first among the ranks, each holds an equal part of the
parameters, and a message is that part with one number more: the version that a worker has, or gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from topocheck.tests_live.collectives.by_hand import ring
from topocheck.tests_live.labs.bench import Bench, Told
from topocheck.tests_live.labs.exchange import wait


class NoAnySourceError(Exception):
    """This backend cannot receive from whoever sends next."""


def workers_by_ring(b: Bench) -> Iterator[Told]:
    """Steps of workers that sum their gradients by a ring."""
    count = b.elements(b.wire.size)
    buffer = b.torch.ones(count, device=b.wire.device)

    def step() -> None:
        wait(b.row.compute_s)
        if b.wire.size > 1:
            ring(b.torch, b.wire, buffer)
            b.wire.finish()

    yield from _timed(b, step, b.wire.size)


def synchronous(b: Bench) -> Iterator[Told]:
    """Steps in which the servers wait for all workers and answer them all."""
    wire, servers = b.wire, b.row.count
    part = b.elements(servers) // servers + 1
    workers = range(servers, wire.size)
    buffers = [b.torch.ones(part, device=wire.device) for _ in range(max(servers, len(workers)))]
    total = b.torch.zeros(part, device=wire.device)

    def serve() -> None:
        wire.swap([], [(buffers[i], w) for i, w in enumerate(workers)])
        total.zero_()
        for t in buffers[: len(workers)]:
            total.add_(t)
        wire.swap([(total, w) for w in workers], [])

    def work() -> None:
        wait(b.row.compute_s)
        wire.swap([(buffers[s], s) for s in range(servers)], [])
        wire.swap([], [(buffers[s], s) for s in range(servers)])
        wire.finish()

    yield from _timed(b, serve if wire.rank < servers else work, len(workers))


def _timed(b: Bench, step: object, workers: int) -> Iterator[Told]:
    assert callable(step)
    b.at("first step")
    step()
    times = []
    for i in range(b.row.samples):
        b.at(f"sample {i + 1}")
        times.append(b.once(lambda: [step() for _ in range(b.row.steps)]) / b.row.steps * 1e6)
    yield Told("time", times)
    yield Told("rate", [workers / t * 1e6 for t in times], "steps/s")


def asynchronous(b: Bench) -> Iterator[Told]:
    """Steps in which a server answers each worker by itself; staleness is counted by the first server.

    Raises:
        NoAnySourceError: the backend has no receive from any source.
    """
    wire, servers, torch = b.wire, b.row.count, b.torch
    if not wire.any_source:
        raise NoAnySourceError("no receive from any source, which an asynchronous server needs")
    part = b.elements(servers) // servers
    workers = wire.size - servers
    message = torch.zeros(part + 1, device=wire.device)
    parameters = torch.zeros(part + 1, device=wire.device)
    stale: list[float] = []

    def serve() -> None:
        for version in range(workers * b.row.steps):
            source = wire.recv_any(message)
            stale.append(version - float(message[-1]))
            parameters[:-1].sub_(message[:-1])
            parameters[-1] = version + 1
            wire.send(parameters, source)

    def work() -> None:
        mine = [torch.zeros_like(message) for _ in range(servers)]
        got = [torch.zeros_like(message) for _ in range(servers)]
        for _ in range(b.row.steps):
            wait(b.row.compute_s)
            # At once: a server that answers one worker while another waits for it would wait for ever otherwise.
            wire.swap([(t, s) for s, t in enumerate(mine)], [(t, s) for s, t in enumerate(got)])
            # What came holds the version that this worker computes with; it goes back as if it were gradients.
            mine, got = got, mine

    run = serve if wire.rank < servers else work
    b.at("first steps")
    rates: list[float] = []
    for i in range(b.row.samples):
        b.at(f"sample {i + 1}")
        wire.barrier()
        stale.clear()
        start = perf_counter()
        run()
        rates.append(workers * b.row.steps / wire.largest(perf_counter() - start))
    first = wire.rank == 0
    # The first pushes of all workers are fresh; what follows is the steady state.
    steady = stale[workers:] or stale
    yield Told("rate", rates, "steps/s")
    yield Told("staleness", [wire.total(sum(steady) / len(steady) if first else 0.0)], "updates")
    yield Told("most_stale", [wire.total(max(steady) if first else 0.0)], "updates")
