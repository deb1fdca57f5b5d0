"""Which pairs go by PCIe, and which of those the driver permits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec

from topocheck.checks.registry import Context, once
from topocheck.checks.shared.common import given_away, pair, quote
from topocheck.gpudirect.p2p import sold_without
from topocheck.gpudirect.types import PciePath, RdmaVerdict
from topocheck.model.base import Evidence, Missing, Verdict
from topocheck.model.gpu import P2pStatus, raw_p2p_code
from topocheck.topology.paths import joined_to_cpu
from topocheck.topology.types import Gpu, Nic, Path


class GpuPair(msgspec.Struct, frozen=True):
    """Two GPUs, the lower label first, the path between them and NVML's word.

    Attributes:
        sold_without: one of the two is of a product sold without peer access over PCIe.
        by_pcie: no NVLink joins the two and neither reaches its CPU by a chip-to-chip link.
        passed: what their traffic passes by PCIe; None where that is the host's, or it goes another way.
    """

    a: Gpu
    b: Gpu
    path: Path
    status: P2pStatus | None
    by_pcie: bool
    sold_without: bool = False
    passed: PciePath | None = None

    @property
    def labels(self) -> str:
        """Return `GPU0-GPU1`."""
        return f"{self.a.label}-{self.b.label}"

    @property
    def code(self) -> str | Missing | None:
        """Return NVML's code: the worse of read and write; None where it was never asked."""
        if self.status is None:
            return None
        return self.status.write if self.status.read == "OK" else self.status.read

    @property
    def split(self) -> bool:
        """Whether MIG splits one of the two."""
        a, b = self.a.nvml, self.b.nvml
        return (a is not None and a.mig_current is True) or (b is not None and b.mig_current is True)


@once
def pairs(context: Context) -> tuple[GpuPair, ...]:
    """Return every pair of GPUs that answer and belong to this node, each once.

    A GPU that NVML does not list, while it lists others, is hidden from this process or not started: a finding about
    its pairs would say nothing that the one about the GPU does not say.
    """
    statuses = context.node.nvml.statuses
    path, verdicts = context.topology.path, context.gpudirect.of_gpus
    gpus = [g for g in context.topology.gpus if g.on_bus and not given_away(g)]
    listed_gpus = [g for g in gpus if g.nvml is not None]
    gpus = listed_gpus or gpus
    coherent = {g.address for g in gpus if joined_to_cpu(g)}
    without = {g.address for g in gpus if sold_without(g, g)}
    return tuple(
        GpuPair(
            a,
            b,
            between := path(a.address, b.address),
            statuses.get((a.address, b.address)),
            by_pcie=between.nvlinks == 0
            and between.nvlinks_untold is None
            and not (coherent and coherent.intersection((a.address, b.address))),
            sold_without=bool(without) and (a.address in without or b.address in without),
            passed=v.pcie if (v := verdicts.get((a.address, b.address))) is not None else None,
        )
        for a, b in itertools.combinations(gpus, 2)
    )


@once
def cuda_peers(context: Context) -> dict[tuple[str, str], bool | Missing]:
    """Return whether CUDA can access the second of two addresses from the first, where it was asked."""
    return context.node.cuda.access


@once
def permitted_by_pcie(context: Context) -> tuple[GpuPair, ...]:
    """Return the pairs that may use PCIe peer access: no NVLink between them, and NVML (else CUDA) says yes."""
    cuda = cuda_peers(context)
    out = []
    for p in pairs(context):
        said = p.code
        yes = said == "OK" or (not isinstance(said, str) and cuda.get((p.a.address, p.b.address)) is True)
        if p.by_pcie and not p.split and yes:
            out.append(p)
    return tuple(out)


@once
def rdma_in_use(context: Context) -> tuple[RdmaVerdict, ...]:
    """Return each GPU with its nearest NICs where GPUDirect RDMA works or could, by PCIe and below one bridge."""
    nearest = {n.gpu: n.nics for n in context.topology.nearest_nics}
    verdicts = context.gpudirect.of_nics
    out = []
    for gpu in context.topology.gpus:
        if not gpu.on_bus or given_away(gpu) or joined_to_cpu(gpu):
            continue
        near = set(nearest.get(gpu.address, ()))
        for nic in context.topology.nics:
            v = verdicts.get((gpu.address, nic.label))
            is_near = nic.label in near or nic.address in near
            if v is not None and is_near and v.verdict in (Verdict.YES, Verdict.DEGRADED):
                out.append(v)
    return tuple(out)


@once
def coherent_ways(context: Context) -> list[tuple[Gpu, Nic]]:
    """Return each GPU that a chip-to-chip link joins to its CPU, with its nearest NICs where GPUDirect RDMA works."""
    verdicts = {(v.from_, v.to): v.verdict for v in context.gpudirect.rdma}
    nearest = {n.gpu: n.nics for n in context.topology.nearest_nics}
    return [
        (gpu, nic)
        for gpu in context.topology.gpus
        if gpu.on_bus and joined_to_cpu(gpu)
        for nic in context.topology.nics
        if (nic.address in nearest.get(gpu.address, ()) or nic.label in nearest.get(gpu.address, ()))
        and verdicts.get((gpu.address, nic.address)) in (Verdict.YES, Verdict.DEGRADED)
    ]


def status_evidence(context: Context, found: Iterable[GpuPair]) -> tuple[Evidence, ...]:
    """Quote NVML's read and write status of some pairs."""
    out: tuple[Evidence, ...] = ()
    for p in found:
        if p.status is not None:
            for number, word in enumerate((p.status.read, p.status.write)):
                out += quote(
                    context.node.nvml, f"DeviceGetP2PStatus({p.a.index}, {p.b.index}, {number})", raw_p2p_code(word)
                )
    return out


def subject_of(found: Sequence[GpuPair]) -> str:
    """Return the pair where there is one, else `node`."""
    return pair(found[0].a, found[0].b) if len(found) == 1 else "node"


def devices_of(found: Sequence[GpuPair]) -> tuple[str, ...]:
    """Return the addresses of the pair where there is one, else none: `Finding.devices` beside `subject_of`."""
    return (found[0].a.address, found[0].b.address) if len(found) == 1 else ()
