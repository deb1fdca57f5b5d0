"""Two ways of averaging gradients by hand, so that they can be compared: a ring, and a parameter server.

The same bytes, the same send and receive calls; only who talks to whom differs. Rank 0 of the group is the server.
"""

from __future__ import annotations

from typing import Any


def ring(torch: Any, buffer: Any, group: Any, rank: int, ranks: int) -> None:
    """Sum a flat buffer over all ranks in place: n-1 steps of reduce-scatter, then n-1 of all-gather.

    P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
    """
    parts = list(buffer.tensor_split(ranks))
    incoming = [torch.empty_like(p) for p in parts]
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    for step in range(2 * (ranks - 1)):
        gather = step >= ranks - 1
        k = step - (ranks - 1) if gather else step
        send = (rank + 1 - k) % ranks if gather else (rank - k) % ranks
        receive = (send - 1) % ranks
        _exchange(torch, group, parts[send], right, incoming[receive], left)
        if gather:
            parts[receive].copy_(incoming[receive])
        else:
            parts[receive].add_(incoming[receive])


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


def _exchange(torch: Any, group: Any, out: Any, to: int, into: Any, from_: int) -> None:
    dist = torch.distributed
    world = dist.get_process_group_ranks(group)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, out, world[to], group), dist.P2POp(dist.irecv, into, world[from_], group)]
    ):
        work.wait()


def predicted_seconds(pattern: str, ranks: int, size_bytes: float, alpha_s: float, rate: float) -> float:
    """Return what the cost model says of a pattern on links of one latency and rate (bytes/s, one direction).

    Ring: 2(n-1) steps of S/n bytes. Parameter server: the server's one port takes n-1 buffers and gives n-1 back.
    """
    n = ranks
    if pattern == "parameter_server":
        return 2 * alpha_s + 2 * (n - 1) * size_bytes / rate
    return 2 * (n - 1) * alpha_s + 2 * (n - 1) / n * size_bytes / rate
