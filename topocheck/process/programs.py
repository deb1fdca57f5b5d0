"""Where programs are looked for: never in the current folder, and on a fixed path with root's rights."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False  # not from typing: this is loaded before the driver is asked
if TYPE_CHECKING:
    from collections.abc import Iterator

SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Folders of the system, in the order in which they are looked through."""
PACKAGES = (
    "/opt/slurm/bin",
    "/opt/slurm/current/bin",
    "/usr/local/slurm/bin",
    "/usr/lib64/openmpi/bin",
    "/usr/lib64/mpich/bin",
    "/opt/hpcx/ompi/bin",
    "/opt/amazon/openmpi/bin",
    "/opt/openmpi/bin",
    "/usr/mpi/gcc/openmpi-*/bin",
    "/usr/local/nvidia/bin",
    "/usr/local/cuda/bin",
    "/run/nvidia/driver/usr/bin",
    "/run/current-system/sw/bin",
)
"""Where Slurm, Open MPI (HPC-X, MLNX_OFED, EFA) and NVIDIA's programs are usually installed.

Looked through with root's rights only where nobody but root can put something there.
"""


def find_program(name: str) -> str | None:
    """Return the absolute path of a program, or None where there is none.

    As root, or where the real and effective user or group differ, only the fixed folders above are searched and PATH
    is ignored. Otherwise PATH is searched first, without its empty and relative entries.
    """
    if os.path.isabs(name):
        return name if _runs(name) else None
    if not name or "/" in name or "\0" in name:
        return None
    return next((p for folder in search_path() if _runs(p := f"{folder}/{name}")), None)


def search_path(path: str | None = None) -> list[str]:
    """Return the folders that `find_program` looks through, in order; `path` stands for PATH where it is given."""
    if privileged():
        return [*SYSTEM, *(f for f in _expanded() if _roots_alone(f))]
    path = os.environ.get("PATH", "") if path is None else path
    own = [f for f in path.split(os.pathsep) if os.path.isabs(f)]
    return list(dict.fromkeys([*own, *SYSTEM]))


def where() -> str:
    """Return where programs are looked for, for a message about one that was not found."""
    return "in the system's folders (PATH is not used as root)" if privileged() else "on PATH"


def privileged() -> bool:
    """Tell whether this process has rights that whoever set its environment may lack."""
    return os.geteuid() == 0 or os.getuid() != os.geteuid() or os.getgid() != os.getegid()


def _runs(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _expanded() -> Iterator[str]:
    from glob import glob

    for pattern in PACKAGES:
        yield from sorted(glob(pattern), reverse=True) if "*" in pattern else (pattern,)


def _roots_alone(folder: str) -> bool:
    """Tell whether a folder, and each one above it, belongs to root and can be written by nobody else."""
    try:
        path = os.path.realpath(folder, strict=True)
        while True:
            status = os.stat(path)
            if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return False
            if path == "/":
                return True
            path = os.path.dirname(path)
    except OSError:
        return False
