"""Scenes of described machines, each made once, without the checks."""

from __future__ import annotations

import functools
from typing import Any

from tests.machines.builder import machine
from tests.machines.many import many
from topocheck.host.base import Host
from topocheck.model.node import Node
from topocheck.picture.scene import scene
from topocheck.picture.types import Link, Part, Scene
from topocheck.pipeline import read_node
from topocheck.topology.build import build
from topocheck.topology.types import Topology


def of(host: Host) -> tuple[Node, Topology, Scene]:
    node = read_node(host)
    topology = build(node)
    return node, topology, scene(node, topology)


@functools.cache
def drawn(name: str) -> tuple[Node, Topology, Scene]:
    if name == "64 GPUs, 128 HCAs":
        return of(many(64, 128).host())
    return of(machine(name).host())


def changed(name: str, **overrides: Any) -> Scene:
    return of(machine(name, **overrides).host())[2]


def part(drawn_scene: Scene, title: str) -> Part:
    return next(p for p in drawn_scene.parts() if p.title == title)


def link(drawn_scene: Scene, title: str) -> Link:
    return part(drawn_scene, title).link
