"""The registry of checks: what a check is, and how the checks are run.

A check is a pure function from a Context to findings. It yields nothing where all is well; `run` then says `ok`.
A check that cannot judge yields findings in state `unknown`; one that has nothing to judge calls
`not_applicable(...)`.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from topocheck.checks.sources import NOTHING, SOURCES, Needs
from topocheck.gpudirect.types import GpuDirect
from topocheck.model.base import Finding, State
from topocheck.model.node import Node
from topocheck.nccl.predict.types import NcclView
from topocheck.policy.types import Policy
from topocheck.topology.types import Topology

T = TypeVar("T")


class Scope(enum.StrEnum):
    """`node`: hardware, driver, kernel. `process`: this environment, its limits, affinity and visible devices."""

    NODE = "node"
    PROCESS = "process"


class Context(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All a check may look at."""

    node: Node
    topology: Topology
    gpudirect: GpuDirect
    nccl: NcclView
    policy: Policy = msgspec.field(default_factory=Policy)
    judged: Mapping[str, State] = {}
    """Check -> what it came to, of those that ran before one that runs last."""

    def threshold(self, check_id: str, name: str, default: float) -> float:
        """Return the policy's value of a threshold of a check, or the default."""
        return self.policy.threshold(check_id, name, default)

    @functools.cached_property
    def kept(self) -> dict[Callable[..., Any], Any]:
        """What several checks ask for and one has worked out, by function (`once`)."""
        return {}


def once(function: Callable[[Context], T]) -> Callable[[Context], T]:
    """Work out what several checks ask of a context the first time only; nobody changes what is returned."""

    @functools.wraps(function)
    def keep(context: Context) -> T:
        if function not in context.kept:
            context.kept[function] = function(context)
        found: T = context.kept[function]
        return found

    return keep


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
        title: one line, the docstring's first where no other is given.
        severity: the worst state it gives.
        reads: files and calls it judges.
        doc: the explanation: Looks at / Why it matters / Fix / Does not apply.
        needs: the answers without which it is unknown.
        thresholds: names of the thresholds that the policy may set.
        preview: new, and run only when it is asked for: what it says may still change.
        last: it runs after the others, and is shown what they came to.
    """

    id: str
    title: str
    scope: Scope
    severity: State
    reads: tuple[str, ...]
    doc: str
    function: CheckFunction
    needs: Needs = NOTHING
    thresholds: tuple[str, ...] = ()
    preview: bool = False
    last: bool = False

    @property
    def area(self) -> str:
        """The first part of the id, and the folder that the check is in."""
        return self.id.partition(".")[0]

    @property
    def listed(self) -> str:
        """The title as lists of checks show it."""
        return f"{self.title} (preview)" if self.preview else self.title


CHECKS: dict[str, Check] = {}


def check(
    id_: str,
    *,
    title: str | None = None,
    severity: State,
    reads: tuple[str, ...],
    needs: Needs = NOTHING,
    scope: Scope = Scope.NODE,
    thresholds: tuple[str, ...] = (),
    preview: bool = False,
    last: bool = False,
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check; its docstring is its explanation, and the first line of that its title where none is given."""

    def register(function: CheckFunction) -> CheckFunction:
        if id_ in CHECKS:
            raise ValueError(f"check id {id_} is taken")
        if unknown := {*needs.applies, *needs.judged} - SOURCES.keys():
            raise ValueError(
                f"check {id_} needs {sorted(unknown)[0]!r}, which is no name in topocheck/checks/sources.py"
            )
        doc = (function.__doc__ or "").strip()
        CHECKS[id_] = Check(
            id=id_,
            title=title or doc.partition("\n")[0].rstrip("."),
            scope=scope,
            severity=severity,
            reads=reads,
            doc=doc,
            function=function,
            needs=needs,
            thresholds=thresholds,
            preview=preview,
            last=last,
        )
        return function

    return register


class MissingData(enum.StrEnum):
    """Why the facts that a check needs did not come, in the words that begin its detail."""

    OVERDUE = "no answer in time"
    LOST = "data not available"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one check went: the worst state of its findings, or ok, or not_applicable with the reason.

    Attributes:
        missing: why it could not judge, where it is unknown since facts that it needs did not come; else None.
    """

    id: str
    scope: str
    state: State
    subjects: tuple[str, ...] = ()
    detail: str = ""
    missing: MissingData | None = None


_WORSE = (State.FAIL, State.UNKNOWN, State.WARN, State.NOTE, State.OK, State.NOT_APPLICABLE)


def worst(states: Iterable[State]) -> State:
    """Return the worst of some states; `ok` for none. Failure beats could-not-tell, which beats a warning."""
    return min(states, key=_WORSE.index, default=State.OK)


def finding_order(finding: Finding) -> tuple[int, str, str]:
    """Sort key of findings: the worst first, then by id and subject."""
    return _WORSE.index(finding.state), finding.id, finding.subject


def run(checks: Iterable[Check], context: Context) -> Iterator[tuple[CheckResult, tuple[Finding, ...]]]:
    """Run the checks that the policy of the context enables, in order of their ids.

    Each finding gets the id of its check, and the severity that the policy gives it.

    A check that breaks is `unknown` with its error, never silent.
    """
    judged: dict[str, State] = {}
    policy = context.policy
    enabled = (c for c in checks if policy.enables(c.id, preview=c.preview))
    for c in sorted(enabled, key=lambda c: (c.last, c.id)):
        result, findings = _run(c, msgspec.structs.replace(context, judged=judged) if c.last else context)
        judged[c.id] = result.state
        yield result, tuple(policy.adjust(f) for f in findings)


def _run(c: Check, context: Context) -> tuple[CheckResult, tuple[Finding, ...]]:
    try:
        findings = tuple(f if f.id == c.id else msgspec.structs.replace(f, id=c.id) for f in c.function(context))
    except NotApplicableError as e:
        return CheckResult(id=c.id, scope=c.scope, state=State.NOT_APPLICABLE, detail=str(e)), ()
    except Exception as e:  # noqa: BLE001 - a fault of one check must not take the others with it
        detail = f"topocheck's own fault in this check: {type(e).__name__}: {e}"
        f = Finding(id=c.id, state=State.UNKNOWN, subject="node", title=detail)
        return CheckResult(id=c.id, scope=c.scope, state=State.UNKNOWN, detail=detail), (f,)
    state = worst(f.state for f in findings)
    return CheckResult(id=c.id, scope=c.scope, state=state, subjects=tuple(f.subject for f in findings)), findings
