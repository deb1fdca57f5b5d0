"""Ranks: who started this process, joining as that rank, and gathering bytes from all of them.

torchrun, srun and mpirun tell a process its rank by its environment; nothing here starts anything.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import zlib
from collections.abc import Mapping
from time import monotonic, sleep
from typing import Any

import msgspec

CONNECT_AGAIN_S = 0.1
"""Pause before rank 0 is called again."""


class World(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's place among all.

    Attributes:
        launcher: torchrun, slurm, openmpi or mpich.
        address, port: where rank 0 listens; the empty text and 0 where the launcher does not tell.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int = 0
    address: str = ""
    port: int = 0

    def environment(self) -> dict[str, str]:
        """Return the variables by which torch.distributed's `env://` finds its place."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


class LaunchError(Exception):
    """The ranks cannot find each other, or one of them did not come; says which and what to do."""


def detect(environ: Mapping[str, str]) -> World | None:
    """Return this process's place if a launcher of more than one rank started it, else None.

    mpirun is looked for before Slurm, since under Slurm it starts its own helpers with srun. A batch script has
    SLURM_NTASKS and a SLURM_PROCID of 0 without being a task of anything; a step of srun says so by
    SLURM_STEP_NUM_TASKS or SLURM_STEP_ID.

    Raises:
        LaunchError: variables that contradict each other.
    """
    for launcher, rank, size, local in (
        ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("slurm", "SLURM_PROCID", "", "SLURM_LOCALID"),
        ("mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ):
        count: str | None = _slurm_size(environ) if launcher == "slurm" else environ.get(size)
        if rank not in environ or not count:
            continue
        try:
            world = World(
                launcher=launcher, rank=int(environ[rank]), size=int(count), local_rank=int(environ.get(local, "0"))
            )
        except ValueError:
            raise LaunchError(f"{rank}={environ[rank]!r} with size {count!r} is not a rank and a count") from None
        if world.size < 2:
            continue
        if not 0 <= world.rank < world.size:
            raise LaunchError(f"{rank}={world.rank} does not fit {world.size} ranks")
        address, port = _meeting_place(launcher, environ)
        return msgspec.structs.replace(world, address=address, port=port)
    return None


def detect_here() -> World | None:
    """Return `detect` of this process's environment."""
    return detect(os.environ)


def _slurm_size(environ: Mapping[str, str]) -> str | None:
    if "SLURM_STEP_NUM_TASKS" in environ:
        return environ["SLURM_STEP_NUM_TASKS"]
    if environ.get("SLURM_STEP_ID", "").isdigit():
        return environ.get("SLURM_NTASKS")
    return None


def _meeting_place(launcher: str, environ: Mapping[str, str]) -> tuple[str, int]:
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    seed: str | None
    if port and not port.isdigit():
        raise LaunchError(f"MASTER_PORT={port!r} is not a port")
    number = int(port) if port else 0
    if launcher == "slurm":
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
        address = address or first_host(nodes)
        seed = f"{environ.get('SLURM_JOB_ID', '0')}.{environ.get('SLURM_STEP_ID', '0')}"
        number = number or port_from(seed)
    elif launcher in ("openmpi", "mpich"):
        local = environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") or environ.get("MPI_LOCALNRANKS")
        size = environ.get("OMPI_COMM_WORLD_SIZE") or environ.get("PMI_SIZE")
        if local == size:
            address = address or "127.0.0.1"
        seed = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or environ.get("PMI_ID_GROUP")
        if seed:
            number = number or port_from(seed)
    return address, number


def port_from(seed: str) -> int:
    """Return a port that every rank of a job derives alike, between 20000 and 30000 (below Linux's ephemeral ones)."""
    return 20000 + zlib.crc32(seed.encode()) % 10000


def first_host(nodelist: str) -> str:
    """Return the first host of a Slurm node list: `n[003-5,9],m1` gives `n003`; the empty text for an empty list."""
    m = re.match(r"([^\[\],]*)(?:\[([^\]]*)\]([^,\[]*))?", nodelist.strip())
    if not m:
        return ""
    inside = re.split(r"[,-]", m[2])[0] if m[2] else ""
    return m[1] + inside + (m[3] or "")


def meet(world: World) -> World:
    """Return the world with rank 0's address and port, asking MPI for them where the launcher does not tell.

    Raises:
        LaunchError: they cannot be known; says what to set.
    """
    if world.address and world.port:
        return world
    how = "set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port for all ranks"
    if world.launcher == "openmpi":
        how += " (mpirun -x MASTER_ADDR=... -x MASTER_PORT=...)"
    if world.launcher in ("openmpi", "mpich"):
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as e:
            raise LaunchError(
                f"{world.launcher} does not say where rank 0 is, and mpi4py is no help ({e}): {how}"
            ) from None
        mine = (socket.gethostname(), free_port()) if world.rank == 0 else None
        address, port = MPI.COMM_WORLD.bcast(mine, root=0)
        return msgspec.structs.replace(world, address=world.address or address, port=world.port or port)
    raise LaunchError(f"{world.launcher} does not say where rank 0 is: {how}")


def ready(world: World) -> World:
    """Return the world with a place to meet that this rank can use, as far as can be seen before it is used.

    Raises:
        LaunchError: the place cannot be known, its name means nothing here, or rank 0 cannot listen there.
    """
    world = meet(world)
    problem = meeting_problem(world, listens=listens_here(world))
    if problem:
        raise LaunchError(f"rank {world.rank}: {problem}")
    return world


def reach(world: World, wait_s: float) -> None:
    """Wait until somebody listens where the ranks meet: torch's store would wait twice as long as it is told.

    Raises:
        LaunchError: nobody did within `wait_s`.
    """
    end = monotonic() + wait_s
    while True:
        try:
            socket.create_connection((world.address, world.port), timeout=max(0.1, end - monotonic())).close()
            return
        except OSError as e:
            if monotonic() >= end:
                where, why = f"{world.address}:{world.port}", e.strerror or "no answer"
                raise LaunchError(
                    f"rank {world.rank}: rank 0 did not answer at {where} within {wait_s:.0f} s ({why})"
                ) from None
        sleep(min(CONNECT_AGAIN_S, max(0.0, end - monotonic())))


def listens_here(world: World) -> bool:
    """Tell whether this process holds the store; under torchrun the agent already does."""
    return world.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def meeting_problem(world: World, *, listens: bool) -> str:
    """Return why ranks cannot meet at an address and port, or the empty text: an unknown name, a port in use."""
    if not 0 < world.port < 1 << 16:
        return f"MASTER_PORT={world.port} is no port: expected 1 to 65535"
    try:
        socket.getaddrinfo(world.address, world.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as e:
        why = (e.strerror if isinstance(e, OSError) else "") or "no host name"
        return f"rank 0's host {world.address!r} cannot be found ({why}): set MASTER_ADDR to a name or address of it"
    if listens:
        try:
            with socket.socket() as s:
                # As the store does: a port that an earlier run has just left is free.
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                s.bind(("", world.port))
        except OSError as e:
            what = "is in use" if e.errno == errno.EADDRINUSE else f"cannot be listened on ({e.strerror})"
            return f"port {world.port} {what} on this host: set MASTER_PORT to a free one (ss -ltnp shows who listens)"
    return ""


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def open_store(world: World, limit_s: float) -> Any:
    """Return torch's TCPStore where the ranks of a world that is `ready` meet; rank 0 listens.

    Raises:
        LaunchError: torch is not there, or rank 0 does not answer within `limit_s`.
    """
    from datetime import timedelta

    # c10d warns of every address without a name, and prints a stack for every connection that fails.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    try:
        from torch.distributed import TCPStore
    except ImportError as e:
        raise LaunchError(
            f"ranks meet through torch, which is not here ({e}): pip install 'topocheck-gpu[bw]'"
        ) from None
    listens = listens_here(world)
    if not listens:
        reach(world, limit_s)
    limit = timedelta(seconds=limit_s)
    try:
        return TCPStore(world.address, world.port, world.size, listens, limit, wait_for_workers=False)
    except Exception as e:  # noqa: BLE001 - raises DistNetworkError, RuntimeError or ValueError by torch's version
        where, why = f"{world.address}:{world.port}", (str(e).splitlines() or [type(e).__name__])[0][:240]
        raise LaunchError(f"rank {world.rank}: {where} cannot be reached ({why})") from None


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """What came from each rank, and of the ranks that did not come, why."""

    payloads: dict[int, bytes]
    missing: dict[int, str]


def gather(payload: bytes, world: World, deadline_s: float = 60.0) -> Gathered | None:
    """Give rank 0 the bytes of every rank; other ranks get None once rank 0 has theirs or the deadline has passed.

    Loads torch: its TCPStore is the same meeting point that Gloo and NCCL use. A rank that does not come within the
    deadline is named in `missing`; the others are not lost with it.

    Raises:
        LaunchError: torch is not there, or rank 0 cannot listen or be reached.
    """
    begun = monotonic()
    world = ready(world)
    store = open_store(world, deadline_s)
    where = f"{world.address}:{world.port}"
    try:
        store.set(f"topocheck/{world.rank}", payload)
    except Exception as e:  # noqa: BLE001 - see above
        raise LaunchError(f"rank {world.rank}: sending to {where} failed ({str(e).splitlines()[0][:160]})") from None
    if world.rank != 0:
        _wait(store, "topocheck/done", deadline_s - (monotonic() - begun))
        return None
    payloads: dict[int, bytes] = {}
    missing: dict[int, str] = {}
    for rank in range(world.size):
        left = max(0.1, deadline_s - (monotonic() - begun))
        if _wait(store, f"topocheck/{rank}", left):
            payloads[rank] = bytes(store.get(f"topocheck/{rank}"))
        else:
            missing[rank] = f"rank {rank} sent nothing within {deadline_s:.0f} s"
    store.set("topocheck/done", b"1")
    return Gathered(payloads=payloads, missing=missing)


def _wait(store: object, key: str, seconds: float) -> bool:
    from datetime import timedelta

    try:
        store.wait([key], timedelta(seconds=max(0.1, seconds)))  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - torch raises DistStoreError, RuntimeError or ValueError by version
        return False
    return True
