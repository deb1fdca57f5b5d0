"""One method of compression apart from training: how long each of its parts takes, what it sends, how far it is off."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from topocheck.bandwidth.stats import median
from topocheck.tests_live.labs.bench import Bench, Told
from topocheck.tests_live.training.codecs import PHASES, Memory, PhaseClock, mean

SCALE_SPREAD = 3.0
"""Decades over which the gradient's layers spread: real gradients differ by layer."""


def run(b: Bench) -> Iterator[Told]:
    """Time the parts of one method on a gradient of the row's size.

    The gradient is random, with another scale in each of 16 layers and a part that all ranks share, as gradients of
    batches of one task have.
    """
    torch, wire, row = b.torch, b.wire, b.row
    count = b.elements(16)
    made = torch.Generator(device=wire.device)
    flat = torch.randn(count, generator=made.manual_seed(5), device=wire.device)
    flat += 0.5 * torch.randn(count, generator=made.manual_seed(50 + wire.rank), device=wire.device)
    scale = 10.0 ** -torch.linspace(0, SCALE_SPREAD, 16, device=wire.device)
    flat = (flat.view(16, -1) * scale[:, None]).reshape(-1)
    memory = Memory()
    b.at("first exchange")
    _, payload = mean(torch, wire, row.hook, flat, memory)
    parts: dict[str, list[float]] = {p: [] for p in PHASES}
    begun_all = 0.0
    for i in range(row.samples):
        b.at(f"sample {i + 1}")
        clock = PhaseClock(wire.finish)
        took = b.once(partial(mean, torch, wire, row.hook, flat, memory, clock))
        begun_all += took
        for p in PHASES:
            parts[p].append(wire.total(clock.seconds[p]) / wire.size * 1e6)
        if begun_all > row.sample_s * row.samples and i:
            break
    yield Told("payload", [float(payload)], "B")
    for p in PHASES:
        yield Told(p, [median(parts[p])])
