"""Who started this process, its rank among the others, and where rank 0 is to be found.

torchrun, srun and mpirun tell a process its rank by its environment; nothing here starts or asks anything.
"""

from __future__ import annotations

import os
import re
import socket
import zlib
from collections.abc import Mapping

import msgspec

from topocheck.model.base import InputError, NotDeterminedError
from topocheck.model.hostlist import expand_hostlist

PORTS = 8
"""Ports that are tried, where nobody says which."""
AGENT = "TORCHELASTIC_RUN_ID"
"""Set by torchrun's agent, which listens at MASTER_PORT itself."""


class World(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's place among all.

    Attributes:
        launcher: torchrun, slurm, openmpi or mpich.
        local_size: ranks on this node; 0 where the launcher does not tell.
        address: where rank 0 is; the empty text where the launcher does not tell.
        ports: at which it may listen, in the order in which all ranks try them; empty where that is not known either.
        job: names the job and its step to tell its ranks from those of others; empty where nothing names it.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int = 0
    local_size: int = 0
    address: str = ""
    ports: tuple[int, ...] = ()
    job: str = ""

    def environment(self) -> dict[str, str]:
        """Return the variables that tell programs of the field their rank."""
        return {"RANK": str(self.rank), "WORLD_SIZE": str(self.size), "LOCAL_RANK": str(self.local_rank)}


class LaunchError(Exception):
    """The ranks cannot find each other, or one of them did not come; says which and what to do."""


class RankLostError(LaunchError):
    """A rank did not come, or is gone: what was asked could not be determined."""


def input_error(e: LaunchError) -> InputError:
    """Return what a command ends with."""
    return (NotDeterminedError if isinstance(e, RankLostError) else InputError)(str(e))


def detect(environ: Mapping[str, str]) -> World | None:
    """Return this process's place if a launcher of more than one rank started it, else None.

    mpirun is looked for before Slurm, since under Slurm it starts its own helpers with srun. A batch script has
    SLURM_NTASKS and a SLURM_PROCID of 0 without being a task of anything; a step of srun says so by
    SLURM_STEP_NUM_TASKS or SLURM_STEP_ID.

    Raises:
        LaunchError: variables that contradict each other.
    """
    for launcher, rank, size, local, local_size in (
        ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
         "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("slurm", "SLURM_PROCID", "", "SLURM_LOCALID", ""),
        ("mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ):  # fmt: skip
        count: str | None = _slurm_size(environ) if launcher == "slurm" else environ.get(size)
        if rank not in environ or not count:
            continue
        try:
            numbers = [
                _number(n) for n in (environ[rank], count, environ.get(local, "0"), environ.get(local_size, "0"))
            ]
        except ValueError:
            raise LaunchError(f"{rank}={environ[rank]!r} with size {count!r} is not a rank and a count") from None
        if numbers[1] < 2:
            continue
        if not 0 <= numbers[0] < numbers[1]:
            raise LaunchError(f"{rank}={numbers[0]} does not fit {numbers[1]} ranks")
        if launcher == "slurm" and environ.get("SLURM_STEP_NUM_NODES") == "1":
            numbers[3] = numbers[1]
        address, ports, job = _meeting_place(launcher, environ)
        if numbers[1] == numbers[3]:
            address = "127.0.0.1"
        return World(
            launcher=launcher, rank=numbers[0], size=numbers[1], local_rank=numbers[2], local_size=numbers[3],
            address=address, ports=ports, job=job,
        )  # fmt: skip
    return None


def detect_here() -> World | None:
    """Return `detect` of this process's environment."""
    return detect(os.environ)


def _number(text: str) -> int:
    """Return a number of ASCII digits that is no larger than any count of ranks.

    Raises:
        ValueError: it is none.
    """
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise ValueError(text)
    return int(text)


def _slurm_size(environ: Mapping[str, str]) -> str | None:
    if "SLURM_STEP_NUM_TASKS" in environ:
        return environ["SLURM_STEP_NUM_TASKS"]
    if re.fullmatch(r"[0-9]+", environ.get("SLURM_STEP_ID", "")):
        return environ.get("SLURM_NTASKS")
    return None


def _meeting_place(launcher: str, environ: Mapping[str, str]) -> tuple[str, tuple[int, ...], str]:
    """Return (rank 0's address, its ports, the name of the job)."""
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if port and not re.fullmatch(r"[0-9]{1,6}", port):
        raise LaunchError(f"MASTER_PORT={port[:40]!r} is not a port")
    named = (int(port),) if port else ()
    if launcher == "slurm":
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
        address = address or next(iter(expand_hostlist(nodes)), "")
        job = f"slurm/{environ.get('SLURM_JOB_ID', '0')}.{environ.get('SLURM_STEP_ID', '0')}"
    elif launcher in ("openmpi", "mpich"):
        seed = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or environ.get("PMI_ID_GROUP")
        job = f"{launcher}/{seed}" if seed else ""
    elif AGENT in environ:
        # The agent listens at its port, and stays there when it starts its ranks anew.
        job, named = f"torchrun/{environ[AGENT]}/{address}/{port}", ()
    else:
        job = ""
    job = "".join(c if " " <= c <= "~" else "?" for c in job)[:255]
    return address, named or (ports_from(job) if job else ()), job


def ports_from(seed: str) -> tuple[int, ...]:
    """Return ports that every rank of a job derives alike, from 20000 to 29999 (below Linux's ephemeral ones)."""
    return tuple(dict.fromkeys(20000 + zlib.crc32(f"{seed}#{i}".encode()) % 10000 for i in range(PORTS)))


def node_key(environ: Mapping[str, str], launcher: str, hostname: str) -> str:
    """Return what tells this rank's node from the others.

    TOPOCHECK_NODE comes first, for containers that share a host name. Slurm names the node (SLURMD_NODENAME, or its
    number in the job, SLURM_NODEID), which is right even where two slurmds run on one kernel. torchrun numbers its
    agents, one a node (GROUP_RANK). MPI's launchers number no nodes: there the host name tells.
    """
    own = environ.get("TOPOCHECK_NODE", "")
    if own:
        return own
    if launcher == "slurm":
        number = environ.get("SLURM_NODEID", "")
        return environ.get("SLURMD_NODENAME") or (f"{hostname}/{number}" if number else hostname)
    if (
        launcher == "torchrun"
        and re.fullmatch(r"[0-9]+", environ.get("GROUP_RANK", ""))
        and environ.get("GROUP_WORLD_SIZE") != "1"
    ):
        return f"{hostname}/{environ['GROUP_RANK']}"
    return hostname


def node_here(world: World) -> str:
    """Return `node_key` of this process, in printable ASCII as it goes to other nodes."""
    key = node_key(os.environ, world.launcher, socket.gethostname())
    return "".join(c if " " <= c <= "~" else "?" for c in key)[:255]
