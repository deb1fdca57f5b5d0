"""Whether the ranks of one node have the shared memory they need, before they hang for lack of it."""

from __future__ import annotations

import os

SHM_PER_RANK = 64 << 20
"""Free bytes of /dev/shm each rank may need: NCCL's shared-memory transport takes about 10 MB per channel pair, and
containers give 64 MB in all by default, where it fails (NCCL user guide, Troubleshooting, Shared memory)."""

SHM_STEP = (
    "free it (ls -l /dev/shm; files of dead jobs are named nccl-* and torch_*), "
    "or start the container with a larger --shm-size"
)


def shared_memory_problem(ranks: int, backends: set[str], path: str = "/dev/shm") -> str:
    """Return why the ranks cannot share memory, or the empty text. NCCL and MPI take /dev/shm; Gloo does not."""
    need = SHM_PER_RANK * ranks if "nccl" in backends else 1 << 20 if "mpi" in backends else 0
    if not need:
        return ""
    try:
        v = os.statvfs(path)
    except OSError as e:
        return f"{path} cannot be used: {e.strerror}"
    free = v.f_bavail * v.f_frsize
    if free >= need:
        return ""
    return f"{path} has {free / 1e6:.1f} MB free, and {ranks} ranks need {need / 1e6:.0f} MB"
