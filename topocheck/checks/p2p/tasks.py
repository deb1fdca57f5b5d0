"""Tasks of one job on one node that cannot open each other's GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topocheck.checks.registry import Context, Scope, check, not_applicable
from topocheck.checks.shared.common import given_away, listed, living
from topocheck.checks.shared.driver_state import file_evidence, refused_gpus, unread_file
from topocheck.checks.shared.fixes import Fix, first_fitting, in_slurm
from topocheck.checks.sources import GPUS, Needs
from topocheck.model.base import Evidence, Finding, State, small_number
from topocheck.topology.types import Gpu

_ON_NODE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
_IN_ALL = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


@check(
    "p2p.hidden-from-task",
    title="Each task may open only its own GPU, so there is no peer access between tasks",
    severity=State.WARN,
    reads=("/dev/nvidia*", "environment: number of tasks on the node"),
    scope=Scope.PROCESS,
    needs=Needs(GPUS, ("settings",)),
)
def hidden_from_task(c: Context) -> Iterator[Finding]:
    """Each task may open only its own GPU, so there is no peer access between tasks.

    Looks at:
        Whether the device cgroup lets this process open one GPU of several, while the launcher's variables say that
        the job has more tasks on this node.

    Why it matters:
        CUDA and NVML show a task nothing of the other tasks' GPUs. NCCL does not find them
        (nvmlDeviceGetHandleByPciBusId: Not Found) and copies through shared memory instead of NVLink or PCIe P2P.

    Fix:
        Give each task all GPUs of the job on the node (`--gpus-per-node`, not `--gpus-per-task` or `--gpu-bind=single`)
        and choose with CUDA_VISIBLE_DEVICES or the local rank.

    Does not apply:
        With one task on the node, where the process may open all GPUs, and where only CUDA_VISIBLE_DEVICES hides them:
        that does not take peer access away.
    """
    hidden = refused_gpus(c)
    mine = [g for g in living(c) if g.address not in hidden and not given_away(g)]
    # A GPU that NVML lists may be opened: NVML leaves out those whose file it may not open.
    unread = {g.address: e for g in mine if g.nvml is None and (e := unread_file(c, g.address)) is not None}
    if not hidden and not unread:
        raise not_applicable("no GPU is hidden by the device cgroup")
    tasks = _tasks_here(c)
    if tasks is None or tasks[0] < 2:
        return
    number, setting = tasks
    if len(mine) > 1 and len(mine) - len(unread) <= 1:
        yield _not_told([g for g in mine if g.address in unread], (*unread.values(), setting))
    if len(mine) != 1:
        return
    others = [g for g in living(c) if g.address in hidden]
    yield Finding(
        state=State.WARN,
        subject="process",
        title=f"this task may open {mine[0].label} alone and {number} tasks run on this node: no peer access between "
        "their GPUs",
        consequence="NCCL copies through shared memory instead of NVLink or PCIe P2P",
        evidence=(*file_evidence(c, [hidden[g.address] for g in others]), setting),
        rule=f"a task must be able to open the GPUs of its peers ({listed(g.label for g in others)} are hidden)",
        fix=first_fitting(c, *_FIXES),
    )


def _not_told(gpus: list[Gpu], evidence: tuple[Evidence, ...]) -> Finding:
    """Return that this task may have one GPU alone: whether others are hidden from it was lost."""
    return Finding(
        state=State.UNKNOWN,
        subject="process",
        title=f"whether this task may open {listed(g.label for g in gpus)} could not be read",
        consequence="if it may not, NCCL copies through shared memory instead of NVLink or PCIe P2P",
        evidence=tuple(dict.fromkeys(evidence)),
        rule="a task must be able to open the GPUs of its peers",
        fix=None,
    )


_FIXES = (
    Fix(
        "give each task all GPUs of the job on the node: --gpus-per-node=N in place of --gpus-per-task (or "
        "--gpu-bind=none), and choose with CUDA_VISIBLE_DEVICES or the local rank",
        (in_slurm,),
    ),
    Fix("start the tasks in one container, or give each container all GPUs, and choose with CUDA_VISIBLE_DEVICES"),
)


def _tasks_here(c: Context) -> tuple[int, Evidence] | None:
    """Return how many tasks of the job this node has, by the launcher's variables, and the one that says so."""
    told = {s.name: s for s in c.node.settings.related}
    for name in (*_ON_NODE, *_PER_NODE, *_IN_ALL):
        setting = told.get(name)
        # `4(x2),1` of Slurm: four on each of two nodes, one on the third; the first is as good as any.
        m = re.match(r"[0-9]{1,6}", setting.value) if setting is not None else None
        number = small_number(m[0]) if m else None
        if setting is not None and number is not None:
            return number, Evidence(setting.source, f"{name}={setting.value}")
    return None
