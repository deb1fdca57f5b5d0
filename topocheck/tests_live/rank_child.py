"""Entry point of the processes that hold ranks.

`python -m topocheck.tests_live.rank_child JOB FD` is the one rank that a launcher's environment names, or
the process that starts the ranks of this node; how it ended goes to the descriptor. `... JOB rank` is a local rank that
is an interpreter of its own, `... JOB mpi` a rank that mpirun started.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from topocheck.process.parent import EventPipe, die_with_parent
from topocheck.tests_live.launch.job import RankJob
from topocheck.tests_live.launch.local import RankFailedError, Seat, become, run_ranks, seat_here


def be_rank(job: RankJob, rank: int, size: int, local_rank: int) -> None:
    """Be one rank over torch, from its start to its end."""
    from topocheck.tests_live.collectives.rank import Rank

    if job.lab:
        from topocheck.tests_live.labs.rank import LabRank

        LabRank(job, rank, size, local_rank).run()
    elif job.train:
        from topocheck.tests_live.training.rank import TrainRank

        TrainRank(job, rank, size, local_rank).run()
    else:
        Rank(job, rank, size, local_rank).run()


def be_mpi_rank(job: RankJob) -> None:
    """Be one rank of MPI's world: the sweeps of the job, then its rows of training, then those of a lab."""
    from mpi4py import MPI

    from topocheck.tests_live.collectives.mpi import need_ranks, run_sweeps
    from topocheck.tests_live.launch.job import Events

    comm = MPI.COMM_WORLD
    events = Events(job.events, comm.rank)
    version = MPI.Get_library_version().split(",")[0].splitlines()[0].strip()
    events.send("ready", software={"mpi": version[:80]}, host=MPI.Get_processor_name())
    try:
        taken = [r.ranks for r in job.rows] + [r.ranks for r in job.train] + [max(r.who) + 1 for r in job.lab]
        need_ranks(comm, max(taken, default=1))
        run_sweeps(job.rows, comm, events)
        if job.train:
            from topocheck.tests_live.training.mpi import run_rows

            run_rows(job.train, comm, events)
        if job.lab:
            from topocheck.tests_live.labs.rank import run_over_mpi

            run_over_mpi(job.lab, comm, events)
    except Exception as e:  # noqa: BLE001 - whatever MPI or numpy raises must reach the parent as words
        events.send("failed", reason=f"{type(e).__name__}: {str(e).partition(chr(10))[0][:300]}")
        comm.Abort(1)  # the others would wait for this rank for ever
    events.send("finished")


def start_here(job: RankJob, path: str) -> None:
    """Start the ranks of this node and wait for them.

    Raises:
        RankFailedError: a rank failed or was killed.
        ImportError: torch cannot be imported.
    """

    def work(seat: Seat) -> None:
        be_rank(job, seat.rank, seat.size, seat.rank)

    if job.local_gpus:
        run_ranks(become("topocheck.tests_live.rank_child", path, "rank"), job.local_ranks)
    else:
        import torch  # noqa: F401 - forked ranks have it in place

        run_ranks(work, job.local_ranks)


def main() -> None:
    """See above."""
    path, how = sys.argv[1:3]
    job = msgspec.json.decode(Path(path).read_bytes(), type=RankJob)
    if how == "mpi":
        be_mpi_rank(job)
        return
    if how == "rank":
        seat = seat_here()
        be_rank(job, seat.rank, seat.size, seat.rank)
        return
    die_with_parent()
    pipe = EventPipe(int(how))
    try:
        if job.local_ranks:
            start_here(job, path)
        elif job.world is not None:
            be_rank(job, job.world.rank, job.world.size, job.world.local_rank)
    except ImportError as e:
        pipe.send("failed", reason=f"torch cannot be imported ({e}): pip install torch", failures={})
    except RankFailedError as e:
        pipe.send("failed", reason=str(e), failures={str(rank): how for rank, how in e.failures.items()})
    except Exception as e:  # noqa: BLE001 - whatever torch raises must reach the parent as words
        first = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        pipe.send("failed", reason=f"{type(e).__name__}: {first[:300]}", failures={})
    else:
        pipe.send("done")
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of torch may still use the place where the ranks meet; they must not find an interpreter that ends.
    os._exit(0)


if __name__ == "__main__":
    main()
