"""NUMA: how the machine is cut into nodes, and how GPUs lie on them."""

from __future__ import annotations

from collections.abc import Iterator

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.affinity import cpus, no_gpu, nodes_untold, visible
from topocheck.checks.shared.common import listed, living
from topocheck.checks.sources import Needs
from topocheck.model.base import Evidence, Finding, Missing, State, known
from topocheck.topology.types import Gpu


def _socket_of(c: Context, g: Gpu) -> str | None:
    """Return the socket whose CPUs are near a GPU."""
    near = cpus(g.cpu_affinity)
    if not near:
        return None
    return next((k for k, v in c.node.numa.cpu_packages.items() if near & (cpus(v) or frozenset())), None)


@check(
    "numa.gpus-over-sockets",
    title="The GPUs of this job are spread over sockets",
    severity=State.NOTE,
    reads=("CUDA devices", "NVML DeviceGetCpuAffinity", "/sys/devices/system/cpu/*/topology"),
    scope=Scope.PROCESS,
)
def gpus_over_sockets(c: Context) -> Iterator[Finding]:
    """This process sees some of the machine's GPUs, on several sockets, and one socket would hold as many.

    Looks at:
        The GPUs that CUDA shows to this process, and the socket near each.

    Why it matters:
        Without NVLink their traffic crosses the link between sockets, though it need not.

    Fix:
        Ask the scheduler for GPUs of one socket (`--gres-flags=enforce-binding` in Slurm, the topology manager
        in Kubernetes).

    Does not apply:
        Where the process sees every GPU, or NVLink joins those it sees.
    """
    seen = visible(c)
    every = living(c)
    if not every:
        raise not_applicable(no_gpu(c))
    if not known(c.node.cuda.devices):
        raise not_applicable(f"which GPUs this process sees cannot be determined: CUDA devices {c.node.cuda.devices}")
    if len(seen) < 2 or len(seen) >= len(every):
        raise not_applicable("the process sees every GPU, one, or none")
    joined = {(p.from_, p.to) for p in c.topology.paths if p.nvlinks}
    if all((a.address, b.address) in joined for a in seen for b in seen if a is not b):
        return
    sockets: dict[str, list[Gpu]] = {}
    for g in every:
        socket = _socket_of(c, g)
        if socket is not None:
            sockets.setdefault(socket, []).append(g)
    mine = {k: [g for g in v if g in seen] for k, v in sockets.items()}
    used = {k: v for k, v in mine.items() if v}
    if len(used) < 2 or max(len(v) for v in sockets.values()) < len(seen):
        return
    yield Finding(
        state=State.NOTE,
        subject="process",
        title="; ".join(f"socket {k}: {listed(g.label for g in v)}" for k, v in used.items())
        + f"; one socket has {max(len(v) for v in sockets.values())} GPUs",
        consequence="their traffic crosses the link between sockets, though it need not",
        evidence=tuple(Evidence(f"{v[0].address} near CPUs", str(v[0].cpu_affinity)) for v in used.values()),
        rule="the GPUs of one job are on one socket, where one has enough",
        fix="ask the scheduler for GPUs of one socket: --gres-flags=enforce-binding in Slurm",
    )


@check(
    "numa.nps",
    title="The sockets are cut into several NUMA nodes",
    severity=State.NOTE,
    reads=("/sys/devices/system/node", "/sys/devices/system/cpu/*/topology"),
    needs=Needs(("numa",)),
)
def nps(c: Context) -> Iterator[Finding]:
    """A socket holds several NUMA nodes with CPUs: NPS on AMD, sub-NUMA clustering on Intel.

    Looks at:
        The number of nodes with CPUs against the number of sockets.

    Why it matters:
        Nothing is wrong. Each GPU is then near a part of its socket's CPUs only, and a process bound to another
        part pays a little; memory of one node is smaller.

    Fix:
        None is needed. Vendors advise one node per socket (NPS1) for most GPU servers; it is a firmware setting.

    Does not apply:
        With one node per socket. Nodes without CPUs (GPU memory, CXL) do not count.
    """
    nodes, sockets = c.node.numa.nodes, c.node.numa.sockets
    untold = nodes_untold(c, devices=bool(living(c)))
    if untold is not None:
        yield untold
        return
    if isinstance(nodes, Missing) or isinstance(sockets, Missing):
        raise not_applicable(f"the number of sockets cannot be determined: {sockets}")
    with_cpus = [n for n in nodes if cpus(n.cpulist)]
    if not living(c):
        raise not_applicable(no_gpu(c))
    if len(with_cpus) <= sockets:
        return
    yield Finding(
        state=State.NOTE,
        subject="node",
        title=f"{len(with_cpus)} NUMA nodes with CPUs on {sockets} socket{'s' if sockets > 1 else ''}",
        consequence="each GPU is local to a part of its socket only; bind to the NUMA node, not to the socket",
        evidence=tuple(e for n in with_cpus[:4] for e in n.evidence("cpulist")),
        rule="one node per socket",
        fix="none is needed; the firmware setting is NPS (AMD) or SNC (Intel), and a change needs a reboot",
    )


@check(
    "numa.balancing",
    title="Automatic NUMA balancing is on while GPU memory is a NUMA node",
    severity=State.NOTE,
    reads=("/proc/sys/kernel/numa_balancing", "NVML DeviceGetNumaNodeId"),
)
def balancing(c: Context) -> Iterator[Finding]:
    """The kernel moves pages between NUMA nodes by itself, on a machine where GPU memory is one of them.

    Looks at:
        /proc/sys/kernel/numa_balancing, and whether a GPU's memory is a node (Grace, POWER9). Rule: NVIDIA's tuning
        guide for Grace.

    Why it matters:
        The faults it makes to see who uses a page cost GPU jobs much, and pages may move back and forth.

    Fix:
        `sysctl kernel.numa_balancing=0`, as root; a file in /etc/sysctl.d keeps it.

    Does not apply:
        Where no GPU's memory is a NUMA node.
    """
    nodes = [g for g in living(c) if known(g.memory_node)]
    if not living(c):
        raise not_applicable(no_gpu(c))
    if not nodes:
        raise not_applicable("no GPU's memory is a NUMA node")
    on = c.node.system.numa_balancing
    if on is not True:
        return
    yield Finding(
        state=State.NOTE,
        subject="node",
        title=f"automatic NUMA balancing is on, and the memory of {listed(g.label for g in nodes)} is a NUMA node",
        consequence="page faults to find out who uses a page slow GPU jobs down",
        evidence=c.node.system.evidence("/proc/sys/kernel/numa_balancing")
        or (Evidence("/proc/sys/kernel/numa_balancing", "1"),),
        rule="off where GPU memory is a NUMA node",
        fix="sysctl kernel.numa_balancing=0 (as root; until the next boot, unless in /etc/sysctl.d)",
    )
