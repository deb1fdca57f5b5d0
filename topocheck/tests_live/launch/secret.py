"""The secret of a job, by which its ranks know each other: where it comes from.

In this order: TOPOCHECK_SECRET; the file that TOPOCHECK_SECRET_FILE names; under Slurm munge, which hands the key of
the job to processes of the same user on the job's nodes and to nobody else; the key that Open MPI 4's mpirun gives to
each of its ranks; for ranks of MPI that need MPI to find each other anyway, one that rank 0 sends them. Where there is
none the ranks still meet, and whoever reaches the port may pass for one of them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Literal

import msgspec

from topocheck.tests_live.launch.frames import derived
from topocheck.tests_live.launch.world import LaunchError, World

VARIABLE, FILE = "TOPOCHECK_SECRET", "TOPOCHECK_SECRET_FILE"
LEAST, MOST = 16, 4096
"""Bytes of a secret."""
OPEN_MPI_KEY = "OMPI_MCA_orte_precondition_transports"
HOW = f"set {VARIABLE} to one secret for all ranks (`openssl rand -hex 32`), or {FILE} to a file of mode 0600 with one"
Method = Literal["secret", "munge", "none"]


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks of a job show that they belong to it.

    Attributes:
        method: `secret` where all have it already, `munge` where rank 0 makes one and munge hands it on, or `none`.
        key: the key of the job; empty for munge until rank 0 has granted it.
        source: where it comes from, in words.
    """

    method: Method
    key: bytes = b""
    source: str = ""

    def __repr__(self) -> str:
        return f"Secret(method={self.method!r}, source={self.source!r})"


def find_secret(world: World, environ: Mapping[str, str] = os.environ) -> Secret:
    """Return the secret of this process's job.

    Raises:
        LaunchError: one is named and cannot be used; says which and why.
    """
    if VARIABLE in environ:
        return _made(world, environ[VARIABLE].strip().encode(), f"{VARIABLE}")
    if FILE in environ:
        return _made(world, _read(environ[FILE]), f"{FILE} ({environ[FILE]})")
    if "SLURM_JOB_ID" in environ:
        from topocheck.tests_live.launch import munge

        if munge.available():
            return Secret(method="munge", source="munge")
    key = environ.get(OPEN_MPI_KEY, "")
    if world.launcher == "openmpi" and _looks_random(key):
        return _made(world, key.encode(), "mpirun's job key")
    return Secret(method="none", key=derived(b"", b"no secret", world.job.encode()))


def shared(world: World, key: bytes, source: str) -> Secret:
    """Return the secret that all ranks got over another way."""
    return Secret(method="secret", key=derived(key, b"job", world.job.encode()), source=source)


def _made(world: World, text: bytes, source: str) -> Secret:
    if not LEAST <= len(text) <= MOST:
        raise LaunchError(f"{source}: a secret of {len(text)} bytes; expected {LEAST} to {MOST}: openssl rand -hex 32")
    return shared(world, text, source)


def _read(path: str) -> bytes:
    """Return the secret in a file that nobody else can read or replace by a link.

    Raises:
        LaunchError: there is no such file.
    """
    try:
        # A FIFO would be waited for without O_NONBLOCK.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise LaunchError(f"{FILE}: {path} is no regular file")
            if status.st_uid != os.geteuid():
                raise LaunchError(f"{FILE}: {path} belongs to uid {status.st_uid}, expected {os.geteuid()}")
            if status.st_mode & 0o077:
                raise LaunchError(
                    f"{FILE}: {path} has mode {stat.S_IMODE(status.st_mode):04o}: others can read or change it; "
                    f"chmod 600 {path}"
                )
            return os.read(fd, MOST + 2).strip()
        finally:
            os.close(fd)
    except OSError as e:
        raise LaunchError(f"{FILE}: {path} cannot be read: {e.strerror}") from None


def _looks_random(key: str) -> bool:
    """Tell whether a key of Open MPI can be the random one that mpirun makes.

    Some sites set the variable to the number of the job, for srun; anybody knows that.
    """
    first, dash, second = key.partition("-")
    digits = set("0123456789abcdef")
    if not dash or len(first) != 16 or len(second) != 16 or not set(first + second) <= digits:
        return False
    # Of 32 random digits fewer than 12 are zero, and more than 6 kinds are there, but for one key in some millions.
    return (first + second).count("0") < 12 and len(set(first + second)) > 6 and first != second
