"""A data-parallel training step of a synthetic model: real autograd, DDP, torch's own gradient compression."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from time import perf_counter
from typing import Any

from topocheck.bandwidth.stats import median
from topocheck.tests_live.collectives.wire import TorchWire
from topocheck.tests_live.launch.training_job import MIB, TrainRow
from topocheck.tests_live.training.codecs import DdpHook
from topocheck.tests_live.training.models import task_of

WARM_STEPS = 3
COMPARED = 4 << 20
"""Elements of the gradient that are compared in double precision, at most: every k-th of a larger one. All of a
gradient of 256 MiB would move 512 MiB from each GPU and between the ranks for each method."""
POWERSGD_START = 2
"""Steps before PowerSGD compresses; DDP rearranges its buckets in the first, and it must not have begun by then."""

HOOK_FUNCTIONS = {
    "fp16": ("default_hooks", "fp16_compress_hook"),
    "bf16": ("default_hooks", "bf16_compress_hook"),
    "powersgd": ("powerSGD_hook", "powerSGD_hook"),
}
"""Hook -> module of torch.distributed.algorithms.ddp_comm_hooks, function. Each module is loaded for its own hook only:
PowerSGD's wants numpy. The others are ours (codecs.py)."""


class UnsupportedHookError(Exception):
    """This torch, backend or device does not do it; the text says why."""


def stopped(limit_s: float, why: str) -> str:
    """Return why a row has no numbers that took longer than its limit."""
    return f"stopped after {limit_s:g} s: {why}"


def own_hook(torch: Any, row: TrainRow) -> bool:
    """Tell whether a hook is ours: torch has none, or none that serves here.

    torch's bf16 hook asks for NCCL. Its PowerSGD calls torch.cuda.synchronize(device) wherever CUDA is there, and so
    refuses host memory.
    """
    if row.hook == "bf16":
        return row.backend != "nccl"
    if row.hook == "powersgd":
        return row.device == "host" and bool(torch.cuda.is_available())
    return row.hook not in HOOK_FUNCTIONS


def add_hook(torch: Any, ddp: Any, row: TrainRow, group: Any, device: Any) -> None:
    """Register a compression hook, torch's own where it has one.

    Raises:
        UnsupportedHookError: this torch has no such hook, or what the hook needs is not installed.
    """
    if own_hook(torch, row):
        if row.hook == "fp8" and not hasattr(torch, "float8_e4m3fn"):
            raise UnsupportedHookError("this torch has no float8_e4m3fn")
        wire = TorchWire(torch, group, None, device, row.backend)
        DdpHook(torch, wire, row.hook).register(ddp)
        return
    where, name = HOOK_FUNCTIONS[row.hook]
    try:
        module = importlib.import_module(f"torch.distributed.algorithms.ddp_comm_hooks.{where}")
        state = group
        if row.hook == "powersgd":
            state = module.PowerSGDState(
                process_group=group, matrix_approximation_rank=1, start_powerSGD_iter=POWERSGD_START
            )
    except ImportError as e:
        if e.name and e.name.partition(".")[0] != "torch":
            raise UnsupportedHookError(f"needs {e.name}, which is not installed: pip install {e.name}") from None
        raise UnsupportedHookError(f"this torch has no {name} ({e})") from None
    function = getattr(module, name, None)
    if function is None:
        raise UnsupportedHookError(f"this torch has no {name}")
    ddp.register_comm_hook(state, function)


def wrap(torch: Any, net: Any, row: TrainRow, group: Any, device: Any) -> Any:
    """Return the model in DDP with the row's bucket size and hook."""
    from torch.nn.parallel import DistributedDataParallel

    ids = [device.index] if device.type == "cuda" else None
    mib = row.gradient_bytes / MIB + 1 if one_bucket(torch, row) else row.bucket_mib
    size = {"bucket_cap_mb": mib} if mib else {}
    ddp = DistributedDataParallel(net, device_ids=ids, process_group=group, **size)
    if row.hook != "none":
        add_hook(torch, ddp, row, group, device)
    return ddp


def one_bucket(torch: Any, row: TrainRow) -> bool:
    """Tell whether all gradients must go in one bucket.

    torch's PowerSGD waits for a second exchange inside the callback of the first, on one of the two threads that Gloo
    has for a group: with two buckets in flight both threads wait for each other and the step hangs (seen with torch
    2.13).
    """
    return row.backend == "gloo" and row.hook == "powersgd" and not own_hook(torch, row)


class Stepper:
    """Runs steps of one row on one rank."""

    def __init__(self, torch: Any, row: TrainRow, rank: int, group: Any, device: Any) -> None:
        self.torch, self.row, self.rank, self.group, self.device = torch, row, rank, group, device
        self.task = task_of(torch, row, rank, device)
        self.net = self.task.net
        # Before DDP has its hooks in the model, which act on every backward pass.
        self.own = self._own_gradient() if row.exact else None
        self.run_on = wrap(torch, self.net, row, group, device) if row.ranks > 1 else self.net
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-4)

    def _own_gradient(self) -> Any:
        """Return this rank's own gradient (see _flat)."""
        self.task.loss(self.net).backward()
        own = self._flat()
        self.net.zero_grad(set_to_none=True)
        return own

    def _flat(self) -> Any:
        """Return the gradient's elements that are compared, in host memory and double precision."""
        flat = self.torch.cat([p.grad.detach().reshape(-1) for p in self.net.parameters()])
        return flat[:: -(-flat.numel() // COMPARED)].double().cpu()

    def gradients(self) -> None:
        """Forward and backward, the exchange included."""
        self.optimizer.zero_grad(set_to_none=True)
        self.task.loss(self.run_on).backward()

    def step(self) -> None:
        """One whole training step."""
        self.gradients()
        self.optimizer.step()

    def finish(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)

    def timed(self, work: Callable[[], None], calls: int) -> float:
        """Return seconds per call of calls back to back."""
        self.finish()
        start = perf_counter()
        for _ in range(calls):
            work()
        self.finish()
        return (perf_counter() - start) / calls

    def backward_seconds(self) -> float:
        """Return the median time of the backward pass alone; for one rank."""
        times = []
        for _ in range(5):
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.task.loss(self.run_on)
            self.finish()
            start = perf_counter()
            loss.backward()
            self.finish()
            times.append(perf_counter() - start)
        return median(times)

    def gradient_error(self, control: Any) -> float:
        """Return |g - e| / |e|, where g is what the hook gives and e the mean of all ranks' own fp32 gradients.

        Of a large gradient, by every k-th element (COMPARED).
        """
        assert self.own is not None
        self.torch.distributed.all_reduce(self.own, group=control)
        exact = self.own / self.row.ranks
        # PowerSGD's first steps are not compressed.
        for _ in range(POWERSGD_START + 2 if self.row.hook == "powersgd" else 1):
            self.gradients()
        self.finish()
        return self.error(exact)

    def error(self, exact: Any) -> float:
        """Return |g - e| / |e| of the gradients that the model has now."""
        return float((self._flat() - exact).norm() / exact.norm())
