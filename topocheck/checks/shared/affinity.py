"""CPUs and NUMA nodes of this process, and the GPUs it works with."""

from __future__ import annotations

from topocheck.checks.registry import Context, not_applicable
from topocheck.checks.shared.common import living
from topocheck.model.address import parse_cpulist
from topocheck.model.base import Evidence, Finding, Missing, Reason, State, known, small_number
from topocheck.topology.types import Gpu


def cpus(text: object) -> frozenset[int] | None:
    """Return a kernel list as numbers; None where it is missing or of another form."""
    if not isinstance(text, str):
        return None
    try:
        return parse_cpulist(text)
    except ValueError:
        return None


def visible(c: Context) -> list[Gpu]:
    """Return the GPUs that this process sees: those CUDA shows, in its order, else all that live in NVML's."""
    gpus = living(c)
    devices = c.node.cuda.devices
    by_address = {g.address: g for g in gpus}
    order = sorted(devices, key=lambda d: d.ordinal) if known(devices) else []
    return [by_address[d.address] for d in order if known(d.address) and d.address in by_address] or gpus


def own_gpus(c: Context) -> list[Gpu]:
    """Return the GPUs this process works with: the one of its local rank where it is a rank, else all visible."""
    gpus = visible(c)
    ranks = {s.name: s.value for s in c.node.settings.related}
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"):
        rank = small_number(ranks.get(name, ""))
        if rank is not None and rank < len(gpus) and len(gpus) > 1:
            return [gpus[rank]]
    return gpus


def nodes_with_cpus(c: Context) -> list[int]:
    """Return the numbers of the NUMA nodes that have CPUs."""
    nodes = c.node.numa.nodes
    return [n.node for n in nodes if cpus(n.cpulist)] if known(nodes) else []


def no_gpu(c: Context) -> str:
    """Return why there is no GPU to judge: there is none, or nobody could look."""
    devices = c.node.pci.devices
    return f"GPUs cannot be determined: {devices}" if isinstance(devices, Missing) else "no NVIDIA GPU"


def nodes_untold(c: Context, *, devices: bool) -> Finding | None:
    """Return the finding where the NUMA nodes cannot be determined; None where they are known.

    Raises:
        NotApplicableError: the kernel has none, or none of the devices that the check is about is here either.
    """
    nodes = c.node.numa.nodes
    if known(nodes):
        return None
    if nodes.reason is Reason.ABSENT:
        raise not_applicable("the kernel shows no NUMA nodes")
    title = f"NUMA nodes cannot be determined: {nodes}"
    if not devices:
        raise not_applicable(title)
    evidence = (Evidence("/sys/devices/system/node", str(nodes)),)
    return Finding(state=State.UNKNOWN, subject="node", title=title, evidence=evidence)
