"""Two ways of averaging gradients by hand, so that they can be compared: a ring, and a parameter server.

The same bytes, the same send and receive calls; only who talks to whom differs. Rank 0 of the group is the server.
"""

from __future__ import annotations

from typing import Any

from topocheck.bandwidth.collective_model import ring_all_reduce_s
from topocheck.bandwidth.server_model import synchronous_step_s
from topocheck.tests_live.collectives import by_hand
from topocheck.tests_live.collectives.wire import TorchWire


def ring(torch: Any, buffer: Any, group: Any, rank: int, ranks: int) -> None:
    """Sum a flat buffer over all ranks in place by a ring (collectives/by_hand.py)."""
    by_hand.ring(torch, TorchWire(torch, group, None, buffer.device, "gloo"), buffer)


def parameter_server(torch: Any, buffer: Any, group: Any, rank: int, ranks: int) -> None:
    """Sum a flat buffer over all ranks in place: every worker sends to rank 0, which sends the sum back to each."""
    dist = torch.distributed
    world = dist.get_process_group_ranks(group)
    if rank:
        dist.send(buffer, world[0], group=group)
        dist.recv(buffer, world[0], group=group)
        return
    incoming = [torch.empty_like(buffer) for _ in range(ranks - 1)]
    for work in [dist.irecv(t, world[i + 1], group=group) for i, t in enumerate(incoming)]:
        work.wait()
    for t in incoming:
        buffer.add_(t)
    for work in [dist.isend(buffer, world[i], group=group) for i in range(1, ranks)]:
        work.wait()


def by_backend(torch: Any, buffer: Any, group: Any, rank: int, ranks: int) -> None:
    """Sum a flat buffer by the backend's own all_reduce."""
    torch.distributed.all_reduce(buffer, group=group)


RUN = {"backend": by_backend, "ring": ring, "parameter_server": parameter_server}


def predicted_seconds(pattern: str, ranks: int, size_bytes: float, alpha_s: float, rate: float) -> float:
    """Return what the cost model says of a pattern on links of one latency and rate (bytes/s, one direction).

    Ring: 2(n-1) steps of S/n bytes. Parameter server: the server's one port takes n-1 buffers and gives n-1 back.
    """
    if pattern == "parameter_server":
        return synchronous_step_s(ranks - 1, 1, size_bytes, 0.0, alpha_s, rate)
    return ring_all_reduce_s(ranks, size_bytes, alpha_s, rate)
