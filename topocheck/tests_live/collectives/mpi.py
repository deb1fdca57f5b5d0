"""Collectives through MPI, of host memory, with mpi4py: started by mpirun here, or joined under srun or mpirun."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from time import monotonic, perf_counter
from typing import Any

from topocheck.bandwidth.cases import CollectiveRow
from topocheck.bandwidth.collective_sizes import elements
from topocheck.bandwidth.costs import busbw_factor
from topocheck.bandwidth.stats import is_stable, median, spread
from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.process.programs import find_program, where
from topocheck.tests_live.launch.job import Events
from topocheck.tests_live.launch.pulse import Life
from topocheck.tests_live.launch.ranks import run_collectives
from topocheck.tests_live.launch.world import World

STOP_REASONS = ("", "stable", "samples", "budget")
"""Why a sweep takes no more samples; rank 0 tells the others by the place in this list."""


def run_mpi(
    rows: tuple[CollectiveRow, ...],
    *,
    world: World | None = None,
    software: dict[str, str] | None = None,
    begun: set[str] | None = None,
    quiet_s: float = 60.0,
    life: Life | None = None,
) -> Iterator[Measurement | NotMeasured]:
    """Run sweeps over MPI and yield what comes of them."""
    if why := mpi_problem(world):
        yield from (NotMeasured(id=r.id, reason=why, required=True) for r in rows)
        return

    start = mpirun_command(max(r.ranks for r in rows)) if world is None else []
    yield from run_collectives(rows, software=software, begun=begun, quiet_s=quiet_s, join_s=60.0, mpi=start, life=life)


def mpi_problem(world: World | None) -> str:
    """Return what collectives through MPI lack here, and what to do about it; the empty text where nothing."""
    for module in ("mpi4py", "numpy"):
        if importlib.util.find_spec(module) is None:
            return f"mpi: {module} is not installed: pip install {module}"
    if world is not None and world.launcher == "torchrun":
        return "mpi: the ranks of torchrun are no ranks of MPI: start topocheck with mpirun or srun"
    if world is None and find_program("mpirun") is None:
        return f"mpi: mpirun was not found {where()}, and no MPI launcher started this process"
    return ""


def mpirun_command(ranks: int) -> list[str]:
    """Return the beginning of a command that starts ranks on this node, as many as asked for whatever its cores."""
    mpirun = [find_program("mpirun") or "mpirun", "-np", str(ranks)]
    if _is_open_mpi():
        mpirun += ["--oversubscribe", "--bind-to", "none"]
        mpirun += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return mpirun


def _is_open_mpi() -> bool:
    return find_program("ompi_info") is not None


def _values(numpy: Any, rank: int, first: int, count: int, dtype: str) -> Any:
    """The same values as through torch (collective_ops.py)."""
    one = ((numpy.arange(1021) + first) % 1021 + 3 * rank) % 4
    return numpy.resize(one.astype(dtype), count)


class MpiSweep:
    """One rank's part of one sweep."""

    def __init__(self, row: CollectiveRow, numpy: Any, comm: Any) -> None:
        self.row, self.numpy, self.comm = row, numpy, comm
        self.me, self.n = comm.rank, comm.size

    def operation(self, size: int) -> tuple[Callable[[], None], Callable[[], int], int]:
        """Return (one call, count of wrong elements, bytes as nccl-tests counts them)."""
        np, comm, n, me, name = self.numpy, self.comm, self.n, self.me, self.row.collective
        width = np.dtype(self.row.dtype).itemsize
        part, count = elements(name, size, n, width)
        mine = _values(np, me, 0, part if name == "all_gather" else count, self.row.dtype)
        total = sum(_values(np, r, 0, count, self.row.dtype) for r in range(n))
        got = np.zeros(count if name != "reduce_scatter" else part, self.row.dtype)
        want: Any = total
        calls: dict[str, Callable[[], None]] = {
            "all_reduce": lambda: comm.Allreduce(mine, got),
            "all_gather": lambda: comm.Allgather(mine, got),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(mine, got),
            "broadcast": lambda: comm.Bcast(got if me else mine, root=0),
            "reduce": lambda: comm.Reduce(mine, got if me == 0 else None, root=0),
            "all_to_all": lambda: comm.Alltoall(mine, got),
            "send_recv": lambda: comm.Sendrecv(mine, (me + 1) % n, 0, got, (me - 1) % n, 0),
        }
        if name == "all_gather":
            want = np.concatenate([_values(np, r, 0, part, self.row.dtype) for r in range(n)])
        elif name == "reduce_scatter":
            want = total[me * part : (me + 1) * part]
        elif name == "all_to_all":
            want = np.concatenate([_values(np, r, me * part, part, self.row.dtype) for r in range(n)])
        elif name == "broadcast":
            want = _values(np, 0, 0, count, self.row.dtype)
        elif name == "send_recv":
            want = _values(np, (me - 1) % n, 0, count, self.row.dtype)

        def wrong() -> int:
            if (name == "reduce" and me) or (name == "broadcast" and not me):
                return 0
            return int((got != want).sum())

        return calls[name], wrong, count * width

    def measure(self, size: int) -> Measurement | None:
        """Run one size; rank 0 returns the measurement."""
        call, wrong, moved = self.operation(size)
        for _ in range(3):
            call()
        start = perf_counter()
        call()
        once = total(self.comm, max(perf_counter() - start, 1e-6)) / self.n
        calls = min(200 if moved <= 1 << 16 else 20, max(4, int(0.5 / once)))
        samples: list[float] = []
        begun, why = monotonic(), ""
        while not why:
            self.comm.Barrier()
            start = perf_counter()
            for _ in range(calls):
                call()
            samples.append(total(self.comm, (perf_counter() - start) / calls) / self.n * 1e6)
            if len(samples) >= self.row.samples_min:
                if is_stable(samples, self.row.tolerance):
                    why = "stable"
                elif len(samples) >= self.row.samples_max:
                    why = "samples"
                elif monotonic() - begun > self.row.budget_s:
                    why = "budget"
            why = STOP_REASONS[int(from_first(self.comm, STOP_REASONS.index(why)))]
        bad = int(total(self.comm, wrong()))
        if self.me:
            return None
        mid = median(samples)
        return Measurement(
            id=f"{self.row.id}:{size}:out:back_to_back",
            kind="collective",
            collective=self.row.collective,
            backend="mpi",
            ranks=self.n,
            direction="collective",
            engine="mpi4py",
            allocator="numpy, host memory",
            dtype=self.row.dtype,
            in_place=self.row.collective == "broadcast",
            mode="back_to_back",
            size_bytes=moved,
            iterations=calls,
            samples=tuple(samples),
            median=mid,
            min=min(samples),
            max=max(samples),
            spread=spread(samples),
            unit="us",
            algbw_gb_s=moved / mid / 1e3,
            busbw_gb_s=moved / mid / 1e3 * busbw_factor(self.row.collective, self.n),
            time_us=mid,
            verified=bad == 0,
            wrong=f"{bad} wrong elements on all ranks together" if bad else "",
            stop_reason=why,
        )


def total(comm: Any, value: float) -> float:
    """Return the sum over all ranks. Numbers go in buffers: mpi4py would pickle objects, and unpickle what comes."""
    import numpy

    out = numpy.zeros(1)
    comm.Allreduce(numpy.array([float(value)]), out)
    return float(out[0])


def from_first(comm: Any, value: float) -> float:
    """Return rank 0's number on all ranks."""
    import numpy

    out = numpy.array([float(value)])
    comm.Bcast(out, root=0)
    return float(out[0])


def need_ranks(comm: Any, ranks: int) -> None:
    """Look whether MPI joins as many ranks as are needed.

    Raises:
        RuntimeError: it does not: each process is alone, as under a launcher that MPI does not know.
    """
    if comm.size < ranks:
        raise RuntimeError(
            f"MPI joins {comm.size} of {ranks} ranks here: the launcher is none it knows (srun --mpi=list names those "
            "of Slurm)"
        )


def run_sweeps(rows: tuple[CollectiveRow, ...], comm: Any, events: Events) -> None:
    """Be one rank of `comm` for some sweeps; rank 0 sends what is measured."""
    import numpy

    for row in rows:
        part = comm.Split(0 if comm.rank < row.ranks else 1, comm.rank)
        if comm.rank < row.ranks:
            sweep = MpiSweep(row, numpy, part)
            for size in row.sizes_bytes:
                events.at(row.id, f"{row.collective} {size} bytes over MPI")
                m = sweep.measure(size)
                if m is not None:
                    events.send("measured", row=row.id, measurement=m)
        comm.Barrier()
