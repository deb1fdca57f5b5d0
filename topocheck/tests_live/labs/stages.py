"""A pipeline of stages, one a rank; a stage waits where it would compute, so ranks that share cores show it too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from topocheck.bandwidth.pipeline import BACKWARD, Pass, Schedule, held, passes
from topocheck.tests_live.labs.bench import Bench, Told
from topocheck.tests_live.labs.exchange import wait


def run(b: Bench) -> Iterator[Told]:
    """Time steps of a pipeline.

    What a stage sends after one pass and what it needs for the next go at once, as in Megatron-LM's schedule: two
    stages that send to each other would wait for ever otherwise.
    """
    row, wire = b.row, b.wire
    order = passes(cast(Schedule, row.name), wire.rank, wire.size, row.pieces)
    count = b.elements()
    out = b.values(count, wire.rank)
    into = b.torch.zeros(count, device=wire.device)
    wrong = 0

    def source(p: Pass) -> int | None:
        """Return who sends what a pass needs."""
        other = wire.rank - 1 if p.forward else wire.rank + 1
        return other if 0 <= other < wire.size else None

    def target(p: Pass) -> int | None:
        """Return who needs what a pass makes."""
        other = wire.rank + 1 if p.forward else wire.rank - 1
        return other if 0 <= other < wire.size else None

    def swap(done: Pass | None, next_: Pass | None) -> None:
        to = None if done is None else target(done)
        from_ = None if next_ is None else source(next_)
        sends: list[tuple[Any, int]] = [] if to is None else [(out, to)]
        wire.swap(sends, [] if from_ is None else [(into, from_)])
        wire.finish()  # a pass begins when what it needs has come

    def step() -> None:
        swap(None, order[0])
        for p, next_ in zip(order, [*order[1:], None], strict=True):
            wait(row.compute_s * (1.0 if p.forward else BACKWARD))
            swap(p, next_)

    b.at("connect the neighbours")
    near = [r for r in (wire.rank - 1, wire.rank + 1) if 0 <= r < wire.size]
    # NCCL connects two ranks in their first call, both ways where a call has both; a rank that only receives then
    # waits for data of one that waits for its other half of the connection (NCCL's ncclTransportP2pSetup).
    wire.swap([(out, r) for r in near], [(b.torch.zeros_like(into), r) for r in near])
    wire.finish()
    b.at("first step")
    step()
    last = source(order[-1])
    if last is not None:
        wrong = int((into != b.values(count, last)).sum())
    wrong = b.checked(wrong)
    times = []
    for i in range(row.samples):
        b.at(f"sample {i + 1}")
        times.append(b.once(step) * 1e6)
    yield Told("time", times, wrong=wrong)
    yield Told("held", [wire.largest(float(held(order)))], "micro-batches")
