"""Runs checks on described machines without the rest of the pipeline."""

from __future__ import annotations

import functools
import importlib
from typing import Any

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

FAULTY = frozenset({"gpu_lost", "driver_not_loaded"})
"""Described machines that have a fault on purpose."""


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
    return [c for c in registry.CHECKS.values() if c.function.__module__ in modules]


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
