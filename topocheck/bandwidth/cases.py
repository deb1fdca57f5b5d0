"""The rows of a plan: what a child process has to do. Plain data that travels as JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

from topocheck.model.measurement import Backend, Budget, CallMode, Collective, CopyDirection, CopyKind, NotMeasured
from topocheck.model.units import size_text

HOST = "host"
"""Name of the node's own memory where a row names an endpoint."""


CopyGroup = Literal["driver", "staged", "torch", "host"]
Allocator = Literal["torch", "nccl"]


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of copies. `issuer` is the address of the GPU whose stream carries it, or `host`."""

    source: str
    destination: str
    issuer: str


class CopyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of copies.

    Attributes:
        group: the child that runs it: `driver`, `staged` (a process in which no pair ever gets peer access),
            `torch` or `host`.
        transfers: all that run at once; the first starts the clock.
        copies, warm_ups: per sample and transfer.
        samples_min, samples_max, budget_s, tolerance: see stats.sample_until_stable.
        host_cpus: kernel list of CPUs to allocate the host's buffers from; empty where it is not known.
        host_node: the NUMA node those CPUs are of; None where it is not known.
        far: that node is not the GPU's own, for comparison.
        verify: `each` sample or the `last`.
    """

    id: str
    kind: CopyKind
    group: CopyGroup
    transfers: tuple[Transfer, ...]
    direction: CopyDirection = "unidirectional"
    size_bytes: int
    copies: int = 16
    warm_ups: int = 4
    samples_min: int = 3
    samples_max: int = 15
    budget_s: float = 2.0
    tolerance: float = 0.01
    host_cpus: str = ""
    host_node: int | None = None
    pageable: bool = False
    far: bool = False
    peer_access: bool | None = None
    verify: Literal["each", "last"] = "each"
    estimate_s: float = 0.0


class CollectiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep of one collective over one group of ranks; it gives one measurement per size and mode.

    `allocator` is what the buffers of NCCL come from: `torch` (its caching allocator over cudaMalloc) or `nccl`
    (ncclMemAlloc, which nccl-tests takes).
    """

    id: str
    collective: Collective
    backend: Backend
    ranks: int
    members: tuple[str, ...] = ()
    sizes_bytes: tuple[int, ...]
    dtype: str = "float32"
    modes: tuple[CallMode, ...] = ("back_to_back",)
    allocator: Allocator = "torch"
    samples_min: int = 3
    samples_max: int = 7
    budget_s: float = 2.0
    tolerance: float = 0.02
    estimate_s: float = 0.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What will be done. `left_out` says what was not planned and why."""

    copies: tuple[CopyRow, ...] = ()
    collectives: tuple[CollectiveRow, ...] = ()
    left_out: tuple[NotMeasured, ...] = ()
    estimate_s: float = 0.0
    budget: Budget = "standard"

    def lines(self) -> tuple[str, ...]:
        """Return what will be done, one line per kind of row, and how long it takes."""
        out: list[str] = []
        kinds: dict[tuple[CopyKind, CopyGroup, int], list[CopyRow]] = {}
        for row in self.copies:
            kinds.setdefault((row.kind, row.group, row.size_bytes), []).append(row)
        for (kind, group, size), rows in kinds.items():
            seconds = sum(r.estimate_s for r in rows)
            number = f"{len(rows)} row{'s' if len(rows) > 1 else ''}"
            out.append(f"{KINDS[kind]} ({group}), {size_text(size)}: {number}, about {seconds:.1f} s")
        for c in self.collectives:
            sizes = size_text(c.sizes_bytes[0])
            if len(c.sizes_bytes) > 1:
                sizes = f"{len(c.sizes_bytes)} sizes {sizes} to {size_text(c.sizes_bytes[-1])}"
            out.append(f"{c.collective} over {c.backend}, {c.ranks} ranks, {sizes}: about {c.estimate_s:.1f} s")
        return tuple(out)


KINDS: dict[CopyKind, str] = {
    "h2d": "host to GPU",
    "d2h": "GPU to host",
    "host_both": "host and GPU, both directions at once",
    "h2d_all": "host to all GPUs at once",
    "d2h_all": "all GPUs to host at once",
    "p2p": "GPU to GPU",
    "p2p_both": "GPU and GPU, both directions at once",
    "p2p_round": "all pairs of a round at once",
    "local": "copy within a GPU",
    "latency": "latency of a small copy, on the device",
    "latency_host": "latency of a small copy, as a program sees it",
    "host_memory": "copy within the host's memory",
}
"""Kind of a copy row -> its name for people."""


def parse_size(text: str) -> int:
    """Return bytes for `128MiB`, `64K`, `1G` or a plain number (`1e6` too); binary units, as nccl-tests reads them.

    Raises:
        ValueError: not a size, or not positive.
    """
    s = text.strip().upper().removesuffix("B").removesuffix("I")
    factor = 1
    if s and s[-1] in "KMGT":
        factor = 1 << 10 * ("KMGT".index(s[-1]) + 1)
        s = s[:-1]
    try:
        value = float(s)
    except ValueError:
        raise ValueError(f"{text.strip()[:40]!r} is not a size; expected 128MiB, 64K or plain bytes") from None
    if not 1 <= value * factor <= 1 << 50:
        raise ValueError(f"{text.strip()[:40]!r} is not a size between 1 byte and 1 PiB")
    return int(value * factor)
