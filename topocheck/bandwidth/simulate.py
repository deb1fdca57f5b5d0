"""Model times of collectives and of a data-parallel step on a network of levels, before there is one to measure. Pure.

A level joins units of the one below it: GPUs in a node, nodes below a leaf, leaves below spines. What crosses it costs
alpha + m / beta (R. Hockney, 1994; cost_model.py). Steps and bytes are those of the algorithms as R. Thakur, R.
Rabenseifner and W. Gropp count them ("Optimization of Collective Communication Operations in MPICH", IJHPCA 19, 2005);
latency of rings and trees over nodes is added up as NCCL's own model does (ncclTopoTuneModel in src/graph/tuning.cc).

What it leaves out: congestion of routes, other jobs, jitter, and reductions inside switches (SHARP). So a time is what
a network of these levels can do, not what it will do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from topocheck.bandwidth.costs import busbw_factor

MAX_GPUS = 1 << 20
Algorithm = Literal["ring", "tree", "hierarchical", "server"]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Value(msgspec.Struct, frozen=True):
    """A value and the range that its fit allows."""

    low: Positive
    mid: Positive
    high: Positive

    @classmethod
    def of(cls, value: float | Sequence[float]) -> Value:
        """Return a single number, or (low, mid, high), as a value.

        Raises:
            ValueError: the numbers are not positive and in order.
        """
        listed = [float(value)] * 3 if isinstance(value, int | float) else [float(v) for v in value]
        if len(listed) != 3 or not 0 < listed[0] <= listed[1] <= listed[2] <= 1e9:
            raise ValueError("expected a positive number, or [low, middle, high] in order")
        return cls(*listed)


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What joins units of the level below.

    Attributes:
        name: such as node, leaf, spine.
        members: units of the level below in one unit of this one; 0 for as many as there are (only the last).
        alpha_us: time of a step before its first byte, microseconds.
        beta_gb_s: rate of each GPU across this level, GB/s in one direction, when all GPUs send at once: an uplink that
            carries half of what is below it gives half.
    """

    name: str
    members: int
    alpha_us: Value
    beta_gb_s: Value


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """A network of levels, from the inside.

    Attributes:
        levels: the first joins GPUs in a node.
        base_us: time of a call of a collective before its first step.
        aligned: GPU i of every node is on the leaf of rail i, or all of a node on one: neighbours cross that leaf
            alone. Otherwise every step between nodes crosses the last level.
        source: where the numbers are from.
    """

    levels: tuple[Level, ...]
    base_us: float = 0.0
    aligned: bool = True
    source: str = ""

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a node."""
        return self.levels[0].members


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Model time of one operation at one number of GPUs, seconds: middle, and the ends of the range."""

    operation: str
    algorithm: str
    gpus: int
    nodes: int
    size_bytes: int
    seconds: float
    low_s: float
    high_s: float
    busbw_gb_s: float | None = None


class _At:
    """One network at one end of the ranges."""

    def __init__(self, network: Network, gpus: int, end: int) -> None:
        self.n = gpus
        self.g = min(gpus, network.gpus_per_node)
        self.nodes = math.ceil(gpus / network.gpus_per_node)
        self.base = network.base_us * 1e-6
        pick = ("low", "mid", "high")
        self.alphas: list[float] = [getattr(x.alpha_us, pick[end]) * 1e-6 for x in network.levels]
        self.betas: list[float] = [getattr(x.beta_gb_s, pick[2 - end]) * 1e9 for x in network.levels]
        units = self.nodes
        self.units: list[int] = []
        for level in network.levels[1:]:
            units = math.ceil(units / level.members) if level.members else 1
            self.units.append(units)
        used = next((i for i, u in enumerate(self.units) if u == 1), len(self.units) - 1) if self.nodes > 1 else -1
        self.top = used + 1
        self.aligned = network.aligned

    def hops(self) -> float:
        """Return the latency of one round of a ring over all nodes: an edge a node, in the order of their places."""
        if not self.top:
            return 0.0
        if not self.aligned:
            return self.nodes * self.alphas[self.top]
        edges = [a - b for a, b in zip([self.nodes, *self.units], [*self.units[: self.top - 1], 0], strict=False)]
        return sum(n * self.alphas[i + 1] for i, n in enumerate(edges[: self.top]))

    def net(self, *, ordered: bool = True) -> float:
        """Return the rate of a GPU between nodes, bytes a second.

        In the order of places one node of a unit sends to the next unit, which no uplink notices; otherwise all do.
        """
        if not self.top:
            return math.inf
        return self.betas[1] if ordered and self.aligned else min(self.betas[1 : self.top + 1])

    def depth(self) -> float:
        """Return the latency of a path from the root of a tree over all nodes to a leaf of it."""
        if not self.top:
            return 0.0
        if not self.aligned:
            return math.ceil(math.log2(self.nodes)) * self.alphas[self.top]
        sizes = [self.nodes, *self.units]
        # Inside each unit the tree is over its members; between units over the units.
        inner = [math.ceil(sizes[i] / sizes[i + 1]) for i in range(self.top)]
        return sum(math.ceil(math.log2(m)) * self.alphas[i + 1] for i, m in enumerate(inner) if m > 1)

    def ring_rate(self) -> float:
        """Return the rate of rings through all GPUs: of a GPU inside the node, of all its NICs together between."""
        return min(self.betas[0], self.g * self.net())

    def ring_latency(self, rounds: int) -> float:
        """Return the latency of so many rounds of a ring: a round has a step inside for each GPU, and one a node."""
        inside = self.n - 1 if self.nodes == 1 else self.n - self.nodes
        return self.base + rounds * (inside * self.alphas[0] + self.hops())


def all_reduce(network: Network, gpus: int, size: int, algorithm: Algorithm, end: int = 1) -> float:
    """Return the model time in seconds of an all_reduce.

    Args:
        network: its levels.
        gpus: how many take part.
        size: bytes of each GPU's buffer.
        algorithm: ring through all GPUs; double binary tree over nodes; hierarchical (reduce-scatter in the node, ring
            over nodes for each GPU, all-gather in the node); or one server that gets everything and sends it back.
        end: 0 the fast end of the ranges, 1 the middle, 2 the slow end.
    """
    at = _At(network, gpus, end)
    if gpus < 2:
        return at.base
    if algorithm == "ring":
        # Two rounds through all GPUs: 2 (n - 1) steps, of which two a node go between nodes (ncclTopoTuneModel).
        return at.ring_latency(2) + 2 * (gpus - 1) / gpus * size / at.ring_rate()
    if algorithm == "tree":
        inside = (at.g - 1) * at.alphas[0]
        return at.base + 2 * (inside + at.depth()) + 2 * size / at.ring_rate()
    part, inner = size / at.g, (at.g - 1) / at.g * size / at.betas[0]
    if algorithm == "hierarchical":
        latency = at.base + 2 * (at.g - 1) * at.alphas[0]
        if at.nodes == 1:
            return latency + 2 * inner
        latency += 2 * (at.nodes - 1) / at.nodes * at.hops()
        between = 2 * (at.nodes - 1) / at.nodes * part / at.net()
        # Chunks pass the stages one after the other: the slowest stage counts, or, without that, their sum.
        return latency + (2 * inner + between if end == 2 else max(2 * inner, between))
    latency = at.base + 2 * (at.g - 1) * at.alphas[0] + 2 * (at.alphas[at.top] if at.top else 0.0)
    # Nodes add up inside; one node's NICs take what all others send, and send it back.
    return latency + 2 * inner + 2 * (at.nodes - 1) * part / at.net(ordered=False)


def collective(network: Network, gpus: int, size: int, name: str, end: int = 1) -> float:
    """Return the model time in seconds of a collective by its best algorithm here.

    `size` is counted as nccl-tests counts it: of one rank's buffer for all_reduce and broadcast, of all parts for the
    others.

    Raises:
        ValueError: not a collective of this model.
    """
    at = _At(network, gpus, end)
    if gpus < 2:
        return at.base
    if name == "all_reduce":
        return min(all_reduce(network, gpus, size, a, end) for a in ("ring", "tree", "hierarchical"))
    if name in ("all_gather", "reduce_scatter"):
        return at.ring_latency(1) + (gpus - 1) / gpus * size / at.ring_rate()
    if name == "broadcast":
        return at.base + (at.g - 1) * at.alphas[0] + at.depth() + size / at.ring_rate()
    if name == "all_to_all":
        far = max(0, gpus - at.g) / gpus
        inside = (at.g - 1) / gpus * size / at.betas[0]
        between = far * size / at.net(ordered=False) if far else 0.0
        return at.base + (at.g - 1) * at.alphas[0] + (at.alphas[at.top] if at.top else 0.0) + max(inside, between)
    raise ValueError(f"no model for {name!r}: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all")


def step(network: Network, gpus: int, compute_s: float, gradient_bytes: int, bucket_bytes: int, end: int = 1) -> float:
    """Return the model time in seconds of a data-parallel step of which buckets are exchanged while the rest computes.

    The backward pass takes two thirds of the computation and makes gradients evenly; a bucket's exchange begins when
    the bucket is full and the one before it is through, and the step ends with the last (DDP's way: S. Li et al.,
    VLDB 2020).
    """
    if gpus < 2 or gradient_bytes == 0:
        return compute_s
    count = max(1, math.ceil(gradient_bytes / bucket_bytes))
    each = gradient_bytes / count
    exchange = collective(network, gpus, int(each), "all_reduce", end)
    begun, free = compute_s / 3, 0.0
    for i in range(1, count + 1):
        ready = begun + compute_s * 2 / 3 * i / count
        free = max(free, ready) + exchange
    return max(compute_s, free)


def counts(most: int, per_node: int) -> tuple[int, ...]:
    """Return the numbers of GPUs that are shown: 2, 4, 8 ... up to `most`, and `most`; whole nodes beyond the first."""
    out = [n for n in (2**k for k in range(1, 21)) if n < min(most, per_node)]
    nodes = 1
    while nodes * per_node < most:
        out.append(nodes * per_node)
        nodes *= 2
    return tuple(dict.fromkeys([*out, most]))


def curves(
    network: Network,
    most: int,
    size: int,
    *,
    compute_s: float = 0.0,
    gradient_bytes: int = 0,
    bucket_bytes: int = 25 << 20,
) -> tuple[Point, ...]:
    """Return all curves: each algorithm of all_reduce, the other collectives, and the step where it is asked for."""
    out = []
    names = ("all_gather", "reduce_scatter", "broadcast", "all_to_all")
    for gpus in counts(most, network.gpus_per_node):
        for algorithm in ("ring", "tree", "hierarchical", "server"):
            times = [all_reduce(network, gpus, size, algorithm, e) for e in range(3)]
            out.append(_point(network, "all_reduce", algorithm, gpus, size, times))
        for name in names:
            times = [collective(network, gpus, size, name, e) for e in range(3)]
            out.append(_point(network, name, "best", gpus, size, times))
        if compute_s > 0:
            times = [step(network, gpus, compute_s, gradient_bytes, bucket_bytes, e) for e in range(3)]
            out.append(_point(network, "step", "best", gpus, gradient_bytes, times))
    return tuple(out)


def _point(network: Network, operation: str, algorithm: str, gpus: int, size: int, times: list[float]) -> Point:
    rate = busbw_factor(operation, gpus) * size / times[1] / 1e9 if operation != "step" and times[1] > 0 else None
    return Point(
        operation=operation,
        algorithm=algorithm,
        gpus=gpus,
        nodes=math.ceil(gpus / network.gpus_per_node),
        size_bytes=size,
        seconds=times[1],
        low_s=min(times),
        high_s=max(times),
        busbw_gb_s=rate,
    )
