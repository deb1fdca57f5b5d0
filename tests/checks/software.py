"""The checks of RDMA, NUMA, NCCL's settings and limits, run on described machines with one thing changed."""

from __future__ import annotations

import msgspec

from tests.checks import support
from topocheck.checks import registry
from topocheck.model.base import Finding, State
from topocheck.model.node import Node

healthy, variant, run, findings = support.healthy, support.variant, support.run, support.findings


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
