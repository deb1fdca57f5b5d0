"""Which collectives are swept, over which ranks and sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topocheck.tests_live.rows import CollectiveRow
from topocheck.topology.types import Gpu

if TYPE_CHECKING:
    from topocheck.tests_live.plan import Options

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv")
BACKENDS = ("nccl", "gloo", "mpi")
START_S = {"nccl": 9.0, "gloo": 3.0, "mpi": 1.0}
"""Seconds until ranks can talk: import of torch, contexts and the communicator."""

KIB, MIB = 1 << 10, 1 << 20

SIZES: dict[tuple[str, str], tuple[int, ...]] = {
    ("quick", "nccl"): (64 * KIB, 256 * MIB),
    ("standard", "nccl"): (*tuple(KIB << 3 * n for n in range(6)), 256 * MIB, 1024 * MIB),
    ("full", "nccl"): tuple(KIB << n for n in range(22)),
    ("quick", "gloo"): tuple(KIB << 2 * n for n in range(7)),
    ("standard", "gloo"): tuple(KIB << 2 * n for n in range(8)),
    ("full", "gloo"): tuple(KIB << n for n in range(17)),
}
"""(budget, backend) -> sizes in bytes; MPI moves host memory and takes Gloo's."""


def group_sizes(ranks: int) -> list[int]:
    """Return the group sizes compared in one run: 2, 4, 8 below the number of ranks, and all of them."""
    return [n for n in (2, 4, 8) if n < ranks] + [ranks]


def collective_rows(gpus: tuple[Gpu, ...], options: Options, left_out: list[tuple[str, str]]) -> list[CollectiveRow]:
    """Return the sweeps; what cannot be planned is appended to `left_out` with the reason.

    Raises:
        ValueError: a collective or backend that topocheck does not know, or fewer than two ranks.
    """
    for name in options.collectives:
        if name not in COLLECTIVES:
            raise ValueError(f"no collective is called {name!r}; there are: {', '.join(COLLECTIVES)}")
    for name in options.backends:
        if name not in BACKENDS:
            raise ValueError(f"no backend is called {name!r}; there are: {', '.join(BACKENDS)}")
    if options.ranks is not None and options.ranks < 2:
        raise ValueError("a collective needs at least 2 ranks: --ranks 2")
    backends = options.backends or (("nccl",) if gpus else ("gloo",))
    wanted = options.collectives
    if not wanted:
        quick = options.budget == "quick"
        if quick and gpus and options.copies and not options.backends:
            return []
        four = ("all_reduce", "all_gather", "reduce_scatter", "send_recv")
        standard = four if gpus and not quick else ("all_reduce",)
        wanted = COLLECTIVES if options.budget == "full" else standard
    rows: list[CollectiveRow] = []
    for backend in backends:
        why = _cannot(backend, gpus, options)
        if why:
            left_out.append((f"collectives over {backend}", why))
            continue
        ranks = options.ranks or (len(gpus) if backend == "nccl" else max(2, min(len(gpus), 8)))
        several = backend == "nccl" and options.budget != "quick" and not options.joined
        for n in group_sizes(ranks) if several else [ranks]:
            rows += [_row(name, backend, n, gpus, options) for name in wanted]
    return rows


def _cannot(backend: str, gpus: tuple[Gpu, ...], options: Options) -> str:
    if backend in ("nccl", "gloo") and not options.torch_available:
        return "torch is not installed: pip install 'topocheck-gpu[bw]'"
    if backend == "nccl":
        if any(g.nvml is not None and g.nvml.mig_current is True for g in gpus):
            return "MIG is on, and NCCL takes no two instances of one GPU"
        need = 1 if options.joined else options.ranks or 2
        if options.joined and gpus:
            return ""
        if len(gpus) < max(2, need):
            have = f"{len(gpus)} GPU" + ("" if len(gpus) == 1 else "s")
            return f"NCCL needs one GPU for each rank: {have} here, {max(2, need)} needed (busbw of one rank is 0)"
    return ""


def _row(name: str, backend: str, ranks: int, gpus: tuple[Gpu, ...], options: Options) -> CollectiveRow:
    table = "nccl" if backend == "nccl" else "gloo"
    sizes = options.sizes_bytes or SIZES[options.budget, table]
    rate = 100.0 if backend == "nccl" else 1.0
    quick = options.budget == "quick"
    modes: tuple[str, ...] = ("back_to_back",)
    if backend == "nccl" and not quick:
        modes = ("back_to_back", "one_at_a_time", "graph")
    elif not quick:
        modes = ("back_to_back", "one_at_a_time")
    samples, budget_s = (3, 0.3) if quick else (7, 1.5)
    call_s = 4e-5 if backend == "nccl" else 5e-4
    seconds = 0.0
    for s in sizes:
        one = (200 if s <= 64 * KIB else 20) * (call_s + s / rate / 1e9)
        seconds += 0.05 + len(modes) * (min(samples * one, budget_s + one) + 7 * s / rate / 1e9)
    # Where a launcher spread the ranks, only this node's GPUs are known: local rank i takes GPU i.
    members = tuple(g.address for g in gpus[:ranks]) if backend == "nccl" else ()
    allocator = options.allocator if backend == "nccl" else "torch"
    return CollectiveRow(
        id=f"{name}:{backend}:{ranks}:{options.dtype}" + (":ncclmem" if allocator == "nccl" else ""),
        allocator=allocator,
        collective=name,
        backend=backend,
        ranks=ranks,
        members=members,
        sizes_bytes=tuple(sorted(sizes)),
        dtype=options.dtype,
        modes=modes,
        samples_min=2 if quick else 3,
        samples_max=samples,
        budget_s=budget_s,
        estimate_s=round(seconds, 1),
    )
