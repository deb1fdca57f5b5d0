"""What the checks of a recording judge, the run of them, and the arithmetic they share."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from math import sqrt

from topocheck.checks import watch_checks
from topocheck.checks.registry import Check, CheckResult, Context, finding_order, not_applicable, run
from topocheck.gpudirect.types import GpuDirect
from topocheck.model.base import Evidence, Finding
from topocheck.model.node import Node
from topocheck.nccl.predict.types import NcclView
from topocheck.overtime.growth import Growth
from topocheck.overtime.history import History
from topocheck.overtime.types import Kind
from topocheck.policy.types import Policy
from topocheck.topology.types import Topology

READS = ("topocheck watch",)
PCIE_PER_MINUTE = 8.0
"""NVIDIA's limit for replays (DCGM, dcgm_gpu_hardware_limits.h: DCGM_LIMIT_MAX_PCIREPLAY_RATE)."""
MAX_BER = 1e-12
"""Bit errors per bit that a link may have (InfiniBand Architecture Specification, volume 2)."""


class WatchContext(Context, frozen=True, kw_only=True):
    """A context with a recording in it."""

    history: History


def history_in(context: Context) -> History:
    """Return the recording; a check without one, or with one sample, has nothing to judge."""
    if not isinstance(context, WatchContext):
        raise not_applicable("nothing was sampled; `topocheck watch` does")
    if len(context.history.samples) < 2:
        raise not_applicable("fewer than two samples to compare")
    return context.history


def growths(history: History, kind: Kind, *names: str) -> Iterator[tuple[str, str, Growth]]:
    """Return (subject, counter, growth) of the counters with these names.

    Raises:
        NotApplicableError: none of them could be read.
    """
    found = [
        (subject, name, counters[name])
        for subject, counters in history.growth[kind].items()
        for name in names
        if name in counters
    ]
    if not found:
        raise not_applicable(f"no counter of these could be read: {', '.join(names)}")
    yield from found


def worst_minute(growth: Growth) -> float:
    """Return the most that a counter grew within a minute; of a longer step, its part of a minute."""
    most, total = 0.0, 0
    window: deque[tuple[float, float, int]] = deque()
    for step in growth.steps:
        window.append(step)
        total += step[2]
        while step[1] - window[0][0] > 60 and len(window) > 1:
            total -= window.popleft()[2]
        most = max(most, total * 60 / max(60.0, step[1] - window[0][0]))
    return most


def beyond_chance(count: int, expected: float) -> bool:
    """Tell whether there are more errors than a link within its limit has by chance: three standard deviations."""
    return count > expected + 3 * sqrt(expected) + 3


def said(values: Iterable[object]) -> str:
    """Return values in their order, each once until another comes; the last eight of them. For evidence."""
    return " ".join([str(v) for v, _ in groupby(values)][-8:])


def grew(growth: Growth) -> str:
    """Return how much a counter grew, in words."""
    per_s = growth.per_s
    rate = f", {per_s:.3g} a second" if isinstance(per_s, float) else ""
    return f"{growth.first} -> {growth.last}, +{growth.increase} in {growth.seconds:.0f} s{rate}"


def evidence(source: str, growth: Growth) -> tuple[Evidence, ...]:
    """Return what a counter read first and last."""
    return (Evidence(source, grew(growth)),)


def judge_watch(
    history: History,
    *,
    node: Node | None = None,
    topology: Topology | None = None,
    policy: Policy | None = None,
    checks: Iterable[Check] | None = None,
) -> tuple[tuple[CheckResult, ...], tuple[Finding, ...]]:
    """Return what the checks of a recording come to, findings worst first."""
    context = WatchContext(
        node=node or Node(source="watch"),
        topology=topology or Topology(),
        gpudirect=GpuDirect(),
        nccl=NcclView(),
        policy=policy or Policy(),
        history=history,
    )
    outcomes = list(run(watch_checks() if checks is None else checks, context))
    findings = [f for _, found in outcomes for f in found]
    return tuple(r for r, _ in outcomes), tuple(sorted(findings, key=finding_order))
