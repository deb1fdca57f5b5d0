"""Where rank 0 is, told to the other ranks over MPI, for launchers of MPI that do not say."""

from __future__ import annotations

import os
import socket

import msgspec

from topocheck.tests_live.launch.address import is_loopback, listen
from topocheck.tests_live.launch.world import LaunchError, World

BYTES = 2048


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 tells: its place, a key that only ranks of MPI's world get, or why there is none."""

    addresses: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    key: bytes = b""
    error: str = ""


def told_by_rank_0(world: World) -> tuple[Told, list[socket.socket]]:
    """Return what rank 0 tells all ranks, and on rank 0 the sockets that listen there.

    Raises:
        LaunchError: MPI is not there, or rank 0 cannot listen; says what to do.
    """
    how = "set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port for all ranks"
    if world.launcher == "openmpi":
        how += " (mpirun -x MASTER_ADDR=... -x MASTER_PORT=...)"
    if world.launcher not in ("openmpi", "mpich"):
        raise LaunchError(f"{world.launcher} does not say where rank 0 is: {how}")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        raise LaunchError(
            f"{world.launcher} does not say where rank 0 is, and mpi4py is no help ({e}): {how}"
        ) from None
    told, sockets = _mine(world) if world.rank == 0 else (Told(), [])
    # A buffer of bytes, for what mpi4py sends as an object it would pickle, and unpickle where it comes.
    buffer = bytearray(msgspec.json.encode(told).ljust(BYTES))
    MPI.COMM_WORLD.Bcast(buffer, root=0)
    try:
        told = msgspec.json.decode(bytes(buffer), type=Told)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise LaunchError(f"rank {world.rank}: MPI provided no rendezvous address ({e}): {how}") from None
    if told.error:
        raise LaunchError(told.error)
    return told, sockets


def _mine(world: World) -> tuple[Told, list[socket.socket]]:
    host = world.address or socket.gethostname()
    try:
        sockets = listen(msgspec.structs.replace(world, address=host))
    except LaunchError as e:
        return Told(error=str(e)[: BYTES // 2]), []
    addresses = sorted((str(s.getsockname()[0]) for s in sockets), key=is_loopback)
    return Told(addresses=tuple(addresses), ports=(int(sockets[0].getsockname()[1]),), key=os.urandom(32)), sockets
