"""What the ranks of a scaling run stand on: how many, on which nodes, with what."""

from __future__ import annotations

import contextlib
import os
import socket
from collections import Counter
from time import monotonic

import msgspec

from topocheck.tests_live.meeting import Meeting, node_here
from topocheck.tests_live.ranks import LaunchError, World, port_from
from topocheck.tests_live.scale import SETS, cpus_here
from topocheck.tests_live.scale_types import Ground


class _Word(msgspec.Struct, frozen=True):
    """What each rank says of itself."""

    node: str
    cpus: tuple[int, ...]
    gpus: int


class _Agreed(msgspec.Struct, frozen=True):
    """What rank 0 tells all: the ground, and where the sets of ranks meet on its host."""

    ground: Ground
    ports: tuple[int, ...]


def local_ground(gpus: tuple[str, ...], ranks: int = 0) -> Ground:
    """Return the ground of ranks that are started here: `ranks`, or one per GPU, or two."""
    return Ground(ranks=ranks or max(len(gpus), 2), cores=len(cpus_here()), gpus=gpus)


def common_ground(world: World, gpus: tuple[str, ...], deadline_s: float = 60.0) -> tuple[Ground, tuple[int, ...]]:
    """Return the ground of a launcher's ranks, the same on all of them but for the addresses of their GPUs, and ports.

    The ports are free on rank 0's host: each set of ranks meets at one, since the kernel may still hold that of the
    last.

    GPUs take part where every node has one for each of its ranks.

    Raises:
        LaunchError: a rank did not come; names it.
    """
    meeting = Meeting(world, deadline_s)
    word = _Word(node_here(world), cpus_here(), len(gpus))
    meeting.put(f"ground/{world.rank}", msgspec.json.encode(word))
    if world.rank == 0:
        words = []
        for rank in range(world.size):
            text = meeting.get(f"ground/{rank}", deadline_s)
            if text is None:
                meeting.put("ground", msgspec.json.encode(f"rank {rank} did not come within {deadline_s:.0f} s"))
                raise LaunchError(f"rank {rank} did not come within {deadline_s:.0f} s")
            words.append(msgspec.json.decode(text, type=_Word))
        meeting.put("ground", msgspec.json.encode(_Agreed(ground_of(words, world.launcher), free_ports(SETS))))
        # The store lives in this process: the others must have read it before another takes its port.
        for rank in range(1, world.size):
            meeting.get(f"read/{rank}", deadline_s)
    text = meeting.get("ground", deadline_s + 10)
    if text is None:
        raise LaunchError(f"rank 0 said nothing within {deadline_s + 10:.0f} s")
    said = msgspec.json.decode(text, type=_Agreed | str)
    meeting.put(f"read/{world.rank}", b"1")
    if isinstance(said, str):
        raise LaunchError(said)
    ground = said.ground
    return msgspec.structs.replace(ground, gpus=gpus if ground.gpus else ()), said.ports


def free_ports(count: int) -> tuple[int, ...]:
    """Return ports of this host that nothing holds, below those that the kernel gives to connections by itself.

    The port beside the launcher's is no good guess: torchrun's lies among those of connections.
    """
    out: list[int] = []
    for i in range(100):
        port = port_from(f"{os.getpid()}.{monotonic()}.{i}")
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("", port))
            if port not in out:
                out.append(port)
        if len(out) == count:
            break
    return tuple(out)


def ground_of(words: list[_Word], launcher: str) -> Ground:
    """Return what the ranks' words amount to."""
    nodes = Counter(w.node for w in words)
    per = set(nodes.values())
    block = next(iter(per)) if len(per) == 1 else 0
    in_blocks = block and all(len({w.node for w in words[i : i + block]}) == 1 for i in range(0, len(words), block))
    enough = all(w.gpus >= nodes[w.node] for w in words)
    return Ground(
        ranks=len(words),
        nodes=len(nodes),
        ranks_per_node=block if in_blocks else 0,
        # A launcher may bind each rank to a core of its own: a node's cores are those of all its ranks.
        cores=min(len({c for w in words if w.node == n for c in w.cpus}) for n in nodes),
        gpus=("all",) if enough else (),
        launcher=launcher,
    )
