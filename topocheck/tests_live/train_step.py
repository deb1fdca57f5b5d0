"""A data-parallel training step of a synthetic model: real autograd, DDP, torch's own gradient compression."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from time import perf_counter
from typing import Any

from topocheck.tests_live.stats import median
from topocheck.tests_live.train_types import MIB, TrainRow, layers_of

WARM_STEPS = 3
POWERSGD_START = 2
"""Steps before PowerSGD compresses; DDP rearranges its buckets in the first, and it must not have begun by then."""

HOOK_FUNCTIONS = {
    "fp16": ("default_hooks", "fp16_compress_hook"),
    "bf16": ("default_hooks", "bf16_compress_hook"),
    "powersgd": ("powerSGD_hook", "powerSGD_hook"),
    "8bit_tensor": ("quantization_hooks", "quantization_pertensor_hook"),
    "8bit_channel": ("quantization_hooks", "quantization_perchannel_hook"),
}
"""Hook -> module of torch.distributed.algorithms.ddp_comm_hooks, function. Each module is loaded for its own hook only:
PowerSGD's wants numpy."""


class UnsupportedHookError(Exception):
    """This torch, backend or device does not do it; the text says why."""


def model(torch: Any, row: TrainRow, device: Any) -> Any:
    """Return square linear layers with the wanted number of gradient bytes, the same on every rank."""
    width, layers = layers_of(row.gradient_bytes)
    torch.manual_seed(1)
    out = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    for p in out.parameters():
        # Keeps the size of activations and gradients from layer to layer; else they vanish, and 16 bits underflow.
        torch.nn.init.normal_(p, std=width**-0.5)
    return out.to(device)


def batch(torch: Any, row: TrainRow, rank: int, device: Any) -> tuple[Any, Any]:
    """Return inputs and targets of a rank, different from rank to rank."""
    width, _ = layers_of(row.gradient_bytes)
    made = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(row.batch, width, generator=made)
    return x.to(device), torch.randn(row.batch, width, generator=made).to(device)


def add_hook(ddp: Any, hook: str, group: Any) -> None:
    """Register a compression hook of torch.

    Raises:
        UnsupportedHookError: this torch has no such hook, or what the hook needs is not installed.
    """
    where, name = HOOK_FUNCTIONS[hook]
    try:
        module = importlib.import_module(f"torch.distributed.algorithms.ddp_comm_hooks.{where}")
        state = group
        if hook == "powersgd":
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


def why_not(row: TrainRow, text: str) -> str:
    """Return what a hook's error means where that is known, else the error's text."""
    if row.hook.startswith("8bit") and row.backend == "gloo" and "IndexError" in text:
        # quantization_hooks.py: `fut.wait()[0]` is the list of all ranks' tensors with NCCL, one tensor with Gloo.
        return "torch's 8-bit hooks read the result of all_gather as NCCL gives it, and Gloo gives it otherwise"
    if row.hook == "powersgd" and row.device == "host" and "Expected a cuda device" in text:
        # powerSGD_hook.py: torch.cuda.synchronize(device) wherever torch.cuda.is_available().
        return "torch's PowerSGD hook takes GPU tensors only where CUDA is there"
    return text


def wrap(torch: Any, net: Any, row: TrainRow, group: Any, device: Any) -> Any:
    """Return the model in DDP with the row's bucket size and hook."""
    from torch.nn.parallel import DistributedDataParallel

    ids = [device.index] if device.type == "cuda" else None
    mib = row.gradient_bytes / MIB + 1 if one_bucket(row) else row.bucket_mib
    size = {"bucket_cap_mb": mib} if mib else {}
    ddp = DistributedDataParallel(net, device_ids=ids, process_group=group, **size)
    if row.hook != "none":
        add_hook(ddp, row.hook, group)
    return ddp


def one_bucket(row: TrainRow) -> bool:
    """Tell whether all gradients must go in one bucket.

    PowerSGD and the 8-bit hooks wait for a second exchange inside the callback of the first, on one of the two threads
    that Gloo has for a group: with two buckets in flight both threads wait for each other and the step hangs (seen with
    torch 2.13).
    """
    return row.backend == "gloo" and (row.hook.startswith("8bit") or row.hook == "powersgd")


class Stepper:
    """Runs steps of one row on one rank."""

    def __init__(self, torch: Any, row: TrainRow, rank: int, group: Any, device: Any) -> None:
        self.torch, self.row, self.rank, self.group, self.device = torch, row, rank, group, device
        self.net = model(torch, row, device)
        self.x, self.y = batch(torch, row, rank, device)
        # Before DDP has its hooks in the model, which act on every backward pass.
        self.own = self._own_gradient() if row.exact else None
        self.run_on = wrap(torch, self.net, row, group, device) if row.ranks > 1 else self.net
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-4)

    def _own_gradient(self) -> Any:
        """Return this rank's own gradient, in host memory and double precision."""
        self.torch.nn.functional.mse_loss(self.net(self.x), self.y).backward()
        own = self._flat()
        self.net.zero_grad(set_to_none=True)
        return own

    def _flat(self) -> Any:
        return self.torch.cat([p.grad.detach().reshape(-1) for p in self.net.parameters()]).double().cpu()

    def gradients(self) -> None:
        """Forward and backward, the exchange included."""
        self.optimizer.zero_grad(set_to_none=True)
        self.torch.nn.functional.mse_loss(self.run_on(self.x), self.y).backward()

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
            loss = self.torch.nn.functional.mse_loss(self.run_on(self.x), self.y)
            self.finish()
            start = perf_counter()
            loss.backward()
            self.finish()
            times.append(perf_counter() - start)
        return median(times)

    def gradient_error(self, control: Any) -> float:
        """Return |g - e| / |e|, where g is what the hook gives and e the mean of all ranks' own gradients in fp32."""
        assert self.own is not None
        self.torch.distributed.all_reduce(self.own, group=control)
        exact = self.own / self.row.ranks
        # PowerSGD's first steps are not compressed.
        for _ in range(POWERSGD_START + 2 if self.row.hook == "powersgd" else 1):
            self.gradients()
        self.finish()
        got = self._flat()
        return float((got - exact).norm() / exact.norm())
