"""Which collectives are swept, over which ranks and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from topocheck.bandwidth.buffers import free_bytes
from topocheck.bandwidth.cases import CollectiveRow
from topocheck.bandwidth.collective_sizes import DTYPE_BYTES, SPLIT, elements
from topocheck.bandwidth.options import Options
from topocheck.model.measurement import Backend, CallMode, Collective, NotMeasured
from topocheck.model.units import size_text
from topocheck.topology.types import Gpu

COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
NOT_IN_MPI = ("float16", "bfloat16")
"""Types of 16-bit numbers: the MPI standard names none, and mpi4py takes none."""
BACKENDS: tuple[Backend, ...] = get_args(Backend)
START_S = {"nccl": 9.0, "gloo": 3.0, "mpi": 1.0}
"""Seconds until ranks can talk: import of torch, contexts and the communicator."""

CROWDED_CALL_S = 3e-3
"""Seconds of a small call per rank where ranks share cores: 24 ms with 8 ranks on two cores, 100 ms with 32."""
START_RANK_S = 0.2
"""Seconds that each further rank adds to the start, where ranks are started here and share cores."""
LOCAL_RANKS_MOST = 256
"""Every rank is a process with a connection to each other one: with more, a usual limit of open files (1024) and of
memory (some 100 MB a rank) is near, and what is measured is the scheduler."""

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


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name[:100], known, 1)
    return f"{kind} {name!r:.60}: expected one of {', '.join(known)}" + (f"; did you mean {near[0]}?" if near else "")


def collective_named(name: str) -> Collective:
    """Return the collective that is called so.

    Raises:
        ValueError: there is none.
    """
    found = next((c for c in COLLECTIVES if c == name), None)
    if found is None:
        raise ValueError(_unknown("collective", name, COLLECTIVES))
    return found


def backend_named(name: str) -> Backend:
    """Return the backend that is called so.

    Raises:
        ValueError: there is none.
    """
    found = next((b for b in BACKENDS if b == name), None)
    if found is None:
        raise ValueError(_unknown("backend", name, BACKENDS))
    return found


def group_sizes(ranks: int) -> list[int]:
    """Return the group sizes compared in one run: 2, 4, 8 below the number of ranks, and all of them."""
    return [n for n in (2, 4, 8) if n < ranks] + [ranks]


def collective_rows(gpus: tuple[Gpu, ...], options: Options, left_out: list[NotMeasured]) -> list[CollectiveRow]:
    """Return the sweeps; what cannot be planned is appended to `left_out` with the reason.

    Raises:
        ValueError: fewer than two ranks, or sizes of which nothing can be measured.
    """
    if options.ranks is not None and options.ranks < 2:
        raise ValueError(f"--ranks {options.ranks}: a collective needs 2 ranks or more")
    if options.ranks is not None and options.ranks > LOCAL_RANKS_MOST and not options.joined:
        raise ValueError(
            f"--ranks {options.ranks}: at most {LOCAL_RANKS_MOST} are started on one node; for more start topocheck "
            "as that many ranks with srun, torchrun or mpirun"
        )
    backends = options.backends or (("nccl",) if gpus else ("gloo",))
    wanted = options.collectives
    if not wanted:
        quick = options.budget == "quick"
        if quick and gpus and options.copies and not options.backends:
            return []
        four: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "send_recv")
        standard: tuple[Collective, ...] = four if gpus and not quick else ("all_reduce",)
        wanted = COLLECTIVES if options.budget == "full" else standard
    if options.allocator != "torch" and "nccl" not in backends:
        reason = "it is for the buffers of NCCL, over which nothing is measured here"
        left_out.append(NotMeasured(id=f"--allocator {options.allocator}", reason=reason, required=True))
    rows: list[CollectiveRow] = []
    for backend in backends:
        why = _cannot(backend, gpus, options)
        if why:
            asked = backend in options.backends or bool(options.collectives)
            left_out.append(NotMeasured(id=f"collectives over {backend}", reason=why, required=asked))
            continue
        ranks = options.ranks or (len(gpus) if backend == "nccl" else max(2, min(len(gpus), 8)))
        several = backend == "nccl" and options.budget != "quick" and not options.joined
        for n in group_sizes(ranks) if several else [ranks]:
            for name in wanted:
                _refuse_sizes(name, backend, n, gpus, options)
                rows.append(_row(name, backend, n, gpus, options))
    return rows


def _refuse_sizes(name: Collective, backend: Backend, ranks: int, gpus: tuple[Gpu, ...], options: Options) -> None:
    """Refuse sizes asked for of which nothing can be measured; the largest may be held several times in memory.

    Raises:
        ValueError: one holds no element, or is too large for the memory that is free.
    """
    if not options.sizes_bytes:
        return
    least, most = options.sizes_bytes[0], options.sizes_bytes[-1]
    width = DTYPE_BYTES[options.dtype]
    if elements(name, least, ranks, width)[0] < 1:
        need = width * (ranks if name in SPLIT else 1)
        raise ValueError(
            f"--sizes: {size_text(least)} holds no {options.dtype} for each rank: {name} of {ranks} ranks needs "
            f"{size_text(need)} or more"
        )
    if backend == "nccl":
        need, free, where = 3 * most, free_bytes(gpus), "the fullest GPU"
    else:
        # Where a launcher started the ranks it is not known how many are on this node: one at least.
        need, free, where = 4 * most * (1 if options.joined else ranks), options.host_available_bytes, "this host"
    if free is not None and need > free:
        raise ValueError(
            f"--sizes: {name} of {size_text(most)} over {backend} needs about {size_text(need)} of memory (buffers "
            f"and what they are compared with); {where} has {size_text(free)} free"
        )


def _cannot(backend: Backend, gpus: tuple[Gpu, ...], options: Options) -> str:
    if backend == "mpi" and options.dtype in NOT_IN_MPI:
        return f"MPI has no type {options.dtype}: take another --dtype, or gloo or nccl"
    if backend in ("nccl", "gloo") and not options.torch_available:
        return "torch is not installed: pip install torch"
    if backend == "nccl":
        if any(g.nvml is not None and g.nvml.mig_current is True for g in gpus):
            return "MIG is on, and NCCL does not accept two instances of one GPU"
        if not gpus:
            return "NCCL needs one GPU for each rank, and no NVIDIA GPU was found here; gloo and mpi need none"
        if options.joined:
            return ""
        need = options.ranks or 2
        if len(gpus) < need:
            have = f"{len(gpus)} GPU" + ("" if len(gpus) == 1 else "s")
            return f"NCCL needs one GPU for each rank: {have} here, {need} needed"
    return ""


def _row(name: Collective, backend: Backend, ranks: int, gpus: tuple[Gpu, ...], options: Options) -> CollectiveRow:
    table = "nccl" if backend == "nccl" else "gloo"
    sizes = options.sizes_bytes or SIZES[options.budget, table]
    rate = 100.0 if backend == "nccl" else 1.0
    quick = options.budget == "quick"
    modes: tuple[CallMode, ...] = ("back_to_back",)
    if backend == "nccl" and not quick:
        modes = ("back_to_back", "one_at_a_time", "graph")
    elif not quick:
        modes = ("back_to_back", "one_at_a_time")
    samples, budget_s = (3, 0.3) if quick else (7, 1.5)
    crowded = backend != "nccl" and not options.joined and options.cpus is not None and ranks > options.cpus
    call_s = 4e-5 if backend == "nccl" else CROWDED_CALL_S * ranks if crowded else 5e-4
    seconds = 0.0
    for s in sizes:
        call = call_s + s / rate / 1e9
        # As many calls as a sample takes (rank_sweep.py), and some ten for warming up and comparing.
        one = min(200 if s <= 64 * KIB else 20, max(4, 0.5 / call)) * call
        seconds += 0.05 + len(modes) * (min(samples * one, budget_s + one) + 10 * call)
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
        samples_min=3,
        samples_max=samples,
        budget_s=budget_s,
        estimate_s=round(seconds, 1),
    )
