"""What the user asked `topocheck bw` for."""

from __future__ import annotations

from typing import Literal

import msgspec

from topocheck.bandwidth.cases import Allocator
from topocheck.model.measurement import Backend, Budget, Collective


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for.

    Attributes:
        budget: quick, standard or full.
        gpus: labels, addresses or UUIDs; empty for all.
        all_pairs: every ordered pair even where the budget would take neighbours only.
        collectives, backends: empty for the budget's own choice.
        sizes_bytes: empty for the budget's own choice.
        engine: driver, torch or both.
        torch_available: whether torch is installed (found, not imported).
        host_available_bytes: memory the host can spare; None where it is not known.
        cpus: how many CPUs the ranks may run on; None where it is not known.
        joined: a launcher started the ranks, which may be on many nodes; each has a GPU of its own node.
        unusable: address of each GPU that no program can open from here -> why; a cause that GPUs share is one text.
    """

    budget: Budget = "standard"
    gpus: tuple[str, ...] = ()
    all_pairs: bool = False
    pageable: bool = False
    far_numa: bool = False
    staged: bool = False
    engine: Literal["driver", "torch", "both"] = "driver"
    copies: bool = True
    collectives: tuple[Collective, ...] = ()
    backends: tuple[Backend, ...] = ()
    ranks: int | None = None
    sizes_bytes: tuple[int, ...] = ()
    dtype: str = "float32"
    allocator: Allocator = "torch"
    torch_available: bool = True
    driver_available: bool = True
    host_available_bytes: int | None = None
    cpus: int | None = None
    joined: bool = False
    unusable: dict[str, str] = msgspec.field(default_factory=dict)
