"""Exchanges between ranks, by the backend's own calls and by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from topocheck.bandwidth.fusion import by_index, by_size
from topocheck.tests_live.collectives.by_hand import ring, ring_broadcast
from topocheck.tests_live.collectives.wire import Members, Wire
from topocheck.tests_live.labs.bench import Bench, Told
from topocheck.tests_live.launch.lab_job import LabRow

PARTS = ("gather", "all_gather", "scatter")
WINDOW = 16
"""Messages that go before one answer, in the test of bandwidth (osu_bw's window is 64)."""


def nodes_of(row: LabRow) -> tuple[list[Members], list[Members]]:
    """Return the ranks of each node, and those of one place on all nodes."""
    g = max(1, row.inside)
    inside = [tuple(range(i, i + g)) for i in range(0, row.ranks, g)]
    return inside, [tuple(range(i, row.ranks, g)) for i in range(g)]


def members(row: LabRow) -> list[Members]:
    """Return the sets of ranks, counted among the row's, of which it needs a wire each."""
    if row.work != "hierarchical_all_reduce":
        return []
    inside, across = nodes_of(row)
    return list(dict.fromkeys([*inside, *across]))


def hierarchical(torch: Any, wire: Wire, row: LabRow, buffer: Any) -> None:
    """Sum a flat buffer in place: reduce_scatter within the node, all_reduce between nodes, all_gather within."""
    inside, across = nodes_of(row)
    near = wire.sub(next(m for m in inside if wire.rank in m))
    far = wire.sub(next(m for m in across if wire.rank in m))
    part = torch.empty(buffer.numel() // near.size, device=buffer.device)
    near.reduce_scatter(part, buffer)
    far.all_reduce(part)
    near.all_gather(buffer, part)


def run(b: Bench) -> Iterator[Told]:
    """Time one exchange and check what it brought."""
    row, wire, n, torch = b.row, b.wire, b.wire.size, b.torch
    count = b.elements(n * n)
    mine, total = b.values(count, wire.rank), b.summed(count)
    buffer = mine.clone()
    part = count // n
    root = wire.rank == 0
    own = mine[wire.rank * part : (wire.rank + 1) * part]

    def reset() -> None:
        buffer.copy_(mine)

    # The size of gather, all_gather and scatter is that of one rank's part, as MPI and OSU's tests count it.
    every = torch.cat([b.values(count, r) for r in range(n)]) if row.work in PARTS else None
    got, want = buffer, total
    if row.work in ("gather", "all_gather"):
        got, want = torch.zeros(n * count, device=wire.device) if root or row.work == "all_gather" else None, every
    elif row.work == "scatter":
        want = mine
    elif row.work in ("broadcast", "ring_broadcast"):
        want = b.values(count, 0)
    elif row.work == "reduce_scatter":
        got, want = torch.zeros_like(own), total[wire.rank * part : (wire.rank + 1) * part]
    call: Callable[[], None] = {
        "all_reduce": lambda: wire.all_reduce(buffer),
        "ring_all_reduce": lambda: ring(torch, wire, buffer),
        "hierarchical_all_reduce": lambda: hierarchical(torch, wire, row, buffer),
        "broadcast": lambda: wire.broadcast(buffer),
        "ring_broadcast": lambda: ring_broadcast(wire, buffer, row.pieces),
        "gather": lambda: wire.gather(got, mine),
        "all_gather": lambda: wire.all_gather(got, mine),
        "scatter": lambda: wire.scatter(buffer, every if root else None),
        "reduce_scatter": lambda: wire.reduce_scatter(got, mine),
    }[row.work]
    b.at(f"first {row.work}")
    call()
    wire.finish()
    wrong = b.checked(0 if got is None else int((got != want).sum()))
    # What is summed in place again and again would leave the numbers of fp32.

    def again() -> None:
        reset()
        call()

    yield Told("time", b.sample(again), wrong=wrong)
    if got is buffer:
        yield Told("refill", b.sample(reset))


def fused(b: Bench) -> Iterator[Told]:
    """Time the exchange of all gradients, as many layers in one buffer as the row says."""
    row, wire = b.row, b.wire
    sizes = by_size(row.layers, row.cap_bytes) if row.cap_bytes else by_index(row.layers, row.count)
    buffers = [b.values(max(wire.size, s // 4 // wire.size * wire.size), wire.rank) for s in sizes]
    outs = [b.torch.zeros(t.numel() // wire.size, device=wire.device) for t in buffers]
    whole = [b.torch.zeros_like(t) for t in buffers]

    def call() -> None:
        for given, part, out in zip(buffers, outs, whole, strict=True):
            if row.name == "all_reduce":
                wire.all_reduce(out)  # of zeros, which stay what they are
            elif row.name == "all_gather":
                wire.all_gather(out, part)
            else:
                wire.reduce_scatter(part, given)

    b.at(f"first {row.name}")
    yield Told("time", b.sample(call))


def ping_pong(b: Bench) -> Iterator[Told]:
    """Half a round trip of one message between ranks 0 and 1, as osu_latency has it."""
    wire, count = b.wire, b.elements()
    buffer = b.values(count, 0) if wire.rank == 0 else b.torch.zeros(count, device=wire.device)

    def call() -> None:
        if wire.rank == 0:
            wire.send(buffer, 1)
            wire.recv(buffer, 1)
        elif wire.rank == 1:
            wire.recv(buffer, 0)
            wire.send(buffer, 0)

    b.at("first message")
    call()
    wire.finish()
    wrong = b.checked(int((buffer != b.values(count, 0)).sum()))
    yield Told("time", [t / 2 for t in b.sample(call)], wrong=wrong)


def one_way(b: Bench) -> Iterator[Told]:
    """A window of messages from rank 0 to rank 1 and one answer, as osu_bw has it; of both at once, osu_bibw."""
    wire, row, count = b.wire, b.row, b.elements()
    other = 1 - wire.rank
    outs = [b.values(count, wire.rank) for _ in range(WINDOW)]
    ins = [b.torch.zeros(count, device=wire.device) for _ in range(WINDOW)]
    sends = [(t, other) for t in outs] if wire.rank == 0 or row.work == "both_ways" else []
    receives = [(t, other) for t in ins] if wire.rank == 1 or row.work == "both_ways" else []
    small = b.torch.zeros(1, device=wire.device)

    def call() -> None:
        wire.swap(sends, receives)
        if wire.rank == 1:
            wire.send(small, 0)
        else:
            wire.recv(small, 1)

    b.at("first window")
    call()
    wire.finish()
    bad = sum(int((t != b.values(count, other)).sum()) for t in ins) if receives else 0
    yield Told("time", b.sample(call, WINDOW), wrong=b.checked(bad))


def halo(b: Bench) -> Iterator[Told]:
    """A stencil of five points on a grid that the ranks share in strips of rows; borders go to both neighbours.

    Every rank does the same few steps on the whole grid by itself first, which the parts must equal.
    """
    torch, wire, row = b.torch, b.wire, b.row
    columns = b.elements()
    rows_each, n, me = row.count, wire.size, wire.rank
    start = b.values(rows_each * n * columns, 0).reshape(rows_each * n, columns)

    def step(grid: Any) -> Any:
        padded = torch.nn.functional.pad(grid[None, None], (1, 1, 0, 0))[0, 0]
        return (grid[:-2] + grid[2:] + padded[1:-1, :-2] + padded[1:-1, 2:]) / 4

    def pad(grid: Any) -> Any:
        return torch.nn.functional.pad(grid[None, None], (0, 0, 1, 1))[0, 0]

    def borders(grid: Any) -> None:
        sends, receives = [], []
        if me > 0:
            sends.append((grid[1], me - 1))
            receives.append((grid[0], me - 1))
        if me < n - 1:
            sends.append((grid[-2], me + 1))
            receives.append((grid[-1], me + 1))
        wire.swap(sends, receives)

    whole, mine = start, pad(start[me * rows_each : (me + 1) * rows_each])
    b.at("first steps")
    for _ in range(3):
        whole = step(pad(whole))
        borders(mine)
        mine[1:-1] = step(mine)
    wrong = b.checked(int((mine[1:-1] != whole[me * rows_each : (me + 1) * rows_each]).sum()))

    def compute() -> None:
        mine[1:-1] = step(mine)

    def both() -> None:
        borders(mine)
        compute()

    yield Told("time", b.sample(both), wrong=wrong)
    yield Told("compute", b.sample(compute))
    yield Told("exchange", b.sample(lambda: borders(mine)))


def wait(seconds: float) -> None:
    """Stand for a computation: the core is left to other ranks."""
    from time import sleep

    end = perf_counter() + seconds
    sleep(max(0.0, seconds - 2e-4))
    while perf_counter() < end:
        sleep(0)
