"""One face of torch.distributed and MPI, so that an exchange made by hand is written once.

Buffers are flat torch tensors. Ranks are counted within the wire, from 0. MPI takes the tensors' host memory; numbers
on which the ranks agree never go by what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Members = tuple[int, ...]


class Wire(Protocol):
    """One rank's side of a group.

    Attributes:
        rank, size: this one's number, and how many there are.
        device: of the buffers.
        any_source: whether a message can be received without naming its sender.
        sums_halves: whether all_reduce takes 16-bit floats.
    """

    rank: int
    size: int
    device: Any
    any_source: bool
    sums_halves: bool

    def send(self, out: Any, to: int) -> None:
        """Send a buffer; returns when it may be used again."""

    def recv(self, into: Any, source: int) -> None:
        """Receive into a buffer."""

    def recv_any(self, into: Any) -> int:
        """Receive from whoever sends next, and return who that was."""

    def swap(self, sends: Sequence[tuple[Any, int]], receives: Sequence[tuple[Any, int]]) -> None:
        """Send and receive all these at once: (buffer, other rank)."""

    def all_reduce(self, buffer: Any) -> None:
        """Sum over all ranks, in place."""

    def all_gather(self, out: Any, part: Any) -> None:
        """Gather every rank's part, of one size, on all."""

    def reduce_scatter(self, part: Any, given: Any) -> None:
        """Sum over all ranks and leave each its part."""

    def broadcast(self, buffer: Any) -> None:
        """Give rank 0's buffer to all."""

    def gather(self, out: Any | None, part: Any) -> None:
        """Gather every rank's part on rank 0; `out` holds all parts there, None elsewhere."""

    def scatter(self, part: Any, given: Any | None) -> None:
        """Give each rank its part of what rank 0 has."""

    def sub(self, members: Members) -> Wire:
        """Return the wire of some of the ranks, of which this is one; it was named in the row (see LabRow)."""

    def finish(self) -> None:
        """Wait for the device."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def total(self, value: float) -> float:
        """Return the sum of all ranks' numbers."""

    def largest(self, value: float) -> float:
        """Return the largest of all ranks' numbers."""


class TorchWire:
    """Over a group of torch.distributed; see Wire.

    Args:
        torch: the module.
        group: what is measured.
        control: the Gloo group of the same ranks.
        device: of the buffers.
        backend: of `group`.
        subs: (group, control) by their members, counted within this group.
    """

    def __init__(
        self,
        torch: Any,
        group: Any,
        control: Any,
        device: Any,
        backend: str,
        subs: Mapping[Members, tuple[Any, Any]] | None = None,
    ) -> None:
        self.torch, self.dist = torch, torch.distributed
        self.group, self.control, self.device, self.backend = group, control, device, backend
        self._world = self.dist.get_process_group_ranks(group)
        self._subs = dict(subs or {})
        self.rank, self.size = self.dist.get_rank(group), len(self._world)
        self.any_source = backend == "gloo"
        self.sums_halves = True

    def send(self, out: Any, to: int) -> None:
        """See Wire."""
        self.dist.send(out, self._world[to], group=self.group)

    def recv(self, into: Any, source: int) -> None:
        """See Wire."""
        self.dist.recv(into, self._world[source], group=self.group)

    def recv_any(self, into: Any) -> int:
        """See Wire."""
        return int(self._world.index(self.dist.recv(into, group=self.group)))

    def swap(self, sends: Sequence[tuple[Any, int]], receives: Sequence[tuple[Any, int]]) -> None:
        """See Wire."""
        make, dist = self.dist.P2POp, self.dist
        ops = [make(dist.isend, t, self._world[to], self.group) for t, to in sends]
        ops += [make(dist.irecv, t, self._world[source], self.group) for t, source in receives]
        for work in dist.batch_isend_irecv(ops) if ops else ():
            work.wait()

    def all_reduce(self, buffer: Any) -> None:
        """See Wire."""
        self.dist.all_reduce(buffer, group=self.group)

    def all_gather(self, out: Any, part: Any) -> None:
        """See Wire."""
        self.dist.all_gather_into_tensor(out, part, group=self.group)

    def reduce_scatter(self, part: Any, given: Any) -> None:
        """See Wire."""
        self.dist.reduce_scatter_tensor(part, given, group=self.group)

    def broadcast(self, buffer: Any) -> None:
        """See Wire."""
        self.dist.broadcast(buffer, self._world[0], group=self.group)

    def gather(self, out: Any | None, part: Any) -> None:
        """See Wire."""
        parts = None if out is None else list(out.chunk(self.size))
        self.dist.gather(part, parts, self._world[0], group=self.group)

    def scatter(self, part: Any, given: Any | None) -> None:
        """See Wire."""
        parts = None if given is None else list(given.chunk(self.size))
        self.dist.scatter(part, parts, self._world[0], group=self.group)

    def sub(self, members: Members) -> TorchWire:
        """See Wire."""
        group, control = self._subs[members]
        return TorchWire(self.torch, group, control, self.device, self.backend)

    def finish(self) -> None:
        """See Wire."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """See Wire."""
        self.dist.barrier(group=self.control)

    def total(self, value: float) -> float:
        """See Wire."""
        return self._agreed(value, self.dist.ReduceOp.SUM)

    def largest(self, value: float) -> float:
        """See Wire."""
        return self._agreed(value, self.dist.ReduceOp.MAX)

    def _agreed(self, value: float, how: Any) -> float:
        mine = self.torch.tensor([value], dtype=self.torch.float64)
        self.dist.all_reduce(mine, op=how, group=self.control)
        return float(mine[0])


class MpiWire:
    """Over a communicator of mpi4py; see Wire."""

    any_source = True
    sums_halves = False
    backend = "mpi"

    def __init__(self, torch: Any, comm: Any) -> None:
        self.torch, self.comm = torch, comm
        self.rank, self.size, self.device = comm.rank, comm.size, torch.device("cpu")
        self._subs: dict[Members, MpiWire] = {}

    def send(self, out: Any, to: int) -> None:
        """See Wire."""
        self.comm.Send(_memory(out), to)

    def recv(self, into: Any, source: int) -> None:
        """See Wire."""
        self.comm.Recv(_memory(into), source)

    def recv_any(self, into: Any) -> int:
        """See Wire."""
        from mpi4py import MPI

        status = MPI.Status()
        self.comm.Recv(_memory(into), MPI.ANY_SOURCE, status=status)
        return int(status.Get_source())

    def swap(self, sends: Sequence[tuple[Any, int]], receives: Sequence[tuple[Any, int]]) -> None:
        """See Wire."""
        from mpi4py import MPI

        asked = [self.comm.Irecv(_memory(t), source) for t, source in receives]
        asked += [self.comm.Isend(_memory(t), to) for t, to in sends]
        MPI.Request.Waitall(asked)

    def all_reduce(self, buffer: Any) -> None:
        """See Wire."""
        from mpi4py import MPI

        self.comm.Allreduce(MPI.IN_PLACE, buffer.numpy())

    def all_gather(self, out: Any, part: Any) -> None:
        """See Wire."""
        self.comm.Allgather(_memory(part), _memory(out))

    def reduce_scatter(self, part: Any, given: Any) -> None:
        """See Wire."""
        self.comm.Reduce_scatter_block(given.numpy(), part.numpy())

    def broadcast(self, buffer: Any) -> None:
        """See Wire."""
        self.comm.Bcast(_memory(buffer), root=0)

    def gather(self, out: Any | None, part: Any) -> None:
        """See Wire."""
        self.comm.Gather(_memory(part), None if out is None else _memory(out), root=0)

    def scatter(self, part: Any, given: Any | None) -> None:
        """See Wire."""
        self.comm.Scatter(None if given is None else _memory(given), _memory(part), root=0)

    def sub(self, members: Members) -> MpiWire:
        """See Wire."""
        if members not in self._subs:
            self._subs[members] = MpiWire(self.torch, self.comm.Create_group(self.comm.Get_group().Incl(members)))
        return self._subs[members]

    def finish(self) -> None:
        """Nothing: host memory is written when a call returns."""

    def barrier(self) -> None:
        """See Wire."""
        self.comm.Barrier()

    def total(self, value: float) -> float:
        """See Wire."""
        return self._agreed(value, "SUM")

    def largest(self, value: float) -> float:
        """See Wire."""
        return self._agreed(value, "MAX")

    def _agreed(self, value: float, how: str) -> float:
        import numpy
        from mpi4py import MPI

        out = numpy.zeros(1)
        self.comm.Allreduce(numpy.array([float(value)]), out, op=getattr(MPI, how))
        return float(out[0])


def _memory(tensor: Any) -> Any:
    """Return a host tensor's own memory as mpi4py takes it to be moved; what MPI has no type for goes as bytes."""
    import torch

    flat = tensor.detach()
    return (flat.view(torch.uint8) if flat.dtype in (torch.float16, torch.bfloat16) else flat).numpy()
