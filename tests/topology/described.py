"""From a described machine to the facts of its node, by the real probes and nothing further down the way."""

from __future__ import annotations

import functools
from typing import Any

from tests.machines.builder import machine
from topocheck.model.node import Node
from topocheck.probes.registry import PROBES

_PARTS = ("pci", "numa", "system", "net", "nvml", "cuda")


def read(name: str, /, **overrides: Any) -> Node:
    """The facts of a described machine, with tables of `overrides` laid over its description."""
    host = machine(name, **overrides).host()
    return Node(source=name, **{p.name: p.read(host) for p in PROBES if p.name in _PARTS})


@functools.cache
def cached(name: str) -> Node:
    """The facts of a described machine as it is, read once."""
    return read(name)
