"""Runs checks on described machines without the rest of the pipeline."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import msgspec

from tests.machines.builder import Machine, cached, machine
from topocheck.checks import registry
from topocheck.gpudirect import judge
from topocheck.model.base import Finding, State
from topocheck.model.node import Node
from topocheck.nccl.types import NcclView
from topocheck.pipeline import read_node
from topocheck.policy.types import Policy
from topocheck.probes.registry import PROBES
from topocheck.topology.build import build

AREAS = (
    "pcie",
    "pcie_devices",
    "pcie_missing",
    "pcie_paths",
    "pcie_setup",
    "p2p",
    "p2p_way",
    "p2p_guest",
    "nvlink",
    "nvlink_fabric",
    "nvlink_peers",
    "consistency",
    "devices",
    "driver",
)
"""The files whose checks these tests are about."""


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
    """Return what a check looks at, made from facts."""
    topology = build(node)
    return registry.Context(
        node=node,
        topology=topology,
        gpudirect=judge(node, topology),
        nccl=NcclView(),
        policy=policy or Policy(),
    )


def facts(m: Machine) -> Node:
    """Return the facts of a described machine."""
    return read_node(m.host(), PROBES)


@functools.cache
def healthy(name: str) -> registry.Context:
    """Return the context of a described machine as it stands, made once."""
    return context(facts(cached(name)))


def variant(name: str, /, **overrides: Any) -> registry.Context:
    """Return the context of a described machine with overrides."""
    return context(facts(machine(name, **overrides)))


def own_checks() -> list[registry.Check]:
    """Return the checks of the areas above."""
    modules = {f"topocheck.checks.{a}" for a in AREAS}
    for m in modules:
        importlib.import_module(m)
    return [c for _, c in sorted(registry.CHECKS.items()) if c.function.__module__ in modules]


def run(id_: str, c: registry.Context) -> tuple[registry.CheckResult, tuple[Finding, ...]]:
    """Run one check."""
    found = next(x for x in own_checks() if x.id == id_)
    return next(iter(registry.run([found], c)))


def findings(id_: str, c: registry.Context) -> tuple[Finding, ...]:
    """Return the findings of one check."""
    return run(id_, c)[1]


def states(id_: str, c: registry.Context) -> dict[str, State]:
    """Return subject -> state of the findings of one check."""
    return {f.subject: f.state for f in findings(id_, c)}
