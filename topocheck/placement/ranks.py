"""Who runs where, and what is wrong in it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

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
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""(launcher, rank, world size, local rank, local size). torchrun comes first, since srun may start it."""


# One rank's place comes from another process: what is decoded is of a size and range that a machine can have.
_Name = Annotated[str, msgspec.Meta(max_length=512)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]
_Number = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 20)]
_Cpus = Annotated[str, msgspec.Meta(max_length=1 << 14, pattern=r"\A[0-9,-]*\Z")]


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One rank as it found itself. None stands for what nothing tells.

    Attributes:
        local_world_size: ranks on its node, as the launcher says.
        node: name of the node (SLURMD_NODENAME, else the host name).
        gpu: PCI address of the GPU it works with; gpu_label, gpu_node its label and CPU NUMA node.
        cpus: kernel list of the CPUs it may use; numa_nodes those CPUs' nodes.
        local_cpus: kernel list of the CPUs near its GPU.
        nics: labels of the NICs nearest to its GPU; rails their positions on the node.
        gpu_missing_reason: why the GPU is not known.
    """

    launcher: _Name = ""
    rank: _Count | None = None
    world_size: _Count | None = None
    local_rank: _Count | None = None
    local_world_size: _Count | None = None
    node: _Name = ""
    gpu: _Name | None = None
    gpu_label: _Name = ""
    gpu_node: _Number | None = None
    cpus: _Cpus = ""
    numa_nodes: Annotated[tuple[_Number, ...], msgspec.Meta(max_length=4096)] = ()
    local_cpus: _Cpus = ""
    nics: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=4096)] = ()
    rails: Annotated[tuple[_Number, ...], msgspec.Meta(max_length=4096)] = ()
    node_cpus: _Cpus = ""
    gpus_on_node: _Count = 0
    gpu_missing_reason: Annotated[str, msgspec.Meta(max_length=2000)] = ""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something wrong in the placement. `state` is warn or note; `binding` tells that another binding fixes it."""

    state: str
    ranks: tuple[int, ...]
    text: str
    fix: str = ""
    binding: bool = False


def rank_place(node: Node, topology: Topology) -> RankPlace:
    """Return where the process that recorded these facts runs, from its rank variables, affinity and devices."""
    told = {s.name: s.value for s in node.settings.related}
    launcher, rank, size, local, beside = "", None, None, None, None
    for name, *variables in RANK_VARIABLES:
        values = [_number(told.get(v, "")) for v in variables[:3]]
        if values[0] is not None and (values[1] is not None or name == "srun"):
            launcher, (rank, size, local) = name, values
            beside = _tasks_per_node(told.get(variables[3], ""))
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
        local_world_size=beside,
        node=told.get("SLURMD_NODENAME") or hostname,
        gpu=gpu.address if gpu else None,
        gpu_label=gpu.label if gpu else "",
        gpu_node=gpu.cpu_node if gpu is not None and known(gpu.cpu_node) else None,
        cpus=format_cpulist(allowed),
        numa_nodes=tuple(n.node for n in nodes if cpus_of(n.cpulist) & allowed),
        local_cpus=format_cpulist(near),
        nics=tuple(labels[a] for a in nearest if a in labels),
        rails=tuple(places[a] for a in nearest if a in places),
        node_cpus=format_cpulist(cpus_of(node.numa.online_cpus)),
        gpus_on_node=len(usable(topology)),
        gpu_missing_reason=why,
    )


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _tasks_per_node(text: str) -> int | None:
    """Return the ranks of a node from `8`, or from Slurm's `8(x2)` where all nodes have as many (sbatch(1))."""
    found = re.fullmatch(r"([0-9]{1,6})(\(x[0-9]{1,6}\))?", text)
    return int(found[1]) if found else None


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
    """Return what is wrong in the placement of a job: ranks that are missing or do not agree, GPUs, CPUs, rails.

    Args:
        ranks: each as it found itself.
        suggested: whether a plan with bindings stands below them; the advice points to it.
    """
    found = (
        *_missing(ranks), *_sizes(ranks), *_local_sizes(ranks), *_repeated(ranks), *_shared_gpus(ranks), *_far(ranks),
        *_crowded(ranks), *_unbound(ranks), *_crossed(ranks), *_untold(ranks),
    )  # fmt: skip
    if not suggested:
        return found
    return tuple(msgspec.structs.replace(p, fix=f"{p.fix}, as suggested below") if p.binding else p for p in found)


def _ids(ranks: Iterable[RankPlace]) -> tuple[int, ...]:
    return tuple(sorted(r.rank for r in ranks if r.rank is not None))


def _missing(ranks: Sequence[RankPlace]) -> Iterable[Problem]:
    """Ranks that the world size promises and that are not there; of one recording there is nothing to compare."""
    there = {r.rank for r in ranks if r.rank is not None}
    size = max((r.world_size or 0 for r in ranks), default=0)
    absent = tuple(n for n in range(size) if n not in there)
    if absent and len(there) > 1:
        yield Problem(
            state="warn",
            ranks=absent,
            text=f"not there: {len(there)} of {size} ranks are known",
            fix="start or record every rank of the job; a job waits for the missing ones and hangs",
        )


def _sizes(ranks: Sequence[RankPlace]) -> Iterable[Problem]:
    by_size: dict[int, list[RankPlace]] = defaultdict(list)
    for r in ranks:
        if r.world_size is not None:
            by_size[r.world_size].append(r)
    if len(by_size) > 1:
        told = "; ".join(
            f"{size} by rank{'s' if len(some) > 1 else ''} {format_cpulist(_ids(some))}"
            for size, some in sorted(by_size.items(), key=lambda item: (-len(item[1]), item[0]))
        )
        yield Problem(
            state="warn",
            ranks=_ids(r for some in sorted(by_size.values(), key=len)[:-1] for r in some),
            text=f"world sizes differ: {told}",
            fix="these are ranks of several jobs, or of one started with different sizes: init would hang",
        )


def _local_sizes(ranks: Sequence[RankPlace]) -> Iterable[Problem]:
    """Ranks of one node whose launcher says different local world sizes."""
    by_node: dict[str, list[RankPlace]] = defaultdict(list)
    for r in ranks:
        if r.local_world_size is not None and r.rank is not None:
            by_node[r.node].append(r)
    for node, some in sorted(by_node.items()):
        sizes = sorted({r.local_world_size or 0 for r in some})
        if len(sizes) > 1:
            yield Problem(
                state="warn",
                ranks=_ids(some),
                text=f"local world sizes differ on {node}: {', '.join(map(str, sizes))}",
                fix="start all ranks of a node by one launcher: frameworks divide CPUs and GPUs by that number",
            )


def _repeated(ranks: Sequence[RankPlace]) -> Iterable[Problem]:
    """Local ranks that several ranks of one node have: each takes the GPU of its local rank."""
    by_local: dict[tuple[str, int], list[RankPlace]] = defaultdict(list)
    for r in ranks:
        if r.local_rank is not None and r.rank is not None:
            by_local[r.node, r.local_rank].append(r)
    for (node, local), same in sorted(by_local.items()):
        if len(same) > 1:
            yield Problem(
                state="warn",
                ranks=_ids(same),
                text=f"all have local rank {local} on {node}, so all use the same GPU",
                fix="start one launcher on each node (one torchrun agent), or set LOCAL_RANK for each process",
            )


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
                fix="let each process use the GPU of its local rank (torch.cuda.set_device(local_rank))",
            )


def _far(ranks: Sequence[RankPlace]) -> Iterable[Problem]:
    for r in ranks:
        near, allowed = cpus_of(r.local_cpus), cpus_of(r.cpus)
        if near and allowed and not near & allowed:
            nodes = ", ".join(map(str, r.numa_nodes)) or "?"
            yield Problem(
                state="warn",
                ranks=_ids([r]),
                text=f"runs on CPUs {r.cpus} (NUMA node {nodes}) of {r.node}; "
                f"its {r.gpu_label} is near CPUs {r.local_cpus}",
                fix="bind it near its GPU",
                binding=True,
            )


def _crowded(ranks: Sequence[RankPlace]) -> Iterable[Problem]:
    """Ranks bound to the very same few CPUs, as a launcher does that binds all to the first core."""
    by_cpus: dict[tuple[str, str], list[RankPlace]] = defaultdict(list)
    for r in ranks:
        if r.cpus and len(cpus_of(r.cpus)) < len(cpus_of(r.local_cpus) or cpus_of(r.node_cpus)):
            by_cpus[r.node, r.cpus].append(r)
    for (node, cpus), together in sorted(by_cpus.items()):
        if len(together) > len(cpus_of(cpus)):
            yield Problem(
                state="warn",
                ranks=_ids(together),
                text=f"{len(together)} ranks share CPUs {cpus} of {node}",
                fix="bind each to its own CPUs",
                binding=True,
            )


def _unbound(ranks: Sequence[RankPlace]) -> Iterable[Problem]:
    loose = [r for r in ranks if (n := cpus_of(r.local_cpus)) and cpus_of(r.cpus) > n]
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
            by_why[r.gpu_missing_reason].append(r)
    for why, some in sorted(by_why.items()):
        yield Problem(state="note", ranks=_ids(some), text=f"its GPU is not known: {why}")
