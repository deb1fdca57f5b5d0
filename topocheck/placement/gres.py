"""Slurm's gres.conf lines for the GPUs of a node (gres.conf(5))."""

from __future__ import annotations

import msgspec

from topocheck.model.base import known
from topocheck.model.names import is_slurm_node
from topocheck.model.node import Node
from topocheck.placement.cores import core_map, cores_of, near_cpus
from topocheck.topology.types import Gpu, Topology


class GresLine(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU.

    Attributes:
        type_: its name in lower case with underscores, as Slurm's NVML plugin writes it.
        file: device file.
        cores: Slurm's abstract core numbers; empty where they cannot be determined.
        links: NVLinks to each GPU of the node in the order of PCI addresses, -1 for itself; empty without NVLinks.
    """

    type_: str
    file: str
    cores: str = ""
    links: tuple[int, ...] = ()
    label: str = ""
    address: str = ""


class Gres(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of a node, and what was left out and why."""

    hostname: str
    lines: tuple[GresLine, ...]
    notes: tuple[str, ...] = ()


def gres(node: Node, topology: Topology) -> Gres:
    """Return the gres.conf lines of a node, in the order of PCI addresses, which is Slurm's own device order.

    Raises:
        ValueError: Slurm can know no node by its host name.
    """
    from topocheck.model.address import address_key

    hostname = node.system.hostname if known(node.system.hostname) else "HOST"
    if not is_slurm_node(hostname):
        raise ValueError(f"{hostname!r:.80} is no host name that Slurm's files can hold")
    notes: list[str] = []
    cores = core_map(node.numa)
    if cores.why_not:
        notes.append(f"Cores left out: {cores.why_not}")
    minors: dict[str, int] = {}
    listed = []
    for g in sorted(topology.gpus, key=lambda g: address_key(g.address)):
        why = _why_not(g)
        minor = _minor(g, node)
        if why is None and minor is None:
            why = "the number of its device file is not known (driver not loaded?)"
        if why is not None or minor is None:
            notes.append(f"{g.label} {g.address} left out: {why}")
            continue
        minors[g.address] = minor
        listed.append(g)
    links = {(p.from_, p.to): p.nvlinks for p in topology.paths}
    addresses = [g.address for g in listed]
    untold = next((p.nvlinks_untold for p in topology.paths if p.nvlinks_untold is not None), None)
    if untold is not None:
        notes.append(f"Links left out: {untold.detail or untold.reason.value}; run it where all GPUs can be seen")
    linked = untold is None and any(links.get((a, b), 0) for a in addresses for b in addresses)
    lines = []
    for g in listed:
        own = cores_of(near_cpus(g, node.numa), cores)
        if own is None and not cores.why_not:
            notes.append(f"Cores of {g.label} left out: the CPUs near it are not known or no whole NUMA nodes")
        row = tuple(-1 if b == g.address else links.get((g.address, b), 0) for b in addresses)
        lines.append(
            GresLine(
                type_=gres_type(g),
                file=f"/dev/nvidia{minors[g.address]}",
                cores=own or "",
                links=row if linked else (),
                label=g.label,
                address=g.address,
            )
        )
    return Gres(hostname=hostname, lines=tuple(lines), notes=tuple(notes))


def gres_type(gpu: Gpu) -> str:
    """Return a GPU's name in lower case, blanks and dashes as underscores; `gpu` where it has none."""
    name = gpu.name if known(gpu.name) else "gpu"
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name.lower()).strip("_") or "gpu"


def _why_not(g: Gpu) -> str | None:
    """Return why Slurm cannot be given a GPU by one device file; None where it can."""
    if not g.on_bus or (g.nvml is not None and g.nvml.lost):
        return "it is lost"
    if g.nvml is not None and g.nvml.mig_current is True:
        return "MIG is on; use AutoDetect=nvml or MultipleFiles for its slices"
    return None


def _minor(g: Gpu, node: Node) -> int | None:
    if g.nvml is not None and known(g.nvml.minor):
        return g.nvml.minor
    return node.system.nvidia_gpu_minors.get(g.address)
