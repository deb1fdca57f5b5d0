"""Where the ranks of a launcher meet: a store that rank 0 holds, and which rank is on which node.

The store is torch.distributed's TCPStore, the meeting point that Gloo and NCCL use as well.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

from topocheck.tests_live.ranks import LaunchError, World, open_store, ready

POLL_S = 0.02


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
    if launcher == "torchrun" and environ.get("GROUP_RANK", "").isdigit() and environ.get("GROUP_WORLD_SIZE") != "1":
        return f"{hostname}/{environ['GROUP_RANK']}"
    return hostname


def node_here(world: World) -> str:
    """Return `node_key` of this process."""
    return node_key(os.environ, world.launcher, socket.gethostname())


class Meeting:
    """The store, from one rank's side. To be used from one thread: a call that waits holds the connection."""

    def __init__(self, world: World, deadline_s: float) -> None:
        """Join; rank 0 listens.

        Raises:
            LaunchError: torch is not there, or rank 0 cannot listen or be reached.
        """
        self.world = world = ready(world)
        self._store = open_store(world, deadline_s)
        self.where = f"{world.address}:{world.port}"

    def put(self, key: str, value: bytes) -> None:
        """Set a key.

        Raises:
            LaunchError: rank 0 is gone.
        """
        try:
            self._store.set(f"topocheck/{key}", value)
        except Exception as e:  # noqa: BLE001 - see above
            raise LaunchError(f"rank {self.world.rank}: lost rank 0 at {self.where} ({_first(e)})") from None

    def get(self, key: str, wait_s: float) -> bytes | None:
        """Return the value of a key, or None where nobody set it within `wait_s` seconds.

        Raises:
            LaunchError: rank 0 is gone.
        """
        end = monotonic() + wait_s
        name = f"topocheck/{key}"
        try:
            while not is_set(self._store, name):
                if monotonic() >= end:
                    return None
                sleep(POLL_S)
            return bytes(self._store.get(name))
        except Exception as e:  # noqa: BLE001 - see above
            raise LaunchError(f"rank {self.world.rank}: lost rank 0 at {self.where} ({_first(e)})") from None

    def claim(self, key: str) -> bool:
        """Tell whether this rank is the first to claim a key."""
        try:
            return int(self._store.add(f"topocheck/{key}", 1)) == 1
        except Exception as e:  # noqa: BLE001 - see above
            raise LaunchError(f"rank {self.world.rank}: lost rank 0 at {self.where} ({_first(e)})") from None

    def own_address(self) -> str:
        """Return this node's address on the network by which it reaches rank 0."""
        with contextlib.suppress(OSError):
            family, kind, proto, _, to = socket.getaddrinfo(
                self.world.address, self.world.port, type=socket.SOCK_DGRAM
            )[0]
            with socket.socket(family, kind, proto) as s:
                s.connect(to)
                return str(s.getsockname()[0])
        return socket.gethostbyname(socket.gethostname())


def is_set(store: Any, key: str) -> bool:
    """Tell whether somebody set a key of a store of torch's."""
    if hasattr(store, "check"):
        return bool(store.check([key]))
    # Older torch: a short wait, which raises where the key is not there.
    try:
        store.wait([key], timedelta(milliseconds=50))
    except Exception as e:
        if "imeout" in str(e) or "timed out" in str(e).lower():
            return False
        raise
    return True


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
