"""A plan of ranks as options of the launchers."""

from __future__ import annotations

from topocheck.model.names import is_host_name
from topocheck.placement.cores import cpus_of
from topocheck.placement.plan import Plan

LAUNCHERS = ("srun", "mpirun", "torchrun")


def options(plan: Plan, launcher: str, nodes: int = 1) -> tuple[str, ...]:
    """Return lines to type: the launcher with its binding of the plan; a line that begins with `#` explains.

    Args:
        plan: of one node; all nodes of the job are taken to be of its kind.
        launcher: srun, mpirun or torchrun.
        nodes: number of nodes.
    """
    if not plan.bindings:
        return ()
    return {"srun": _srun, "mpirun": _mpirun, "torchrun": _torchrun}[launcher](plan, nodes)


def cpu_mask(cpus: str) -> str:
    """Return a kernel list as the hexadecimal mask of `srun --cpu-bind=mask_cpu`."""
    return hex(sum(1 << c for c in cpus_of(cpus)))


def _bound(plan: Plan) -> bool:
    return all(b.cpus for b in plan.bindings)


def _srun(plan: Plan, nodes: int) -> tuple[str, ...]:
    n = len(plan.bindings)
    gpus = len({b.gpu for b in plan.bindings})
    words = [f"srun -N {nodes} --ntasks-per-node={n} --gpus-per-node={gpus} --exclusive", "--distribution=block"]
    # Each task sees all GPUs of the node and takes the one of its local rank: peers stay visible to NCCL.
    words.append("--gpu-bind=none")
    if _bound(plan):
        words.append("--cpu-bind=mask_cpu:" + ",".join(cpu_mask(b.cpus) for b in plan.bindings))
        words.append("--mem-bind=local")
    words.append("COMMAND")
    needs = "# mask_cpu needs the whole node and TaskPlugin=task/affinity; SLURM_LOCALID is the local rank."
    return (needs, "export CUDA_DEVICE_ORDER=PCI_BUS_ID", " ".join(words))


def _mpirun(plan: Plan, nodes: int) -> tuple[str, ...]:
    n = len(plan.bindings)
    rankfile = all(b.slot for b in plan.bindings)
    if not rankfile:
        how = f"mpirun -np {n * nodes} --map-by ppr:{n}:node --bind-to none"
        return (
            "# cores cannot be numbered from these facts; bind with `topocheck emit numactl` instead",
            f"{how} -x CUDA_DEVICE_ORDER=PCI_BUS_ID ./numactl.sh COMMAND",
        )
    return (
        "# Open MPI: topocheck emit rankfile --nodes HOST,... -o ranks.txt",
        f"mpirun -np {n * nodes} --rankfile ranks.txt -x CUDA_DEVICE_ORDER=PCI_BUS_ID COMMAND",
    )


def _torchrun(plan: Plan, nodes: int) -> tuple[str, ...]:
    n = len(plan.bindings)
    head = f"torchrun --nnodes={nodes} --nproc-per-node={n}"
    if nodes > 1:
        head += " --rdzv-backend=c10d --rdzv-endpoint=HOST:29500"
    return (
        "# torchrun binds nothing by itself: topocheck emit numactl -o numactl.sh && chmod +x numactl.sh",
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        f"{head} --no-python ./numactl.sh python SCRIPT",
        f"# or, where `torchrun --help` lists it: {head} --numa-binding=node SCRIPT",
    )


def rankfile_lines(plan: Plan, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines of an Open MPI rankfile: rank k*n+i is local rank i of the k-th host, in logical cores.

    Raises:
        ValueError: the cores of a rank cannot be numbered from the facts, or a rankfile cannot hold a host's name.
    """
    bad = next((h for h in hosts if not is_host_name(h)), None)
    if bad is not None:
        raise ValueError(f"{bad!r:.80} is no host name that a rankfile can hold; name the hosts with --nodes")
    loose = [b for b in plan.bindings if not b.slot]
    if loose:
        who = f"local rank {loose[0].local_rank} ({loose[0].gpu_label})"
        raise ValueError(f"{who}: the cores near its GPU cannot be numbered; use `topocheck emit numactl`")
    n = len(plan.bindings)
    return tuple(
        f"rank {k * n + b.local_rank}={host} slot={b.slot}" for k, host in enumerate(hosts) for b in plan.bindings
    )
