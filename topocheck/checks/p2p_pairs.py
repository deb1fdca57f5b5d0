"""Which pairs go by PCIe, and which of those the driver permits."""

from __future__ import annotations

import msgspec

from topocheck.checks.registry import Context
from topocheck.checks.subjects import given_away
from topocheck.model.base import Missing, Verdict
from topocheck.model.gpu import P2pStatus
from topocheck.topology.paths import joined_to_cpu
from topocheck.topology.types import Gpu, Nic, Path


class GpuPair(msgspec.Struct, frozen=True):
    """Two GPUs, the lower label first, the path between them and NVML's word."""

    a: Gpu
    b: Gpu
    path: Path
    status: P2pStatus | None

    @property
    def labels(self) -> str:
        """Return `GPU0-GPU1`."""
        return f"{self.a.label}-{self.b.label}"

    @property
    def by_pcie(self) -> bool:
        """Whether no NVLink joins the two and neither reaches its CPU by a chip-to-chip link."""
        return self.path.nvlinks == 0 and not joined_to_cpu(self.a) and not joined_to_cpu(self.b)

    @property
    def code(self) -> str | Missing | None:
        """Return NVML's code: the worse of read and write; None where it was never asked."""
        if self.status is None:
            return None
        for word in (self.status.read, self.status.write):
            if word != "OK":
                return word
        return "OK"

    @property
    def split(self) -> bool:
        """Whether MIG splits one of the two."""
        return any(x.nvml is not None and x.nvml.mig_current is True for x in (self.a, self.b))


def pairs(context: Context) -> list[GpuPair]:
    """Return every pair of GPUs that answer and belong to this node, each once."""
    statuses = {(s.from_address, s.to_address): s for s in context.node.nvml.p2p}
    paths = {(p.from_, p.to): p for p in context.topology.paths}
    gpus = [g for g in context.topology.gpus if g.on_bus and not given_away(g)]
    return [
        GpuPair(a, b, paths[a.address, b.address], statuses.get((a.address, b.address)))
        for i, a in enumerate(gpus)
        for b in gpus[i + 1 :]
    ]


def permitted_by_pcie(context: Context) -> list[GpuPair]:
    """Return the pairs that may use PCIe peer access: no NVLink between them, and NVML (else CUDA) says yes."""
    cuda = {(p.from_address, p.to_address): p.can_access for p in context.node.cuda.peers}
    out = []
    for p in pairs(context):
        said = p.code
        yes = said == "OK" or (not isinstance(said, str) and cuda.get((p.a.address, p.b.address)) is True)
        if p.by_pcie and not p.split and yes:
            out.append(p)
    return out


def rdma_ways(context: Context) -> list[tuple[Gpu, Nic, Path]]:
    """Return each GPU with its nearest NICs where GPUDirect RDMA works or could, by PCIe and below one bridge."""
    verdicts = {(v.from_, v.to_label): v.verdict for v in context.gpudirect.rdma}
    nearest = {n.gpu: n.nics for n in context.topology.nearest_nics}
    paths = {(p.from_, p.to_label): p for p in context.topology.paths}
    out = []
    for gpu in context.topology.gpus:
        if not gpu.on_bus or given_away(gpu) or joined_to_cpu(gpu):
            continue
        for nic in context.topology.nics:
            verdict = verdicts.get((gpu.address, nic.label))
            path = paths.get((gpu.address, nic.label))
            is_near = {nic.label, nic.address} & set(nearest.get(gpu.address, ()))
            if path is not None and is_near and verdict in (Verdict.YES, Verdict.DEGRADED):
                out.append((gpu, nic, path))
    return out
