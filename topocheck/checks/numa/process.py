"""NUMA: whether this process may run near its GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.affinity import cpus, no_gpu, nodes_untold, nodes_with_cpus, own_gpus
from topocheck.checks.shared.common import listed, named
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.address import format_cpulist
from topocheck.model.base import Evidence, Finding, Missing, Reason, State, known
from topocheck.topology.types import Gpu


class Reach(msgspec.Struct, frozen=True):
    """What of a GPU's near CPUs this process may use."""

    gpu: Gpu
    near: frozenset[int]
    usable: frozenset[int]


def _reach(c: Context) -> list[Reach] | None:
    """Return what each GPU of this process leaves to it; None where the CPUs of the process cannot be determined."""
    own = own_gpus(c)
    if not own:
        raise not_applicable(no_gpu(c))
    if len(nodes_with_cpus(c)) < 2:
        raise not_applicable("one NUMA node: every CPU is as near as the other")
    allowed = cpus(c.node.numa.allowed_cpus)
    near = [(g, found) for g in own if (found := cpus(g.cpu_affinity))]
    if not near:
        raise not_applicable("no GPU reports which CPUs are local to it; see numa.node-missing")
    return None if allowed is None else [Reach(g, found, found & allowed) for g, found in near]


@check(
    "numa.process-far-from-gpus",
    title="This process may not run on the CPUs near its GPUs",
    severity=State.WARN,
    reads=("/proc/self/status Cpus_allowed_list", "NVML DeviceGetCpuAffinity", "/sys/bus/pci/devices/*/local_cpulist"),
    needs=Needs((*GPUS, "numa", "status", "settings", "gpu cpus", "cuda")),
    scope=Scope.PROCESS,
)
def process_far_from_gpus(c: Context) -> Iterator[Finding]:
    """The scheduler, a cgroup or a launcher leaves this process no CPU, or one, near its GPUs.

    Looks at:
        The CPUs of this process against those near each GPU it sees; of a rank (LOCAL_RANK, SLURM_LOCALID), the
        GPU of its number.

    Why it matters:
        Every copy and every launch crosses the link between sockets: lower and unsteady bandwidth.

    Fix:
        Bind ranks to the CPUs of their GPU (`srun --cpu-bind=...`, `mpirun --map-by`, `numactl --cpunodebind=N`).
        `NCCL_IGNORE_CPU_AFFINITY=1` only hides it.

    Does not apply:
        With one NUMA node, or where the process may use every CPU. A process that sees GPUs of several sockets
        and is near some of them gets a note: it may be one rank of several.
    """
    untold = nodes_untold(c, devices=bool(own_gpus(c)))
    if untold is not None:
        yield untold
        return
    found = _reach(c)
    if found is None:
        title = f"the CPUs of this process cannot be determined: {c.node.numa.allowed_cpus}"
        yield Finding(state=State.UNKNOWN, subject="process", title=title)
        return
    far = [r for r in found if not r.usable]
    thin = [r for r in found if len(r.usable) == 1 and len(r.near) > 2]
    for some, word in ((far, "no CPU"), (thin, "one CPU")):
        if not some:
            continue
        every = len(some) == len(found)
        g = some[0]
        node = g.gpu.cpu_node if known(g.gpu.cpu_node) else None
        yield Finding(
            state=State.WARN if every and some is far else State.NOTE,
            subject=listed(named(r.gpu) for r in some) if not every else "process",
            devices=tuple(r.gpu.address for r in some) if not every else (),
            title=f"this process may use {word} near {listed(r.gpu.label for r in some)}: it has "
            f"{c.node.numa.allowed_cpus}, and near {g.gpu.label} are {format_cpulist(g.near)}",
            consequence="copies and launches cross the link between sockets: lower and unsteady bandwidth"
            if some is far
            else "all threads of the process share one CPU near the GPU",
            evidence=(
                Evidence("/proc/self/status Cpus_allowed_list", str(c.node.numa.allowed_cpus)),
                Evidence(f"{g.gpu.address} near CPUs", format_cpulist(g.near)),
            ),
            rule="some CPUs near each GPU of the process",
            fix="bind ranks to the CPUs of their GPU: srun --cpu-bind, mpirun --map-by"
            + (f", numactl --cpunodebind={node}" if node is not None else ""),
        )


@check(
    "numa.memory-nodes-excluded",
    title="This process may not use the memory near its GPUs",
    severity=State.WARN,
    reads=("/proc/self/status Mems_allowed_list", "/sys/devices/system/node/has_memory"),
    needs=Needs((*GPUS, "numa", "status", "settings"), ("node",)),
    scope=Scope.PROCESS,
)
def memory_nodes_excluded(c: Context) -> Iterator[Finding]:
    """The cgroup leaves out the memory of the NUMA node that a GPU of this process is on.

    Looks at:
        The memory nodes of this process against the node of the nearest CPUs of each GPU it sees. A GPU's own
        memory, a node without CPUs on coherent machines, is another thing and not judged.

    Why it matters:
        Pinned buffers lie on the other socket, and every copy crosses over.

    Fix:
        Give the job the node: `--mem-bind` in Slurm, `cpuset.mems` in the cgroup, the topology manager in
        Kubernetes.

    Does not apply:
        With one NUMA node. A note where some GPUs of several have their memory.
    """
    allowed, memory = cpus(c.node.numa.allowed_mems), cpus(c.node.numa.has_memory)
    for what, value in (
        ("NUMA nodes with memory", c.node.numa.has_memory),
        ("memory nodes of this process", c.node.numa.allowed_mems),
    ):
        if isinstance(value, Missing) and value.reason is not Reason.ABSENT:
            raise not_applicable(f"{what} cannot be determined: {value}")
    if allowed is None or memory is None or len(memory) < 2:
        raise not_applicable("one memory node")
    placed = [(g, g.cpu_node) for g in own_gpus(c) if not isinstance(g.cpu_node, Missing)]
    if not placed:
        raise not_applicable("no GPU reports its NUMA node")
    without = [(g, n) for g, n in placed if n in memory and n not in allowed]
    if not without:
        return
    nodes = sorted({n for _, n in without})
    yield Finding(
        state=State.WARN if len(without) == len(placed) else State.NOTE,
        subject="process",
        title=f"this process may use memory of nodes {c.node.numa.allowed_mems} only; "
        f"{listed(g.label for g, _ in without)} {'is' if len(without) == 1 else 'are'} on {listed(map(str, nodes))}",
        consequence="pinned buffers lie on the other socket, and every copy crosses over",
        evidence=(Evidence("/proc/self/status Mems_allowed_list", str(c.node.numa.allowed_mems)),),
        rule="the memory node of each GPU of the process",
        fix="give the job that node: --mem-bind in Slurm, cpuset.mems in the cgroup",
    )
