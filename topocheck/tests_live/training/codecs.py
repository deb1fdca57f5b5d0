"""Gradient compression by torch's own operators, on host memory and on GPUs alike.

torch ships hooks for 16 bits, PowerSGD and 8 bits. Its 8-bit hooks read the result of all_gather as NCCL alone gives
it, and the one per channel quantizes row by row in Python (quantization_hooks.py, `for i in range(x.size()[0])`): 64
MiB of gradients are 32,768 rows of 512, with several kernels for each row and for each rank's copy of it, which took
15.7 s a step on two H200. Here a channel is a row of one matrix and all rows go in one call. What each method sends,
and whose it is, stands in bandwidth/compression.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any

from topocheck.bandwidth.compression import CHANNEL, square, topk_count
from topocheck.model.measurement import Hook
from topocheck.tests_live.collectives.wire import Wire

FLOAT8_MAX = 448.0
"""Largest finite number of float8_e4m3fn (P. Micikevicius et al., "FP8 formats for deep learning", 2022, table 1)."""
PHASES = ("compress", "send", "decompress")
Clock = Callable[[str], AbstractContextManager[None]]


def unclocked(phase: str) -> AbstractContextManager[None]:
    """Time nothing."""
    return contextlib.nullcontext()


class PhaseClock:
    """Adds up the seconds of each phase; the device is waited for at both ends."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Any:
        """Time one phase."""
        self._finish()
        start = perf_counter()
        yield
        self._finish()
        self.seconds[phase] += perf_counter() - start


class Memory:
    """What a method keeps from step to step for one bucket: what it left out, and PowerSGD's vectors.

    Args:
        shapes: (rows, columns) of the matrices that lie one after the other in the flat gradient; one that is nearly
            square where None.
    """

    def __init__(self, shapes: Sequence[tuple[int, int]] | None = None) -> None:
        self.shapes = shapes
        self.left_out: Any = None
        self.vectors: list[Any] = []


def mean(torch: Any, wire: Wire, hook: Hook, flat: Any, memory: Memory, clock: Clock = unclocked) -> tuple[Any, int]:
    """Return the mean of all ranks' flat fp32 gradients as a method brings it, and the bytes of one rank's payload."""
    return _METHODS[hook](torch, wire, flat, memory, clock)


def _full(torch: Any, wire: Wire, flat: Any, memory: Memory, clock: Clock) -> tuple[Any, int]:
    total = flat.clone()
    with clock("send"):
        wire.all_reduce(total)
    return total / wire.size, total.numel() * 4


def _half(dtype: str) -> Callable[..., tuple[Any, int]]:
    def run(torch: Any, wire: Wire, flat: Any, memory: Memory, clock: Clock) -> tuple[Any, int]:
        with clock("compress"):
            small = (flat / wire.size).to(getattr(torch, dtype))
        if wire.sums_halves:
            with clock("send"):
                wire.all_reduce(small)
            with clock("decompress"):
                return small.to(torch.float32), small.numel() * 2
        every = _gathered(torch, wire, small, clock)
        with clock("decompress"):
            return every.to(torch.float32).sum(0), small.numel() * 2

    return run


def _gathered(torch: Any, wire: Wire, payload: Any, clock: Clock) -> Any:
    """Return all ranks' payloads, a row each."""
    out = torch.empty(wire.size * payload.numel(), dtype=payload.dtype, device=payload.device)
    with clock("send"):
        wire.all_gather(out, payload)
    return out.view(wire.size, payload.numel())


def _packed(torch: Any, *parts: Any) -> Any:
    """Return tensors as one of bytes."""
    return torch.cat([p.contiguous().view(torch.uint8).reshape(-1) for p in parts])


def _part(torch: Any, row: Any, start: int, count: int, dtype: Any, width: int) -> Any:
    """Return `count` numbers of a row of bytes; a copy, since the place may not be one where such a number may lie."""
    return row[start : start + count * width].clone().view(dtype)


def _scale(torch: Any, rows: Any, largest: float) -> Any:
    """Return what a row's largest number divided by `largest` is, and 1 for a row of zeros."""
    scale = rows.abs().amax(1) / largest
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def _coded(
    torch: Any, wire: Wire, rows: Any, largest: float, encode: Callable[[Any], Any], code: Any, clock: Clock
) -> tuple[Any, int]:
    """Return the mean of rows that are sent as one byte a number with a scale a row."""
    with clock("compress"):
        scale = _scale(torch, rows, largest)
        payload = _packed(torch, scale, encode(rows / scale[:, None]))
    every = _gathered(torch, wire, payload, clock)
    with clock("decompress"):
        total = torch.zeros_like(rows)
        for row in every:
            scales = _part(torch, row, 0, len(rows), torch.float32, 4)
            total += row[4 * len(rows) :].view(code).view(rows.shape).to(torch.float32) * scales[:, None]
        return total.reshape(-1) / wire.size, payload.numel()


def _fp8(torch: Any, wire: Wire, flat: Any, memory: Memory, clock: Clock) -> tuple[Any, int]:
    code = torch.float8_e4m3fn
    return _coded(torch, wire, flat[None], FLOAT8_MAX, lambda x: x.to(code), code, clock)


def _int8(torch: Any, wire: Wire, rows: Any, clock: Clock) -> tuple[Any, int]:
    return _coded(torch, wire, rows, 127.0, lambda x: x.round().to(torch.int8), torch.int8, clock)


def _tensor(torch: Any, wire: Wire, flat: Any, memory: Memory, clock: Clock) -> tuple[Any, int]:
    return _int8(torch, wire, flat[None], clock)


def _channel(torch: Any, wire: Wire, flat: Any, memory: Memory, clock: Clock) -> tuple[Any, int]:
    rows = torch.nn.functional.pad(flat, (0, -flat.numel() % CHANNEL)).view(-1, CHANNEL)
    got, size = _int8(torch, wire, rows, clock)
    return got[: flat.numel()], size


def _with_left_out(flat: Any, memory: Memory) -> Any:
    return flat if memory.left_out is None else flat + memory.left_out


def _topk(torch: Any, wire: Wire, flat: Any, memory: Memory, clock: Clock) -> tuple[Any, int]:
    k = topk_count(flat.numel())
    with clock("compress"):
        wanted = _with_left_out(flat, memory)
        at = wanted.abs().topk(k, sorted=False).indices
        values = wanted[at]
        memory.left_out = wanted.index_fill(0, at, 0.0)
        payload = _packed(torch, values, at.to(torch.int32))
    every = _gathered(torch, wire, payload, clock)
    with clock("decompress"):
        total = torch.zeros_like(flat)
        for row in every:
            where = _part(torch, row, 4 * k, k, torch.int32, 4).long()
            total.index_add_(0, where, _part(torch, row, 0, k, torch.float32, 4))
        return total / wire.size, payload.numel()


def _sign(torch: Any, wire: Wire, flat: Any, memory: Memory, clock: Clock) -> tuple[Any, int]:
    places = torch.arange(8, dtype=torch.uint8, device=flat.device)
    with clock("compress"):
        wanted = _with_left_out(flat, memory)
        scale = wanted.abs().mean().reshape(1)
        plus = wanted >= 0
        memory.left_out = wanted - torch.where(plus, scale, -scale)
        bits = torch.nn.functional.pad(plus.to(torch.uint8), (0, -flat.numel() % 8)).view(-1, 8)
        payload = _packed(torch, scale, (bits << places).sum(1, dtype=torch.uint8))
    every = _gathered(torch, wire, payload, clock)
    with clock("decompress"):
        total = torch.zeros_like(flat)
        for row in every:
            one = ((row[4:, None] >> places) & 1).reshape(-1)[: flat.numel()]
            total += (one.to(torch.float32) * 2 - 1) * _part(torch, row, 0, 1, torch.float32, 4)
        return total / wire.size, payload.numel()


def shapes_of(parameters: Iterable[Any]) -> list[tuple[int, int]]:
    """Return the matrices of a model's parameters; a vector is one of one row, which rank 1 brings exactly."""
    return [(p.shape[0] if p.dim() > 1 else 1, p.numel() // (p.shape[0] if p.dim() > 1 else 1)) for p in parameters]


def _powersgd(torch: Any, wire: Wire, flat: Any, memory: Memory, clock: Clock) -> tuple[Any, int]:
    shapes = memory.shapes or [square(flat.numel())]
    with clock("compress"):
        whole = sum(rows * columns for rows, columns in shapes)
        wanted = torch.nn.functional.pad(_with_left_out(flat, memory), (0, whole - flat.numel()))
        matrices = [m.view(s) for m, s in zip(wanted.split([a * b for a, b in shapes]), shapes, strict=True)]
        if not memory.vectors:
            made = torch.Generator().manual_seed(1)  # the same on all ranks
            memory.vectors = [torch.randn(columns, generator=made).to(flat.device) for _, columns in shapes]
        left = torch.cat([m @ v for m, v in zip(matrices, memory.vectors, strict=True)])
    with clock("send"):
        wire.all_reduce(left)
    with clock("compress"):
        lefts = [x / x.norm().clamp_min(1e-30) for x in left.split([rows for rows, _ in shapes])]
        right = torch.cat([m.T @ x for m, x in zip(matrices, lefts, strict=True)])
    with clock("send"):
        wire.all_reduce(right)
    with clock("decompress"):
        memory.vectors = list((right / wire.size).split([columns for _, columns in shapes]))
        outer = [torch.outer(x, v).reshape(-1) for x, v in zip(lefts, memory.vectors, strict=True)]
        got = torch.cat(outer)[: flat.numel()]
        memory.left_out = wanted[: flat.numel()] - got
        return got, 4 * sum(rows + columns for rows, columns in shapes)


_METHODS: dict[Hook, Callable[..., tuple[Any, int]]] = {
    "none": _full,
    "fp16": _half("float16"),
    "bf16": _half("bfloat16"),
    "fp8": _fp8,
    "8bit_tensor": _tensor,
    "8bit_channel": _channel,
    "topk": _topk,
    "sign": _sign,
    "powersgd": _powersgd,
}


class DdpHook:
    """A communication hook of DDP that brings each bucket's mean by one of these methods.

    The exchange is waited for within the hook: nothing waits for it on a thread of the backend, so any number of
    buckets may be in flight.
    """

    def __init__(self, torch: Any, wire: Wire, hook: Hook) -> None:
        self.torch, self.wire, self.hook = torch, wire, hook
        self._memory: dict[tuple[int, int], Memory] = {}

    def register(self, ddp: Any) -> None:
        """Make it the hook of a model in DDP, which refuses annotations other than its own."""
        ddp.register_comm_hook(None, lambda state, bucket: self._bring(bucket))

    def _bring(self, bucket: Any) -> Any:
        """Return the future of one bucket's mean."""
        flat = bucket.buffer()
        key = (bucket.index(), flat.numel())
        if key not in self._memory:
            self._memory[key] = Memory(shapes_of(bucket.parameters()))
        got, _ = mean(self.torch, self.wire, self.hook, flat, self._memory[key])
        done = self.torch.futures.Future(devices=[flat.device] if flat.device.type == "cuda" else None)
        done.set_result(got)
        return done
