"""Asking this machine everything. Kept apart from judging, so that the machine is asked while the rest is loaded."""

from __future__ import annotations

from topocheck.process import fork
from topocheck.process.python import leave_current_folder as leave_current_folder

TYPE_CHECKING = False  # not from typing: loading it costs milliseconds before the driver is asked
if TYPE_CHECKING:
    from collections.abc import Collection

    from topocheck.host.base import Answer
    from topocheck.host.gather.gather import Gathering
    from topocheck.model.node import Node
    from topocheck.probes.registry import Probe

BUDGET_S = 20.0
"""Seconds for everything on a machine without GPUs, unless told otherwise; starting NVML adds its own for each GPU."""
_UNTIL_TOLD_S = 600.0
"""What a gathering has that begins before the command line is read; `ask_machine` says how long it really has."""

_begun: dict[bool, Gathering] = {}
"""A gathering that `begin` started, by whether it asks for the cross-check; the next `ask_machine` takes it over."""


_DRIVER = "nvml"
"""The group whose child is started before anything else."""
_PATIENT = (_DRIVER, "cuda")
"""Groups that wait for the driver, and get what a longer budget has to give."""


def begin(*, cross_check: bool) -> None:
    """Start asking now, for an `ask_machine` that is sure to come: before this program is even loaded.

    What this module imports itself costs a millisecond; keep it so.
    """
    from topocheck.host.gather.gpus import driver_is_loaded

    try:
        started = fork.fork(_ask_driver) if driver_is_loaded() and fork.fork_is_safe() else None
    except OSError:  # no process to be had: the ordinary start meets it again, and tells it
        started = None
    _begun[cross_check] = _gathering(cross_check, _UNTIL_TOLD_S, {_DRIVER: started} if started else {})


def _ask_driver(pipe: int) -> None:
    """Body of the early child: load what it needs while NVML starts, then work as any child of its group."""
    from topocheck.host.gather.prefork import start_nvml

    start_nvml()
    from topocheck.host.gather.worker import LIVE, Job, run_job

    run_job(Job([p for p in _probes(False) if p.group == _DRIVER], LIVE, {}, {}, _UNTIL_TOLD_S), pipe)


def abandon() -> None:
    """End what `begin` started and nobody took over."""
    while _begun:
        _begun.popitem()[1].stop()


def ask_machine(*, cross_check: bool = False, budget_s: float | None = None) -> dict[str, Answer]:
    """Ask this machine everything, in child processes with deadlines, and return every question with its answer.

    Never raises and never hangs: what did not answer within its probe's deadline, or within `budget_s` seconds
    in all (None: BUDGET_S and some more for each GPU), is recorded as timed out under the name of the call. What
    the budget has beyond that, the driver's probes get.
    """
    from topocheck.host.gather.gpus import count_gpus
    from topocheck.probes.registry import NVML_PER_GPU_S

    usual_s = BUDGET_S + NVML_PER_GPU_S * count_gpus()
    budget_s = usual_s if budget_s is None else budget_s
    gathering = _begun.pop(cross_check, None) or _gathering(cross_check, budget_s, {})
    try:
        _load_rooms()
    except BaseException:
        gathering.stop()
        raise
    return gathering.finish(budget_s, dict.fromkeys(_PATIENT, max(0.0, budget_s - usual_s)))


def read_live(names: Collection[str]) -> Node:
    """Ask this machine what the probes of these names ask, and nothing else, within 10 s; return the facts."""
    from topocheck.host.base import Host, RecordedBackend
    from topocheck.host.gather.gather import gather
    from topocheck.pipeline import read_node
    from topocheck.probes.registry import PROBES

    probes = [p for p in PROBES if p.name in names]
    return read_node(Host(RecordedBackend(gather(probes, budget_s=10.0)), "live"), probes)


def _gathering(cross_check: bool, budget_s: float, early: dict[str, fork.Worker]) -> Gathering:
    from topocheck.host.gather.gather import Gathering

    probes = _probes(cross_check)
    for probe in probes:
        probe.load()  # here, where the facts are made from the answers, and not again in each child
    return Gathering(probes, budget_s, early=early)


def _probes(cross_check: bool) -> tuple[Probe, ...]:
    from topocheck.host.gather.gpus import count_gpus
    from topocheck.probes.registry import OPTIONAL_PROBES, PROBES

    gpus = count_gpus()
    return tuple(p.for_gpus(gpus) for p in PROBES + (OPTIONAL_PROBES if cross_check else ()))


def _load_rooms() -> None:
    """Load what judging needs while the machine is being asked: it takes about as long."""
    from topocheck.checks import static_checks
    from topocheck.gpudirect import judge  # noqa: F401
    from topocheck.nccl.predict import report as view  # noqa: F401
    from topocheck.pipeline import build_report  # noqa: F401
    from topocheck.render import text  # noqa: F401
    from topocheck.topology import build  # noqa: F401

    static_checks()
