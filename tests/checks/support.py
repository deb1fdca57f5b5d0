"""Runs checks on described machines without the rest of the pipeline."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path
from typing import Any

import msgspec

from tests.machines.builder import Machine, cached, machine
from topocheck.checks import registry, static_checks
from topocheck.gpudirect import judge
from topocheck.host.base import Answer, Backend, Host, HostError
from topocheck.model.base import Finding, State, is_lost
from topocheck.model.node import Node
from topocheck.nccl.predict.types import NcclView
from topocheck.pipeline import read_node
from topocheck.policy.types import Policy
from topocheck.probes.registry import PROBES, Probe
from topocheck.topology.build import build

SOFTWARE = frozenset({"limits", "nccl", "numa", "rdma"})
"""Areas whose checks judge settings, limits and network, where a machine without any fault may still get advice."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One check on one machine: what it must say.

    `state` None: no finding at all (`ok`, or not applicable where `applies` is False). `says` are words that the
    title or the fix must hold.
    """

    id: str
    machine: str
    change: dict[str, Any] = msgspec.field(default_factory=dict)
    state: State | None = None
    subject: str = ""
    says: tuple[str, ...] = ()
    applies: bool = True

    def __str__(self) -> str:
        what = ",".join(self.change) or "as it stands"
        return f"{self.id}-{self.machine}-{what}-{self.state}"

    def context(self) -> registry.Context:
        """Return what the check looks at."""
        return variant(self.machine, **self.change) if self.change else healthy(self.machine)


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return the rows (`ROWS`) of every file of tests of checks."""
    names = [m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name.startswith("test_")]
    modules = [importlib.import_module(f"tests.checks.{name}") for name in names]
    return tuple(row for m in modules for row in getattr(m, "ROWS", ()) if isinstance(row, Row))


def assert_row(row: Row) -> None:
    """Run a row's check and compare."""
    result, found = run(row.id, row.context())
    if row.state is None:
        assert [f.title for f in found] == []
        assert result.state == (State.OK if row.applies else State.NOT_APPLICABLE)
        return
    hit = [f for f in found if f.state is row.state and (not row.subject or f.subject == row.subject)]
    assert hit, [(f.state, f.subject, f.title) for f in found]
    first = hit[0]
    text = f"{first.title} {first.consequence} {first.fix or ''}"
    assert all(word in text for word in row.says), text
    assert first.rule
    assert result.state in (row.state, State.FAIL)


def context(node: Node, policy: Policy | None = None) -> registry.Context:
    """Return what a check looks at, made from facts; those in preview are judged like the others."""
    topology = build(node)
    return registry.Context(
        node=node,
        topology=topology,
        gpudirect=judge(node, topology),
        nccl=NcclView(),
        policy=msgspec.structs.replace(policy or Policy(), preview=True),
    )


def facts(m: Machine) -> Node:
    """Return the facts of a described machine."""
    return read_node(m.host(), PROBES)


class _Reading(msgspec.Struct, frozen=True):
    """What a probe made of a machine as it stands: its questions with their answers, and its facts."""

    probe: Probe
    answers: dict[tuple[Any, ...], Answer]
    facts: Any


class _Again:
    """A probe of a variant of a machine: where no answer differs, it gives the facts that it gave before.

    What a probe returns follows from the answers alone (docs/architecture.md). Questions of the kinds `alike` are not
    asked again, as the variant's answers to them are the same.
    """

    def __init__(self, before: _Reading, variant: Backend, alike: frozenset[str]) -> None:
        self.name = before.probe.name
        self.before = before
        self.variant = variant
        self.alike = alike

    def read(self, host: Host) -> Any:
        """Return the facts; a question whose answer was lost is asked again, so that this is taken down."""
        asked = self.before.answers.items()
        if any(q[0] not in self.alike and not _same(a, _ask(self.variant, *q)) for q, a in asked):
            return self.before.probe.read(host)
        for question, answer in asked:
            if isinstance(answer, HostError) and is_lost(answer.missing()):
                _ask(host.backend, *question)
        return self.before.facts


def _ask(backend: Backend, kind: str, *args: str | int) -> Answer:
    try:
        return backend.ask(kind, *args)
    except HostError as e:
        return e


def _same(a: Answer, b: Answer) -> bool:
    if isinstance(a, HostError) and isinstance(b, HostError):
        return a.missing() == b.missing()
    return a == b


class _Asked:
    """A backend around another that keeps each question with its answer."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.answers: dict[tuple[Any, ...], Answer] = {}

    def ask(self, kind: str, *args: str | int) -> Answer:
        """Return the answer of the other."""
        answer = self.answers[kind, *args] = _ask(self.inner, kind, *args)
        if isinstance(answer, HostError):
            raise HostError(answer.reason, answer.detail)
        return answer


@functools.cache
def _reading(name: str, probe: Probe) -> _Reading | None:
    """Return what a probe makes of a described machine as it stands; None where it breaks, or leaves something out."""
    backend = _Asked(cached(name).backend)
    host = Host(backend, name)
    try:
        found = probe.read(host)
    except Exception:  # noqa: BLE001 - the pipeline says what that comes to
        return None
    return None if host.left_out else _Reading(probe, backend.answers, found)


def _read(m: Machine) -> Node:
    """Return the facts of a described machine or of a variant of it, read only as far as they differ."""
    alike = m.backend.alike(cached(m.name).backend)
    readings = [_reading(m.name, p) for p in PROBES]
    probes: list[Any] = [
        p if before is None else _Again(before, m.backend, alike) for p, before in zip(PROBES, readings, strict=True)
    ]
    return read_node(m.host(), probes)


_GROUND = ("pci", "numa", "system", "net", "nvml", "cuda")
"""Facts that topology and verdicts of GPUDirect rest on."""


@functools.cache
def healthy(name: str) -> registry.Context:
    """Return the context of a described machine as it stands, made once."""
    return context(_read(cached(name)))


def variant(name: str, /, **overrides: Any) -> registry.Context:
    """Return the context of a described machine with overrides."""
    node, before = _read(machine(name, **overrides)), healthy(name)
    if all(getattr(node, part) == getattr(before.node, part) for part in _GROUND):
        return msgspec.structs.replace(before, node=node)
    return context(node)


def hardware_checks() -> list[registry.Check]:
    """Return the checks of facts that only a fault of hardware, driver or device order gives something to say."""
    return [c for c in static_checks() if c.id.split(".")[0] not in SOFTWARE | {"policy"}]


def software_checks() -> list[registry.Check]:
    """Return the checks of facts of the areas of SOFTWARE."""
    return [c for c in static_checks() if c.id.split(".")[0] in SOFTWARE]


def run(id_: str, c: registry.Context) -> tuple[registry.CheckResult, tuple[Finding, ...]]:
    """Run one check."""
    found = next(x for x in static_checks() if x.id == id_)
    return next(iter(registry.run([found], c)))


def findings(id_: str, c: registry.Context) -> tuple[Finding, ...]:
    """Return the findings of one check."""
    return run(id_, c)[1]


def states(id_: str, c: registry.Context) -> dict[str, State]:
    """Return subject -> state of the findings of one check."""
    return {f.subject: f.state for f in findings(id_, c)}
