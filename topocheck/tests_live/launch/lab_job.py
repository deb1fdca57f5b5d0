"""The rows of a lab that ranks run: exchanges by hand, pipelines, servers, and what of compression takes time."""

from __future__ import annotations

from typing import Literal

import msgspec

from topocheck.model.measurement import Backend, Hook

Exchange = Literal[
    "gather", "scatter", "all_reduce", "ring_all_reduce", "hierarchical_all_reduce", "broadcast", "ring_broadcast",
    "all_gather", "reduce_scatter",
]  # fmt: skip
Work = Literal[
    Exchange, "ping_pong", "one_way", "both_ways", "fused", "codec", "pipeline", "torch_pipeline", "halo",
    "sync_servers", "async_servers", "ring_workers",
]  # fmt: skip
Device = Literal["host", "gpu"]
Pair = Literal["", "within", "between"]


class LabRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row.

    Attributes:
        work: what the ranks do.
        device: host or gpu: where the buffers live.
        ranks: how many of the job take part: `members`, or the first so many.
        pair: of two ranks, whether they are within a node or on two.
        calibrates: whether the cost of a message is fitted to it, rather than shown by itself.
        size_bytes: of one rank's buffer; of a message, an activation or a border.
        pieces: S of a ring broadcast; micro-batches of a pipeline.
        inside: ranks that count as one node, of a hierarchical exchange.
        count: layers that share a buffer; servers.
        layers: bytes of each gradient, in the order of the backward pass.
        cap_bytes: of a buffer that is closed by size; 0 where `count` closes it.
        name: of the schedule, or of the collective whose buffers are fused.
        hook: compression.
        compute_s: for which a rank waits where it would compute: forward pass of a stage, step of a worker.
        steps: of one sample.
    """

    id: str
    work: Work
    backend: Backend
    device: Device = "host"
    ranks: int = 2
    members: tuple[int, ...] = ()
    pair: Pair = ""
    calibrates: bool = False
    size_bytes: int = 0
    pieces: int = 1
    inside: int = 1
    count: int = 1
    layers: tuple[int, ...] = ()
    cap_bytes: int = 0
    name: str = ""
    hook: Hook = "none"
    compute_s: float = 0.0
    steps: int = 1
    samples: int = 5
    sample_s: float = 0.2

    @property
    def who(self) -> tuple[int, ...]:
        """The ranks of the job that take part."""
        return self.members or tuple(range(self.ranks))
