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


class _Buffers(msgspec.Struct, frozen=True, kw_only=True):
    """What the buffers of one collective are made of: torch, the group, and how much is whose.

    Attributes:
        me, ranks: this member's number, and how many there are.
        part, count: elements of each rank's part where the data is split, and of all.
        width: bytes of an element.
    """

    torch: Any
    group: Any
    me: int
    ranks: int
    part: int
    count: int
    width: int
    dtype: Any
    device: Any

    @property
    def members(self) -> list[int]:
        """Global ranks of the group's members, in its order."""
        found: list[int] = self.torch.distributed.get_process_group_ranks(self.group)
        return found

    def empty(self, count: int) -> Any:
        """Return a buffer of so many elements."""
        return self.torch.empty(count, dtype=self.dtype, device=self.device)

    def of(self, rank: int, first: int, count: int) -> Any:
        """Return a rank's values."""
        return values(self.torch, rank, first, count, self.dtype, self.device)

    def summed(self, first: int, count: int) -> Any:
        """Return the sums of all ranks' values."""
        return summed(self.torch, self.ranks, first, count, self.dtype, self.device)

    def part_of(self, buffer: Any, rank: int) -> Any:
        """Return the part of a buffer that belongs to a rank."""
        return buffer[rank * self.part : (rank + 1) * self.part]

    def op(self, send: Any, recv: Any, count: int, *, in_place: bool = False, **calls: Callable[[], Any]) -> Op:
        """Return the collective on these buffers."""
        size = self.count * self.width
        return Op(size_bytes=size, in_place=in_place, send=send, recv=recv, count=count, **calls)


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
    width = DTYPE_BYTES[dtype_name]
    part, count = elements(collective, size_bytes, ranks, width)
    if part < 1:
        raise ValueError(f"{size_text(size_bytes)} is less than one {dtype_name} for each of {ranks} ranks")
    b = _Buffers(
        torch=torch, group=group, me=me, ranks=ranks, part=part, count=count, width=width,
        dtype=getattr(torch, dtype_name), device=device,
    )  # fmt: skip
    if collective in ("all_reduce", "broadcast", "reduce"):
        return _on_one_buffer(b, collective)
    if collective == "all_gather":
        return _gather(b, in_place=in_place)
    if collective == "reduce_scatter":
        return _scatter(b, in_place=in_place)
    return _exchange(b) if collective == "all_to_all" else _ring(b)


def _on_one_buffer(b: _Buffers, collective: str) -> Op:
    dist, buffer, root = b.torch.distributed, b.empty(b.count), b.members[0]

    def call() -> Any:
        if collective == "all_reduce":
            return dist.all_reduce(buffer, group=b.group)
        if collective == "broadcast":
            return dist.broadcast(buffer, src=root, group=b.group)
        return dist.reduce(buffer, dst=root, group=b.group)

    def wrong() -> int:
        if collective == "reduce" and b.me != 0:
            return 0  # what other ranks' buffers hold after a reduce is not defined
        want = b.of(0, 0, b.count) if collective == "broadcast" else b.summed(0, b.count)
        return int((buffer != want).sum())

    def reset() -> Any:
        return buffer.copy_(b.of(b.me, 0, b.count))

    return b.op(buffer, buffer, b.count, in_place=True, call=call, reset=reset, wrong=wrong)


def _gather(b: _Buffers, *, in_place: bool) -> Op:
    out = b.empty(b.count)
    own = b.part_of(out, b.me) if in_place else b.empty(b.part)

    def reset() -> None:
        out.fill_(9)
        own.copy_(b.of(b.me, 0, b.part))

    def wrong() -> int:
        return sum(int((b.part_of(out, r) != b.of(r, 0, b.part)).sum()) for r in range(b.ranks))

    def call() -> Any:
        return b.torch.distributed.all_gather_into_tensor(out, own, group=b.group)

    return b.op(own, out, b.part, in_place=in_place, call=call, reset=reset, wrong=wrong)


def _scatter(b: _Buffers, *, in_place: bool) -> Op:
    given = b.empty(b.count)
    got = b.part_of(given, b.me) if in_place else b.empty(b.part)
    return b.op(
        given,
        got,
        b.part,
        in_place=in_place,
        call=lambda: b.torch.distributed.reduce_scatter_tensor(got, given, group=b.group),
        reset=lambda: given.copy_(b.of(b.me, 0, b.count)),
        wrong=lambda: int((got != b.summed(b.me * b.part, b.part)).sum()),
    )


def _exchange(b: _Buffers) -> Op:
    sent, got = b.of(b.me, 0, b.count), b.empty(b.count)

    def wrong() -> int:
        return sum(int((b.part_of(got, r) != b.of(r, b.me * b.part, b.part)).sum()) for r in range(b.ranks))

    def call() -> Any:
        return b.torch.distributed.all_to_all_single(got, sent, group=b.group)

    return b.op(sent, got, b.part, call=call, reset=lambda: got.fill_(9), wrong=wrong)


def _ring(b: _Buffers) -> Op:
    dist = b.torch.distributed
    sent, got = b.of(b.me, 0, b.count), b.empty(b.count)
    to, before = b.members[(b.me + 1) % b.ranks], (b.me - 1) % b.ranks
    from_ = b.members[before]

    def call() -> Any:
        work = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, to, b.group), dist.P2POp(dist.irecv, got, from_, b.group)]
        )
        for w in work:
            w.wait()

    return b.op(
        sent,
        got,
        b.count,
        call=call,
        reset=lambda: got.fill_(9),
        wrong=lambda: int((got != b.of(before, 0, b.count)).sum()),
    )
