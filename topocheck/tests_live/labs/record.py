"""The experiment record: what each node of a job is, from its own facts."""

from __future__ import annotations

from collections import Counter

import msgspec

from topocheck.model.base import Missing, known
from topocheck.model.lab import JobRecord, NodeRecord
from topocheck.model.node import Node
from topocheck.tests_live.launch.exchange import gather
from topocheck.tests_live.launch.rendezvous import Rendezvous
from topocheck.tests_live.launch.words import InvalidWordError, read
from topocheck.tests_live.training.report_types import JobLayout
from topocheck.topology.types import Nic, Topology

PROBES = ("pci", "numa", "system", "settings", "nvml", "net", "software", "programs")
"""The probes that a record needs."""
MOST = 500
"""Characters of one text."""


def node_record(node: Node, topology: Topology, name: str = "", cpus: int = 0) -> NodeRecord:
    """Return what a node is. `name` is its key in the job, `cpus` how many this process may use."""
    system, versions = node.system, node.software.versions
    vendor = " ".join(x for x in (system.dmi_vendor, system.dmi_product) if isinstance(x, str))
    if isinstance(system.hypervisor, str):
        kind = "virtual machine" if system.hypervisor == "unknown" else f"{system.hypervisor} guest"
        vendor = f"{vendor} ({kind})" if vendor else kind
    settings = [f"{s.name}={s.value}" for s in node.settings.nccl if s.in_force]
    hostname = _text(system.hostname)
    return NodeRecord(
        node=name or hostname,
        server=vendor[:MOST],
        cpu=_text(system.cpu_model_name),
        cpus=cpus,
        gpus=_counted(_text(g.name) or f"{g.vendor} GPU" for g in topology.gpus),
        gpu_connection=_connection(topology),
        nics=_counted(map(_nic, topology.nics)) or _interfaces(node),
        os=_text(system.os_name),
        kernel=_text(system.kernel_release),
        driver=_text(node.nvml.driver_version),
        cuda=_text(node.nvml.cuda_version),
        nccl=versions.get("nccl", versions.get("nccl_system", ""))[:MOST],
        framework=f"torch {versions['torch']}"[:MOST] if "torch" in versions else "",
        mpi=" ".join(x for x in (node.software.mpi_implementation, versions.get("mpi")) if isinstance(x, str))[:MOST],
        python=versions.get("python", "")[:MOST],
        settings=" ".join(settings)[:MOST],
    )


def _text(value: object) -> str:
    return value[:MOST] if isinstance(value, str) else ""


def _counted(names: object) -> str:
    counts = Counter(names)  # type: ignore[call-overload]
    return ", ".join(f"{n} x {name}" for name, n in counts.items())[:MOST]


def _nic(nic: Nic) -> str:
    rdma = nic.rdma
    model = _text(rdma.hca_type) if rdma is not None else ""
    rates = {p.rate_gbit_s for p in rdma.ports if known(p.rate_gbit_s)} if rdma is not None else set()
    rate = "/".join(f"{r:g}" for r in sorted(x for x in rates if isinstance(x, float)))
    return (model or nic.label) + (f" ({rate} Gb/s)" if rate else "")


def _interfaces(node: Node) -> str:
    """Return the Ethernet interfaces of a node without RDMA devices."""
    found = node.net.interfaces
    if isinstance(found, Missing):
        return ""
    real = [i for i in found if i.is_virtual is not True and i.name != "lo"]
    return _counted(
        (_text(i.driver) or i.name) + (f" ({i.speed_mbit_s / 1000:g} Gb/s)" if isinstance(i.speed_mbit_s, int) else "")
        for i in real
    )


def _connection(topology: Topology) -> str:
    """Return the path classes of the pairs of GPUs, each pair once: `NV18 (28 of 28 pairs)`."""
    gpus = [g.address for g in topology.gpus]
    pairs = [topology.find_path(a, b) for i, a in enumerate(gpus) for b in gpus[i + 1 :]]
    kinds = Counter("?" if p is None or isinstance(p.class_, Missing) else p.class_ for p in pairs)
    return ", ".join(f"{kind} ({n} of {len(pairs)} pairs)" for kind, n in kinds.most_common())[:MOST]


def job_record(job: JobLayout, mine: NodeRecord, meeting: Rendezvous | None, deadline_s: float) -> JobRecord:
    """Return the record of all nodes on rank 0; on the other ranks of their own node alone.

    Raises:
        LaunchError: rank 0 was lost.
    """
    alone = JobRecord(ranks=job.ranks, servers=job.nodes, launcher=job.launcher, nodes=(mine,))
    if meeting is None:
        return alone
    got = gather(meeting.scoped("record"), msgspec.msgpack.encode(mine), deadline_s)
    if got is None:
        return alone
    nodes: dict[str, NodeRecord] = {}
    missing = {f"rank {rank}": why for rank, why in got.missing.items()}
    for rank, text in sorted(got.payloads.items()):
        try:
            record = read(text, NodeRecord, meeting.name(rank))
        except InvalidWordError as e:
            missing[f"rank {rank}"] = str(e)
        else:
            nodes.setdefault(record.node, record)
    return msgspec.structs.replace(alone, nodes=tuple(nodes.values()), missing=missing)
