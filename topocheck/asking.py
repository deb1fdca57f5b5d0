"""Asking this machine everything. Kept apart from judging, so that the machine is asked while the rest is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topocheck.host.base import Answer
from topocheck.probes.registry import OPTIONAL_PROBES, PROBES, Probe

if TYPE_CHECKING:
    from topocheck.host.gather import Gathering

BUDGET_S = 20.0

_begun: dict[bool, Gathering] = {}
"""A gathering that `begin` started, by whether it asks for the cross-check; the next `ask_machine` takes it over."""


def begin(*, cross_check: bool) -> None:
    """Start asking now, for an `ask_machine` that is sure to come: before the command line is even loaded."""
    from topocheck.host.gather import Gathering

    _begun[cross_check] = Gathering(_probes(cross_check), BUDGET_S)


def abandon() -> None:
    """End what `begin` started and nobody took over."""
    while _begun:
        _begun.popitem()[1].stop()


def ask_machine(*, cross_check: bool = False, budget_s: float = BUDGET_S) -> dict[str, Answer]:
    """Ask this machine everything, in child processes with deadlines, and return every question with its answer.

    Never raises and never hangs: what did not answer within its probe's deadline, or within `budget_s` seconds
    in all, is recorded as timed out under the name of the call.
    """
    from topocheck.host.gather import Gathering

    gathering = _begun.pop(cross_check, None) or Gathering(_probes(cross_check), budget_s)
    try:
        _load_rooms()
    except BaseException:
        gathering.stop()
        raise
    return gathering.finish(budget_s)


def _probes(cross_check: bool) -> tuple[Probe, ...]:
    return PROBES + (OPTIONAL_PROBES if cross_check else ())


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
