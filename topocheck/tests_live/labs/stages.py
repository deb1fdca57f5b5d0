"""A pipeline of stages, one a rank; a stage waits where it would compute, so ranks that share cores show it too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from topocheck.bandwidth.pipeline import BACKWARD, BY_TORCH, Pass, Schedule, held, passes
from topocheck.tests_live.collectives.wire import TorchWire
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


def by_torch(b: Bench) -> Iterator[Told]:
    """Time steps of the same pipeline as torch.distributed.pipelining runs it, gradients through autograd.

    Each stage multiplies by a weight of 1, so the activations that come out are those that went in.
    """
    from torch.distributed import pipelining

    torch, row, wire = b.torch, b.row, cast(TorchWire, b.wire)
    passed = _Counted()

    class Stage(pipelining.PipelineStage):  # type: ignore[misc]
        """A stage whose shapes are given: torch would ask the stage before for them in a pickle."""

        def _recv_meta(self, src_stage: int) -> Any:
            raise RuntimeError("this torch asks for the shapes of activations in a pickle, which is not read")

    module = _waiting(torch, row.compute_s, passed).to(wire.device)
    inputs = torch.stack([b.values(b.elements(), i) for i in range(row.pieces)])
    # A stage expects a gradient for what requires one.
    example = inputs[:1].clone().requires_grad_(wire.rank > 0)
    result = inputs[:1].clone().requires_grad_()
    stage = Stage(module, wire.rank, wire.size, wire.device, input_args=example, output_args=result, group=wire.group)
    make = getattr(pipelining, BY_TORCH[cast(Schedule, row.name)])
    schedule = make(stage, n_microbatches=row.pieces, loss_fn=lambda out, _: out.sum())
    last = wire.rank == wire.size - 1

    def step() -> Any:
        module.zero_grad(set_to_none=True)
        if wire.rank == 0:
            return schedule.step(inputs)
        return schedule.step(target=inputs, losses=[]) if last else schedule.step()

    b.at("first step")
    out = step()
    wrong = b.checked(int((out != inputs).sum()) if last else 0)
    times = []
    for i in range(row.samples):
        b.at(f"sample {i + 1}")
        times.append(b.once(step) * 1e6)
    yield Told("time", times, wrong=wrong)
    yield Told("held", [wire.largest(float(passed.most))], "micro-batches")


class _Counted:
    """Micro-batches that have gone forward and not back, and the most there were."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def add(self, n: int) -> None:
        """Count one pass: 1 forward, -1 back."""
        self.now += n
        self.most = max(self.most, self.now)


def _waiting(torch: Any, compute_s: float, passed: _Counted) -> Any:
    """Return a layer that waits in both passes once its input has come."""

    class Wait(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            passed.add(1)
            _arrived(torch, x)
            wait(compute_s)
            return x.clone()

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            passed.add(-1)
            _arrived(torch, gradient)
            wait(compute_s * BACKWARD)
            return gradient

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: Any) -> Any:
            return Wait.apply(x * self.weight)

    return Layer()


def _arrived(torch: Any, x: Any) -> None:
    """Wait for what a GPU still has to receive; other streams may wait for other stages."""
    if x.is_cuda:
        torch.cuda.current_stream(x.device).synchronize()
