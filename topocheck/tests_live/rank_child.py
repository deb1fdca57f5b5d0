"""Entry points of the processes that hold ranks: one joined to a launcher, or several started by torch's launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import msgspec

from topocheck.tests_live.child import Pipe, die_with_parent
from topocheck.tests_live.collectives import RankJob, rank_work


class LaunchJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a launching child is told; `local_ranks` 0 means: be the one rank that the environment names."""

    ranks: RankJob
    local_ranks: int = 0


def _elastic_rank(job: bytes) -> None:
    """One rank started by torch's elastic launcher, which sets the environment."""
    rank_work(
        msgspec.json.decode(job, type=RankJob),
        int(os.environ["RANK"]),
        int(os.environ["WORLD_SIZE"]),
        int(os.environ["LOCAL_RANK"]),
    )


def launch_local(job: RankJob, local_ranks: int) -> None:
    """Start the ranks of this node, each with the rows of `job`; see `launch`."""
    launch(_elastic_rank, msgspec.json.encode(job), local_ranks)


def launch(entry: Callable[[bytes], None], payload: bytes, local_ranks: int) -> None:
    """Start ranks on this node with torch's own launcher, each calling `entry(payload)`, and wait for them.

    Raises:
        torch.distributed.elastic.multiprocessing.errors.ChildFailedError: a rank failed or was killed.
    """
    import torch
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Forked ranks start with torch in place, where each one would otherwise take seconds to import it again. But
    # torch's launcher asks the driver about GPUs where there are any, and CUDA does not survive a fork.
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=local_ranks,
        run_id=f"topocheck-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
        monitor_interval=0.05,
        start_method="spawn" if torch.cuda.is_available() else "fork",
        local_addr="127.0.0.1",
    )
    elastic_launch(config, entry)(payload)


def main() -> None:
    """`python -m topocheck.tests_live.rank_child FD`: a LaunchJob on standard input, the end to the descriptor."""
    die_with_parent()
    pipe = Pipe(int(sys.argv[1]))
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=LaunchJob)
    try:
        if job.local_ranks:
            launch_local(job.ranks, job.local_ranks)
        else:
            e = os.environ
            rank_work(job.ranks, int(e["RANK"]), int(e["WORLD_SIZE"]), int(e["LOCAL_RANK"]))
    except ImportError as e:
        pipe.send("failed", reason=f"torch cannot be imported ({e}): pip install 'topocheck-gpu[bw]'", failures={})
        return
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
