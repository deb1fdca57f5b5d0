"""The checks of RDMA, NUMA, NCCL's settings and limits, run on described machines with one thing changed."""

from __future__ import annotations

import importlib

import msgspec

from tests.checks import support
from topocheck.checks import registry
from topocheck.model.base import Finding, State
from topocheck.model.node import Node

AREAS = (
    "rdma",
    "rdma_devices",
    "rdma_gids",
    "rdma_layers",
    "rdma_roads",
    "numa",
    "numa_layout",
    "numa_unplaced",
    "nccl",
    "nccl_forced",
    "nccl_hca",
    "nccl_hca_left_out",
    "nccl_levels",
    "nccl_network",
    "nccl_topo_file",
    "nccl_transports",
    "limits",
    "container",
)

healthy, variant = support.healthy, support.variant


def own_checks() -> list[registry.Check]:
    """Return the checks of these areas."""
    modules = {f"topocheck.checks.{a}" for a in AREAS}
    for m in modules:
        importlib.import_module(m)
    return [c for _, c in sorted(registry.CHECKS.items()) if c.function.__module__ in modules]


def run(id_: str, c: registry.Context) -> tuple[registry.CheckResult, tuple[Finding, ...]]:
    """Run one check."""
    return next(iter(registry.run([next(x for x in own_checks() if x.id == id_)], c)))


def findings(id_: str, c: registry.Context) -> tuple[Finding, ...]:
    """Return the findings of one check."""
    return run(id_, c)[1]


def state(id_: str, c: registry.Context) -> State:
    """Return the state a check comes to."""
    return run(id_, c)[0].state


def one(id_: str, c: registry.Context) -> Finding:
    """Return the only finding of a check."""
    found = findings(id_, c)
    assert len(found) == 1, [f.title for f in found]
    return found[0]


def with_env(name: str, **environment: str) -> registry.Context:
    """Return a described machine in another environment."""
    return variant(name, environment=environment)


def with_nccl(c: registry.Context, version: str) -> registry.Context:
    """Return the same machine with a version of NCCL installed."""
    software = msgspec.structs.replace(c.node.software, versions={"nccl": version}, raw={"nccl": version})
    return with_node(c, software=software)


def with_node(c: registry.Context, **parts: object) -> registry.Context:
    """Return the same context with some facts replaced, the rest of it as it was."""
    node: Node = msgspec.structs.replace(c.node, **parts)
    return msgspec.structs.replace(c, node=node)
