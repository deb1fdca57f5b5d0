"""Entry points of the processes of a scaling run: one joined to a launcher, several started here, or ranks of MPI."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from topocheck.tests_live.child import Pipe, die_with_parent
from topocheck.tests_live.collectives import RankJob
from topocheck.tests_live.rank_child import LaunchJob, launch
from topocheck.tests_live.train_types import TrainJob


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank started by torch's launcher is told."""

    job: RankJob
    train: TrainJob


def rank_work(payload: bytes) -> None:
    """Be one rank; the environment names its place (`env://`)."""
    from topocheck.tests_live.train_rank import TrainRank

    die_with_parent()
    told = msgspec.json.decode(payload, type=Payload)
    e = os.environ
    me = TrainRank(told.job, told.train.rows, int(e["RANK"]), int(e["WORLD_SIZE"]), int(e["LOCAL_RANK"]))
    try:
        me.join()
        me.work()
    except Exception as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        me.events.send("failed", reason=f"{type(error).__name__}: {first[:300]}")
        raise
    me.events.send("finished")
    me.torch.distributed.destroy_process_group()


def main() -> None:
    """`python -m topocheck.tests_live.train_child FD JOB ROWS`; a FD of `mpi` is a rank that mpirun started."""
    told = msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=LaunchJob)
    train = msgspec.json.decode(Path(sys.argv[3]).read_bytes(), type=TrainJob)
    if sys.argv[1] == "mpi":
        from topocheck.tests_live.train_mpi import run_rows

        run_rows(told.ranks, train.rows)
        return
    die_with_parent()
    pipe = Pipe(int(sys.argv[1]))
    payload = msgspec.json.encode(Payload(job=told.ranks, train=train))
    try:
        if told.local_ranks:
            launch(rank_work, payload, told.local_ranks)
        else:
            rank_work(payload)
    except Exception as e:  # noqa: BLE001 - whatever torch raises must reach the parent as words
        failures = {
            str(rank): f"exit code {f.exitcode}" if f.exitcode >= 0 else f"signal {-f.exitcode}"
            for rank, f in getattr(e, "failures", {}).items()
        }
        first = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        pipe.send("failed", reason=f"{type(e).__name__}: {first[:300]}", failures=failures)
        return
    pipe.send("done")


if __name__ == "__main__":
    main()
