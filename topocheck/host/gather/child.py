"""Starting the child that runs the probes of one group: by fork, or as a fresh interpreter where fork is not safe."""

from __future__ import annotations

import os
from functools import partial

from topocheck.host.gather.worker import Job, encode_job, run_job
from topocheck.process.fork import Worker, fork, fork_is_safe


def start_child(job: Job) -> Worker:
    """Start a child that does `job`.

    Raises:
        OSError: no process or pipe can be had.
    """
    return fork(partial(run_job, job)) if fork_is_safe() else _fresh(job)


def _fresh(job: Job) -> Worker:
    # Here: a report that forks does without the milliseconds of loading them.
    from topocheck.process.python import child_environment, python_argv
    from topocheck.process.spawn import spawn

    with open(os.memfd_create("topocheck-job"), "w+b", buffering=0) as file:
        file.write(encode_job(job))
        file.seek(0)
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        try:
            argv = python_argv("topocheck.host.gather.worker", str(theirs))
            process, lifeline = spawn(argv, child_environment(), stdin=file.fileno(), keep=(theirs,))
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
    process.returncode = 0  # it is waited for as any worker is (`topocheck.process.fork.reap`)
    os.set_blocking(ours, False)
    return Worker(process.pid, ours, lifeline)
