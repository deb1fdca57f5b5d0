"""Collectives through MPI, of host memory, with mpi4py: started by mpirun here, or joined under srun or mpirun."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import msgspec

from topocheck.model.measurement import Measurement, NotMeasured
from topocheck.tests_live.collect import run_collectives
from topocheck.tests_live.collective_costs import busbw_factor
from topocheck.tests_live.collective_ops import elements
from topocheck.tests_live.collectives import Events
from topocheck.tests_live.ranks import World
from topocheck.tests_live.rows import CollectiveRow
from topocheck.tests_live.stats import is_stable, median, spread


def run_mpi(
    rows: tuple[CollectiveRow, ...],
    *,
    world: World | None = None,
    software: dict[str, str] | None = None,
    quiet_s: float = 60.0,
) -> Iterator[Measurement | NotMeasured]:
    """Run sweeps over MPI and yield what comes of them."""
    if why := mpi_problem(world):
        yield from (NotMeasured(id=r.id, reason=why, required=True) for r in rows)
        return

    def argv(job: str) -> list[str]:
        mine = [sys.executable, "-m", "topocheck.tests_live.mpi", job]
        if world is not None:
            return mine
        return mpirun_command(max(r.ranks for r in rows)) + mine

    yield from run_collectives(rows, world=world, software=software, quiet_s=quiet_s, join_s=60.0, argv=argv)


def mpi_problem(world: World | None) -> str:
    """Return what collectives through MPI lack here, and what to do about it; the empty text where nothing."""
    for module, extra in (("mpi4py", "mpi"), ("numpy", "bw")):
        if importlib.util.find_spec(module) is None:
            return f"mpi: {module} is not installed: pip install 'topocheck-gpu[{extra}]'"
    if world is not None and world.launcher == "torchrun":
        return "mpi: the ranks of torchrun are no ranks of MPI: start topocheck with mpirun or srun"
    if world is None and shutil.which("mpirun") is None:
        return "mpi: mpirun is not on the PATH, and this process was started by no MPI launcher"
    return ""


def mpirun_command(ranks: int) -> list[str]:
    """Return the beginning of a command that starts ranks on this node, as many as asked for whatever its cores."""
    mpirun = [shutil.which("mpirun") or "mpirun", "-np", str(ranks)]
    if _is_open_mpi():
        mpirun += ["--oversubscribe", "--bind-to", "none"]
        mpirun += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return mpirun


def _is_open_mpi() -> bool:
    return shutil.which("ompi_info") is not None


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
        once = self.comm.allreduce(max(perf_counter() - start, 1e-6)) / self.n
        calls = min(200 if moved <= 1 << 16 else 20, max(4, int(0.5 / once)))
        samples: list[float] = []
        begun, why = monotonic(), ""
        while not why:
            self.comm.Barrier()
            start = perf_counter()
            for _ in range(calls):
                call()
            samples.append(self.comm.allreduce((perf_counter() - start) / calls) / self.n * 1e6)
            if len(samples) >= self.row.samples_min:
                if is_stable(samples, self.row.tolerance):
                    why = "stable"
                elif len(samples) >= self.row.samples_max:
                    why = "samples"
                elif monotonic() - begun > self.row.budget_s:
                    why = "budget"
            why = self.comm.bcast(why, root=0)
        bad = self.comm.allreduce(wrong())
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


def main() -> None:
    """`mpirun python -m topocheck.tests_live.mpi JOB`: be one rank."""
    from topocheck.tests_live.rank_child import LaunchJob

    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=LaunchJob)
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    events = Events(job.ranks.events, comm.rank)
    version = MPI.Get_library_version().split(",")[0].splitlines()[0].strip()
    events.send("ready", software={"mpi": version[:80]}, host=MPI.Get_processor_name())
    try:
        need_ranks(comm, max((r.ranks for r in job.ranks.rows), default=1))
        run_sweeps(job.ranks.rows, comm, events)
    except Exception as e:  # noqa: BLE001 - whatever MPI or numpy raises must reach the parent as words
        events.send("failed", reason=f"{type(e).__name__}: {str(e).partition(chr(10))[0][:300]}")
        comm.Abort(1)  # the others would wait for this rank for ever
    events.send("finished")


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


if __name__ == "__main__":
    main()
