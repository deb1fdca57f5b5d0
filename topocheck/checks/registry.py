"""The registry of checks: what a check is, and how the checks are run.

A check is a pure function from a Context to findings. It yields nothing where all is well; `run` then says `ok`.
A check that cannot judge yields findings in state `unknown`; one that has nothing to judge calls
`not_applicable(...)`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator

import msgspec

from topocheck.gpudirect.types import GpuDirect
from topocheck.model.base import Finding, State
from topocheck.model.node import Node
from topocheck.nccl.types import NcclView
from topocheck.policy.types import Policy
from topocheck.topology.types import Topology


class Scope(enum.StrEnum):
    """`node`: hardware, driver, kernel. `process`: this environment, its limits, affinity and visible devices."""

    NODE = "node"
    PROCESS = "process"


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """All a check may look at."""

    node: Node
    topology: Topology
    gpudirect: GpuDirect
    nccl: NcclView
    policy: Policy = msgspec.field(default_factory=Policy)

    def threshold(self, check_id: str, name: str, default: float) -> float:
        """Return the policy's value of a threshold of a check, or the default."""
        return self.policy.threshold(check_id, name, default)


class NotApplicableError(Exception):
    """Raised by a check that has nothing to judge on this machine; the text says why."""


def not_applicable(why: str) -> NotApplicableError:
    """Return the exception a check raises where it has nothing to judge."""
    return NotApplicableError(why)


CheckFunction = Callable[[Context], Iterable[Finding]]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check.

    Attributes:
        id: `area.name`, never reused; the name states the problem.
        title: one line.
        severity: the worst state it gives.
        reads: files and calls it judges.
        doc: the explanation: Looks at / Why it matters / Fix / Does not apply.
        thresholds: names of the thresholds that the policy may set.
    """

    id: str
    title: str
    scope: Scope
    severity: State
    reads: tuple[str, ...]
    doc: str
    function: CheckFunction
    thresholds: tuple[str, ...] = ()


CHECKS: dict[str, Check] = {}


def check(
    id_: str,
    *,
    title: str,
    severity: State,
    reads: tuple[str, ...],
    scope: Scope = Scope.NODE,
    thresholds: tuple[str, ...] = (),
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check; its docstring is its explanation."""

    def register(function: CheckFunction) -> CheckFunction:
        if id_ in CHECKS:
            raise ValueError(f"check id {id_} is taken")
        doc = (function.__doc__ or "").strip()
        CHECKS[id_] = Check(
            id=id_,
            title=title,
            scope=scope,
            severity=severity,
            reads=reads,
            doc=doc,
            function=function,
            thresholds=thresholds,
        )
        return function

    return register


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one check went: the worst state of its findings, or ok, or not_applicable with the reason."""

    id: str
    scope: str
    state: State
    subjects: tuple[str, ...] = ()
    detail: str = ""


_WORSE = (State.FAIL, State.UNKNOWN, State.WARN, State.NOTE, State.OK, State.NOT_APPLICABLE)


def worst(states: Iterable[State]) -> State:
    """Return the worst of some states; `ok` for none. Failure beats could-not-tell, which beats a warning."""
    return min(states, key=_WORSE.index, default=State.OK)


def finding_order(finding: Finding) -> tuple[int, str, str]:
    """Sort key of findings: the worst first, then by id and subject."""
    return _WORSE.index(finding.state), finding.id, finding.subject


def run(checks: Iterable[Check], context: Context) -> Iterator[tuple[CheckResult, tuple[Finding, ...]]]:
    """Run checks, in order of their ids. A check that breaks is `unknown` with its error, never silent."""
    for c in sorted(checks, key=lambda c: c.id):
        try:
            findings = tuple(c.function(context))
        except NotApplicableError as e:
            yield CheckResult(id=c.id, scope=c.scope, state=State.NOT_APPLICABLE, detail=str(e)), ()
            continue
        except Exception as e:  # noqa: BLE001 - a fault of one check must not take the others with it
            detail = f"topocheck's own fault in this check: {type(e).__name__}: {e}"
            f = Finding(id=c.id, state=State.UNKNOWN, subject="node", title=detail)
            yield CheckResult(id=c.id, scope=c.scope, state=State.UNKNOWN, detail=detail), (f,)
            continue
        state = worst(f.state for f in findings)
        yield (
            CheckResult(id=c.id, scope=c.scope, state=state, subjects=tuple(f.subject for f in findings)),
            findings,
        )
