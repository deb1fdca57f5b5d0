"""The collectives: buffers, calls through torch.distributed, and the exact result.

Rank r's value at place i is ((i mod 1021) + 3 r) mod 4: small whole numbers, so every sum of up to 85 ranks is exact
in any floating type that holds 256 exactly (bfloat16 is the narrowest), and 1021 is prime, so a chunk that lands in
another one's place differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from topocheck.bandwidth.collective_sizes import DTYPE_BYTES, elements
from topocheck.model.units import size_text

PERIOD = 1021


class Op(msgspec.Struct, kw_only=True):
    """A collective on its buffers. `call` runs it once; `reset` fills the buffers; `wrong` counts wrong elements.

    Attributes:
        send, recv: the tensors it reads and writes; one and the same, or one within the other, where it is in place.
        count: elements as NCCL counts them: of each rank's part where the data is split, otherwise all.
        call: through torch.distributed.
    """

    size_bytes: int
    in_place: bool
    send: Any
    recv: Any
    count: int
    call: Callable[[], Any]
    reset: Callable[[], None]
    wrong: Callable[[], int]


def values(torch: Any, rank: int, first: int, count: int, dtype: Any, device: Any) -> Any:
    """Return rank's values at places `first` to `first + count`."""
    places = torch.arange(PERIOD, device=device)
    one = ((places + first) % PERIOD + 3 * rank) % 4
    return one.to(dtype).repeat(-(-count // PERIOD))[:count]


def summed(torch: Any, ranks: int, first: int, count: int, dtype: Any, device: Any) -> Any:
    """Return the sum of all ranks' values at places `first` to `first + count`."""
    places = (torch.arange(PERIOD, device=device) + first) % PERIOD
    one = sum((places + 3 * r) % 4 for r in range(ranks))
    return one.to(dtype).repeat(-(-count // PERIOD))[:count]


def variants(collective: str) -> tuple[bool, ...]:
    """Return the placements torch offers: in place, out of place, or both."""
    if collective in ("all_gather", "reduce_scatter"):
        return (False, True)
    return (collective in ("all_reduce", "broadcast", "reduce"),)


def make(
    torch: Any,
    collective: str,
    size_bytes: int,
    dtype_name: str,
    group: Any,
    *,
    ranks: int,
    me: int,
    device: Any,
    in_place: bool,
) -> Op:
    """Return the collective of `size_bytes` as nccl-tests counts it, for member `me` of `ranks`.

    Raises:
        ValueError: the size holds no element per rank.
    """
    dist, dtype = torch.distributed, getattr(torch, dtype_name)
    width = DTYPE_BYTES[dtype_name]
    part, count = elements(collective, size_bytes, ranks, width)
    if part < 1:
        raise ValueError(f"{size_text(size_bytes)} is less than one {dtype_name} for each of {ranks} ranks")
    ranks_of = torch.distributed.get_process_group_ranks(group)

    def mine(n: int) -> Any:
        return values(torch, me, 0, n, dtype, device)

    if collective in ("all_reduce", "broadcast", "reduce"):
        buffer = torch.empty(count, dtype=dtype, device=device)
        root = ranks_of[0]

        def call() -> Any:
            if collective == "all_reduce":
                return dist.all_reduce(buffer, group=group)
            if collective == "broadcast":
                return dist.broadcast(buffer, src=root, group=group)
            return dist.reduce(buffer, dst=root, group=group)

        def wrong() -> int:
            if collective == "reduce" and me != 0:
                return 0  # what other ranks' buffers hold after a reduce is not defined
            if collective == "broadcast":
                want = values(torch, 0, 0, count, dtype, device)
            else:
                want = summed(torch, ranks, 0, count, dtype, device)
            return int((buffer != want).sum())

        return Op(
            size_bytes=count * width,
            in_place=True,
            send=buffer,
            recv=buffer,
            count=count,
            call=call,
            reset=lambda: buffer.copy_(mine(count)),
            wrong=wrong,
        )
    if collective == "all_gather":
        out = torch.empty(count, dtype=dtype, device=device)
        own = out[me * part : (me + 1) * part] if in_place else torch.empty(part, dtype=dtype, device=device)

        def reset() -> None:
            out.fill_(9)
            own.copy_(mine(part))

        def wrong_gather() -> int:
            return sum(
                int((out[r * part : (r + 1) * part] != values(torch, r, 0, part, dtype, device)).sum())
                for r in range(ranks)
            )

        return Op(
            size_bytes=count * width,
            in_place=in_place,
            send=own,
            recv=out,
            count=part,
            call=lambda: dist.all_gather_into_tensor(out, own, group=group),
            reset=reset,
            wrong=wrong_gather,
        )
    if collective == "reduce_scatter":
        given = torch.empty(count, dtype=dtype, device=device)
        got = given[me * part : (me + 1) * part] if in_place else torch.empty(part, dtype=dtype, device=device)
        return Op(
            size_bytes=count * width,
            in_place=in_place,
            send=given,
            recv=got,
            count=part,
            call=lambda: dist.reduce_scatter_tensor(got, given, group=group),
            reset=lambda: given.copy_(mine(count)),
            wrong=lambda: int((got != summed(torch, ranks, me * part, part, dtype, device)).sum()),
        )
    if collective == "all_to_all":
        sent, got_all = mine(count), torch.empty(count, dtype=dtype, device=device)

        def wrong_all() -> int:
            return sum(
                int((got_all[r * part : (r + 1) * part] != values(torch, r, me * part, part, dtype, device)).sum())
                for r in range(ranks)
            )

        return Op(
            size_bytes=count * width,
            in_place=False,
            send=sent,
            recv=got_all,
            count=part,
            call=lambda: dist.all_to_all_single(got_all, sent, group=group),
            reset=lambda: got_all.fill_(9),
            wrong=wrong_all,
        )
    sent, got_ring = mine(count), torch.empty(count, dtype=dtype, device=device)
    to, from_ = ranks_of[(me + 1) % ranks], ranks_of[(me - 1) % ranks]

    def ring() -> Any:
        work = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, to, group), dist.P2POp(dist.irecv, got_ring, from_, group)]
        )
        for w in work:
            w.wait()

    return Op(
        size_bytes=count * width,
        in_place=False,
        send=sent,
        recv=got_ring,
        count=count,
        call=ring,
        reset=lambda: got_ring.fill_(9),
        wrong=lambda: int((got_ring != values(torch, (me - 1) % ranks, 0, count, dtype, device)).sum()),
    )
