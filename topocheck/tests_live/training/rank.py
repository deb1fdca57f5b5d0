"""What one rank does with the rows of a scaling run."""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import timedelta
from time import perf_counter
from typing import Any

from topocheck.bandwidth.stats import median, spread
from topocheck.model.measurement import HOOK_NAMES, Measurement, TrainingKind
from topocheck.tests_live.collectives.rank import Rank
from topocheck.tests_live.launch.training_job import TrainRow
from topocheck.tests_live.training.digits import learn, load, network
from topocheck.tests_live.training.patterns import RUN
from topocheck.tests_live.training.step import WARM_STEPS, Stepper, UnsupportedHookError, stopped, wrap

SLOW_S = 1.0
"""A step that takes longer is measured twice and no more."""


class TrainRank(Rank):
    """One rank: joined as any other, then its rows."""

    def work(self) -> None:
        """Run all rows; what this torch or backend does not do loses one row."""
        dist, limit = self.torch.distributed, timedelta(seconds=self.job.timeout_s)
        groups: dict[tuple[str, int], tuple[Any, Any]] = {}
        for row in self.job.train:
            key = (row.backend, row.ranks)
            if key not in groups:
                self.events.at(row.id, "new groups")
                members = list(range(row.ranks))
                control = dist.new_group(members, timeout=limit, backend="gloo")
                group = dist.new_group(members, timeout=limit, backend=row.backend) if row.ranks > 1 else None
                groups[key] = (group, control)
            refused = self.torch.zeros(1)
            if self.rank < row.ranks:
                try:
                    self._row(row, *groups[key])
                except Exception as e:  # noqa: BLE001 - a hook may raise anything, and loses its own row only
                    self._refused(row, e)
                    refused += 1
            self.events.at(row.id, "meet after the row")
            dist.all_reduce(refused)
            if refused:
                # An exchange that failed halfway must not be met by the next row's.
                del groups[key]
            gc.collect()

    def _refused(self, row: TrainRow, error: Exception) -> None:
        """Tell what cannot be done; an error of the network is a failure and not a refusal."""
        text = reason(error)
        low = text.lower()
        if any(w in low for w in ("timed out", "timeout", "connection", "peer", "out of memory")):
            raise error
        if self.rank == 0:
            what = f"{row.backend}, {row.device}" + (f", {HOOK_NAMES[row.hook]}" if row.hook != "none" else "")
            self.events.send("unsupported", row=row.id, id=row.id, reason=f"{what}: {text}")

    def _row(self, row: TrainRow, group: Any, control: Any) -> None:
        device = self.device if row.device == "gpu" else self.torch.device("cpu")
        if row.kind == "digits":
            self._digits(row, group, control, device)
        elif row.kind == "pattern":
            self._pattern(row, group, control, device)
        else:
            self._step(row, group, control, device)

    def _step(self, row: TrainRow, group: Any, control: Any, device: Any) -> None:
        self.events.at(row.id, "build the model")
        stepper = Stepper(self.torch, row, self.rank, group, device)
        if row.exact:
            self.events.at(row.id, "gradient error")
            self._tell(row, "gradient_error", [stepper.gradient_error(control)], "relative")
        self.events.at(row.id, "warm up")
        once = stepper.timed(stepper.step, 1)
        slowest = self._slowest(once, control)
        if slowest > row.limit_s:  # what the first step loads is not its own
            slowest = self._slowest(stepper.timed(stepper.step, 1), control)
        if slowest > row.limit_s:
            raise UnsupportedHookError(stopped(row.limit_s, f"one step takes {slowest:.1f} s"))
        if slowest < SLOW_S:
            stepper.timed(stepper.step, WARM_STEPS)
            once = stepper.timed(stepper.step, 1)
        self._tell(row, "train_step", self._timed(row, control, once, lambda n: stepper.timed(stepper.step, n)), "us")
        if row.ranks == 1:
            self._tell(row, "backward", [stepper.backward_seconds() * 1e6], "us")

    def _pattern(self, row: TrainRow, group: Any, control: Any, device: Any) -> None:
        torch = self.torch
        buffer = torch.ones(row.gradient_bytes // 4, device=device)
        run = RUN[row.pattern]
        self.events.at(row.id, f"first {row.pattern}")
        run(torch, buffer, group, self.rank, row.ranks)
        wrong = torch.tensor([int((buffer != float(row.ranks)).sum())])
        torch.distributed.all_reduce(wrong, group=control)

        def many(n: int) -> float:
            start = perf_counter()
            for _ in range(n):
                buffer.fill_(1)
                run(torch, buffer, group, self.rank, row.ranks)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            return (perf_counter() - start) / n

        self._tell(row, "pattern", self._timed(row, control, many(1), many), "us", wrong=int(wrong[0]))

    def _digits(self, row: TrainRow, group: Any, control: Any, device: Any) -> None:
        self.events.at(row.id, "learn digits")
        task = load(self.torch, row.data)
        net = network(self.torch, task).to(device)
        run_on = wrap(self.torch, net, row, group, device) if row.ranks > 1 else net

        def late(taken_s: float) -> bool:
            return self._slowest(taken_s, control) > row.limit_s

        got = learn(self.torch, task, net, run_on, self.rank, row.ranks, row.epochs, device, lambda: None, late)
        if got.epochs < row.epochs:
            raise UnsupportedHookError(stopped(row.limit_s, f"in epoch {got.epochs} of {row.epochs}"))
        self._tell(row, "accuracy", [got.accuracy], "share")
        self._tell(row, "epoch", [got.epoch_s * 1e6], "us")

    def _slowest(self, seconds: float, control: Any) -> float:
        """Return the most seconds that any rank took."""
        mine = self.torch.tensor([seconds], dtype=self.torch.float64)
        self.torch.distributed.all_reduce(mine, op=self.torch.distributed.ReduceOp.MAX, group=control)
        return float(mine[0])

    def _timed(self, row: TrainRow, control: Any, once: float, run: Callable[[int], float]) -> list[float]:
        """Return microseconds per call of each sample, mean over ranks; all ranks make the same number of calls."""
        torch, dist = self.torch, self.torch.distributed
        wish = torch.tensor([row.sample_s / max(once, 1e-6)], dtype=torch.float64)
        dist.all_reduce(wish, op=dist.ReduceOp.MIN, group=control)
        # A hook is foreign code and may take seconds a step.
        slow = row.sample_s / float(wish[0]) > SLOW_S
        calls = 1 if slow else max(2, min(500, int(wish[0])))
        out = []
        for i in range(2 if slow else row.samples):
            self.events.at(row.id, f"sample {i + 1}")
            dist.barrier(group=control)
            mine = torch.tensor([run(calls)], dtype=torch.float64)
            dist.all_reduce(mine, group=control)
            out.append(float(mine[0]) / row.ranks * 1e6)
        return out

    def _tell(self, row: TrainRow, kind: TrainingKind, samples: list[float], unit: str, wrong: int = 0) -> None:
        if self.rank == 0:
            self.events.send("measured", row=row.id, measurement=measurement(row, kind, samples, unit, wrong))


def measurement(row: TrainRow, kind: TrainingKind, samples: list[float], unit: str, wrong: int = 0) -> Measurement:
    """Return what a row gave as a Measurement: train_step, backward, epoch and pattern in us, others by their unit."""
    mid = median(samples)
    return Measurement(
        id=f"{row.id}:{kind}",
        kind=kind,
        backend=row.backend,
        ranks=row.ranks,
        direction="collective",
        engine="mpi4py" if row.backend == "mpi" else "torch",
        dtype="float32",
        mode=row.pattern or row.hook,
        placement=row.device,
        size_bytes=row.gradient_bytes,
        iterations=row.batch,
        samples=tuple(samples),
        median=mid,
        min=min(samples),
        max=max(samples),
        spread=spread(samples),
        unit=unit,
        time_us=mid if unit == "us" else None,
        verified=wrong == 0 if kind == "pattern" else None,
        wrong=f"{wrong} wrong elements on all ranks together" if wrong else "",
    )


def reason(error: Exception) -> str:
    """Return an error in one line; of torch's errors in callbacks only the innermost."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    return first.rpartition("Got the following error when running the callback: ")[2][:200]
