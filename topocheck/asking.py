"""Asking this machine everything. Kept apart from judging, so that the machine is asked while the rest is loaded."""

from __future__ import annotations

from topocheck.host.base import Answer
from topocheck.probes.registry import OPTIONAL_PROBES, PROBES


def ask_machine(*, cross_check: bool = False, budget_s: float = 20.0) -> dict[str, Answer]:
    """Ask this machine everything, in child processes with deadlines, and return every question with its answer.

    Never raises and never hangs: what did not answer within its probe's deadline, or within `budget_s` seconds
    in all, is recorded as timed out under the name of the call.
    """
    from topocheck.host.gather import gather

    return gather(PROBES + (OPTIONAL_PROBES if cross_check else ()), budget_s=budget_s, meanwhile=_load_rooms)


def _load_rooms() -> None:
    """Load what judging needs while the machine is being asked: it takes about as long."""
    from topocheck import pipeline  # noqa: F401
    from topocheck.checks import static_checks
    from topocheck.gpudirect import judge  # noqa: F401
    from topocheck.nccl import backend, view  # noqa: F401
    from topocheck.render import text  # noqa: F401
    from topocheck.topology import build  # noqa: F401

    static_checks()
    for p in PROBES:
        p.load()
