"""Described machines with their topology, built once."""

from __future__ import annotations

import functools
from typing import Any

from tests.machines.builder import machine
from topocheck.model.node import Node
from topocheck.pipeline import read_node
from topocheck.topology.build import build
from topocheck.topology.types import Topology


def look(name: str, /, **overrides: Any) -> tuple[Node, Topology]:
    """Return facts and topology of a described machine."""
    node = read_node(machine(name, **overrides).host())
    return node, build(node)


@functools.cache
def cached(name: str) -> tuple[Node, Topology]:
    """Return `look` of a machine without overrides."""
    return look(name)
