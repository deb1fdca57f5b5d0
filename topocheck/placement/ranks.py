"""Who runs where, and what is wrong in it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from topocheck.model.address import address_key, format_cpulist
from topocheck.model.base import known, small_number
from topocheck.model.node import Node
from topocheck.placement.cores import cpus_of, near_cpus
from topocheck.placement.plan import usable
from topocheck.topology.types import Gpu, Topology

RANK_VARIABLES = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""(launcher, rank, world size, local rank, local size). torchrun comes first, since srun may start it."""


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One rank as it found itself. None stands for what nothing tells.

    Attributes:
        node: name of the node (SLURMD_NODENAME, else the host name).
        gpu: PCI address of the GPU it works with; gpu_label, gpu_node its label and CPU NUMA node.
        cpus: kernel list of the CPUs it may use; numa_nodes those CPUs' nodes.
        near: kernel list of the CPUs near its GPU.
        nics: labels of the NICs nearest to its GPU; rails their positions on the node.
        why_no_gpu: why the GPU is not known.
    """

    launcher: str = ""
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    node: str = ""
    gpu: str | None = None
    gpu_label: str = ""
    gpu_node: int | None = None
    cpus: str = ""
    numa_nodes: tuple[int, ...] = ()
    near: str = ""
    nics: tuple[str, ...] = ()
    rails: tuple[int, ...] = ()
    node_cpus: str = ""
    gpus_on_node: int = 0
    why_no_gpu: str = ""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something wrong in the placement. `state` is warn or note; `binding` tells that another binding mends it."""

    state: str
    ranks: tuple[int, ...]
    text: str
    fix: str = ""
    binding: bool = False


def rank_place(node: Node, topology: Topology) -> RankPlace:
    """Return where the process that recorded these facts runs, from its rank variables, affinity and devices."""
    told = {s.name: s.value for s in node.settings.neighbours}
    launcher, rank, size, local = "", None, None, None
    for name, *variables in RANK_VARIABLES:
        values = [_number(told.get(v, "")) for v in variables[:3]]
        if values[0] is not None and (values[1] is not None or name == "srun"):
            launcher, (rank, size, local) = name, values
            break
    gpu, why = _own_gpu(node, topology, told, local)
    near = near_cpus(gpu, node.numa) if gpu is not None else frozenset()
    allowed = cpus_of(node.numa.allowed_cpus)
    nodes = node.numa.nodes if known(node.numa.nodes) else ()
    places = {n.address: i for i, n in enumerate(sorted(topology.nics, key=lambda n: address_key(n.address)))}
    labels = {n.address: n.label for n in topology.nics}
    nearest = next((x.nics for x in topology.nearest_nics if gpu is not None and x.gpu == gpu.address), ())
    hostname = node.system.hostname if known(node.system.hostname) else ""
    return RankPlace(
        launcher=launcher,
        rank=rank,
        world_size=size,
        local_rank=local,
        node=told.get("SLURMD_NODENAME") or hostname,
        gpu=gpu.address if gpu else None,
        gpu_label=gpu.label if gpu else "",
        gpu_node=gpu.cpu_node if gpu is not None and known(gpu.cpu_node) else None,
        cpus=format_cpulist(allowed),
        numa_nodes=tuple(n.node for n in nodes if cpus_of(n.cpulist) & allowed),
        near=format_cpulist(near),
        nics=tuple(labels[a] for a in nearest if a in labels),
        rails=tuple(places[a] for a in nearest if a in places),
        node_cpus=format_cpulist(cpus_of(node.numa.online_cpus)),
        gpus_on_node=len(usable(topology)),
        why_no_gpu=why,
    )


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _own_gpu(node: Node, topology: Topology, told: Mapping[str, str], local: int | None) -> tuple[Gpu | None, str]:
    """Return the GPU of this process: the one it sees, of several that of its local rank, as frameworks choose."""
    seen = _visible(node, topology, told)
    if not seen:
        return None, "this process sees no GPU"
    if len(seen) == 1:
        return seen[0], ""
    if local is None:
        return None, f"this process sees {len(seen)} GPUs and is no rank"
    if local >= len(seen):
        return None, f"local rank {local} of {len(seen)} visible GPUs"
    return seen[local], ""


def _visible(node: Node, topology: Topology, told: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs of this process in CUDA's order: by the CUDA driver, else by CUDA_VISIBLE_DEVICES, else all."""
    gpus = list(usable(topology))
    by_address = {g.address: g for g in gpus}
    devices = node.cuda.devices
    if known(devices) and devices:
        return [by_address[a] for d in devices if isinstance(a := d.address, str) and a in by_address]
    words = told.get("CUDA_VISIBLE_DEVICES")
    if words is None:
        return gpus
    out: list[Gpu] = []
    for word in (w.strip() for w in words.split(",")):
        index = small_number(word)
        if index is not None and index < len(gpus):
            out.append(gpus[index])
        else:
            found = [g for g in gpus if word and isinstance(g.uuid, str) and g.uuid.startswith(word)]
            if len(found) != 1:
                break  # CUDA ends at the first word that names no device
            out.append(found[0])
    return out


def problems(ranks: Sequence[RankPlace], *, suggested: bool = True) -> tuple[Problem, ...]:
    """Return what is wrong in the placement of a job: shared GPUs, far CPUs, unbound ranks, crossed rails.

    Args:
        ranks: each as it found itself.
        suggested: whether a plan with bindings stands below them; the advice points to it.
    """
    found = (*_shared_gpus(ranks), *_far(ranks), *_crowded(ranks), *_unbound(ranks), *_crossed(ranks), *_untold(ranks))
    if not suggested:
        return found
    return tuple(msgspec.structs.replace(p, fix=f"{p.fix}, as suggested below") if p.binding else p for p in found)


def _ids(ranks: Iterable[RankPlace]) -> tuple[int, ...]:
    return tuple(sorted(r.rank for r in ranks if r.rank is not None))


def _shared_gpus(ranks: Sequence[RankPlace]) -> Iterable[Problem]:
    by_gpu: dict[tuple[str, str], list[RankPlace]] = defaultdict(list)
    for r in ranks:
        if r.gpu is not None:
            by_gpu[r.node, r.gpu].append(r)
    for (node, gpu), sharing in sorted(by_gpu.items()):
        if len(sharing) > 1:
            yield Problem(
                state="warn",
                ranks=_ids(sharing),
                text=f"{len(sharing)} ranks on {sharing[0].gpu_label} {gpu} of {node}: NCCL refuses two on one GPU",
                fix="let each process take the GPU of its local rank (torch.cuda.set_device(local_rank))",
            )


def _far(ranks: Sequence[RankPlace]) -> Iterable[Problem]:
    for r in ranks:
        near, allowed = cpus_of(r.near), cpus_of(r.cpus)
        if near and allowed and not near & allowed:
            nodes = ", ".join(map(str, r.numa_nodes)) or "?"
            yield Problem(
                state="warn",
                ranks=_ids([r]),
                text=f"runs on CPUs {r.cpus} (NUMA node {nodes}) of {r.node}; its {r.gpu_label} is near CPUs {r.near}",
                fix="bind it near its GPU",
                binding=True,
            )


def _crowded(ranks: Sequence[RankPlace]) -> Iterable[Problem]:
    """Ranks bound to the very same few CPUs, as a launcher does that binds all to the first core."""
    by_cpus: dict[tuple[str, str], list[RankPlace]] = defaultdict(list)
    for r in ranks:
        if r.cpus and len(cpus_of(r.cpus)) < len(cpus_of(r.near) or cpus_of(r.node_cpus)):
            by_cpus[r.node, r.cpus].append(r)
    for (node, cpus), together in sorted(by_cpus.items()):
        if len(together) > len(cpus_of(cpus)):
            yield Problem(
                state="warn",
                ranks=_ids(together),
                text=f"{len(together)} ranks share CPUs {cpus} of {node}",
                fix="bind each to CPUs of its own",
                binding=True,
            )


def _unbound(ranks: Sequence[RankPlace]) -> Iterable[Problem]:
    loose = [r for r in ranks if (n := cpus_of(r.near)) and cpus_of(r.cpus) > n]
    if loose:
        yield Problem(
            state="note",
            ranks=_ids(loose),
            text="may run on CPUs far from the GPU as well as near ones: the kernel chooses",
            fix="bind each to the CPUs near its GPU",
            binding=True,
        )


def _crossed(ranks: Sequence[RankPlace]) -> Iterable[Problem]:
    """Ranks of one local rank whose nearest NICs sit at different places on their nodes."""
    by_local: dict[int, list[RankPlace]] = defaultdict(list)
    for r in ranks:
        if r.local_rank is not None and r.rails:
            by_local[r.local_rank].append(r)
    for local, same in sorted(by_local.items()):
        usual, n = Counter(r.rails for r in same).most_common(1)[0]
        crossed = [r for r in same if not set(r.rails) & set(usual)]
        if crossed and n > len(crossed):
            labels = sorted({x for r in same if r.rails == usual for x in r.nics})
            yield Problem(
                state="warn",
                ranks=_ids(crossed),
                # More than the crossed ones, so two or more.
                text=f"local rank {local} sits on another rail than on {n} other nodes ({', '.join(labels)} there)",
                fix="one order of GPUs on all nodes: CUDA_DEVICE_ORDER=PCI_BUS_ID, CUDA_VISIBLE_DEVICES in order",
            )


def _untold(ranks: Sequence[RankPlace]) -> Iterable[Problem]:
    by_why: dict[str, list[RankPlace]] = defaultdict(list)
    for r in ranks:
        if r.gpu is None and r.gpus_on_node:
            by_why[r.why_no_gpu].append(r)
    for why, some in sorted(by_why.items()):
        yield Problem(state="note", ranks=_ids(some), text=f"its GPU is not known: {why}")
