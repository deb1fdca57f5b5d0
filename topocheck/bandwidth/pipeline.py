"""Pipelines of stages: the order of the passes, the bubble, and what a step takes. Pure.

F-then-B runs all forward passes of a step and then all backward ones (GPipe: Y. Huang et al., 2019). 1F1B runs one
forward and one backward pass in turn once the pipeline is full (PipeDream-Flush: D. Narayanan et al., "Memory-efficient
pipeline-parallel DNN training", 2021). Both idle (p - 1) / (m + p - 1) of a step of p stages and m micro-batches; 1F1B
holds the activations of p micro-batches at most, F-then-B those of all m.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Schedule = Literal["f_then_b", "1f1b"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
NAMES: dict[Schedule, str] = {"f_then_b": "F-then-B", "1f1b": "1F1B"}
BY_TORCH: dict[Schedule, str] = {"f_then_b": "ScheduleGPipe", "1f1b": "Schedule1F1B"}
"""Classes of torch.distributed.pipelining that run the same schedules."""
BACKWARD = 2.0
"""Times a forward pass that a backward one takes: gradients of inputs and of weights, one product each."""


class Pass(msgspec.Struct, frozen=True):
    """One pass of one micro-batch through one stage."""

    forward: bool
    micro: int


def passes(schedule: Schedule, stage: int, stages: int, micro: int) -> tuple[Pass, ...]:
    """Return the passes of a stage in their order.

    Args:
        schedule: which.
        stage: from 0, which has the first layers.
        stages: p.
        micro: m, micro-batches of a step.
    """
    warm = micro if schedule == "f_then_b" else min(micro, stages - stage)
    out = [Pass(True, i) for i in range(warm)]
    done = 0
    for i in range(warm, micro):
        out += [Pass(False, done), Pass(True, i)]
        done += 1
    return (*out, *(Pass(False, i) for i in range(done, micro)))


def held(order: tuple[Pass, ...]) -> int:
    """Return of how many micro-batches a stage holds the activations at most."""
    most = now = 0
    for p in order:
        now += 1 if p.forward else -1
        most = max(most, now)
    return most


def bubble(stages: int, micro: int) -> float:
    """Return the share of a step in which a stage idles: (p - 1) / (m + p - 1)."""
    return (stages - 1) / (micro + stages - 1)


def step_s(
    schedule: Schedule, stages: int, micro: int, forward_s: float, backward_s: float, send_s: float = 0.0
) -> float:
    """Return the time of one step by going through the passes of all stages.

    A pass begins when its stage is free and what it needs has come: a forward pass that of the stage before, a backward
    pass that of the stage behind, each `send_s` after it ended.
    """
    orders = [list(passes(schedule, s, stages, micro)) for s in range(stages)]
    ended: dict[tuple[int, bool, int], float] = {}
    free = [0.0] * stages
    while any(orders):
        moved = False
        for s, order in enumerate(orders):
            while order:
                p = order[0]
                source = (s - 1, True, p.micro) if p.forward else (s + 1, False, p.micro)
                inner = 0 <= source[0] < stages
                if inner and source not in ended:
                    break
                begin = max(free[s], ended[source] + send_s if inner else 0.0)
                free[s] = ended[s, p.forward, p.micro] = begin + (forward_s if p.forward else backward_s)
                order.pop(0)
                moved = True
        assert moved, "a schedule whose passes wait for each other"
    return max(free)
