"""Described machines through the real probes and the real topology: facts as described, classes as captured."""

from __future__ import annotations

import functools

import pytest

from tests.machines.builder import cached, case_names, machine, names
from tests.machines.description import GTS
from topocheck.model.base import Missing
from topocheck.model.node import Node
from topocheck.pipeline import read_node
from topocheck.topology.build import build


@functools.cache
def _node(name: str) -> Node:
    return read_node(cached(name).host())


@pytest.mark.parametrize("name", [*names(), *case_names()])
def test_classes_are_those_of_the_public_capture(name: str) -> None:
    """Every pair that the capture tells, in both forms of the matrix."""
    m = cached(name)
    paths = {(p.from_label, p.to_label): p for p in build(_node(name)).paths}
    for (a, b), want in m.classes_expected().items():
        path = paths.get((a, b)) or paths[b, a]
        assert path.class_ == want, (a, b)
    for (a, b), want in m.classes_expected(pcie=True).items():
        path = paths.get((a, b)) or paths[b, a]
        assert path.pcie_class == want, (a, b)


@pytest.mark.parametrize("name", [*names(), *case_names()])
def test_affinity_is_that_of_the_public_capture(name: str) -> None:
    """CPU affinity of the GPUs, where the capture tells it."""
    m = cached(name)
    gpus = build(_node(name)).gpus
    for which, want in (m.facts_expected.get("affinity") or {}).items():
        first, _, last = which.partition("-")
        for i in range(int(first), int(last or first) + 1):
            if gpus[i].nvml is not None and gpus[i].on_bus:
                assert gpus[i].cpu_affinity == want, i


@pytest.mark.parametrize("name", [*names(), *case_names()])
def test_no_probe_fails(name: str) -> None:
    """A described machine is an ordinary machine: each probe comes back."""
    node = _node(name)
    assert [(p.name, p.detail) for p in node.probes if p.state not in ("ok", "empty")] == []


@pytest.mark.parametrize("name", names())
def test_links_are_read_as_described(name: str) -> None:
    """Current and maximum link of every function, and its place in the tree."""
    m = cached(name)
    devices = _node(name).pci.devices
    if isinstance(devices, Missing):
        assert m.functions == {}
        return
    assert [d.address for d in devices] == list(m.functions)
    for d in devices:
        f = m.functions[d.address]
        assert d.chain[-1] == f.address
        assert d.chain[-2] == (f.parent.address if f.parent else f"pci{f.root.domain}:{f.root.bus:02x}")
        if f.max is None or f.now is None or f.options.get("lost") == "1":
            continue
        if f.options.get("runtime") == "suspended":
            assert isinstance(d.max_speed_gt_s, Missing)  # asking would wake it
            continue
        assert (d.max_speed_gt_s, d.max_width_lanes) == (float(GTS[f.max.gen]), f.max.width), f.address
        if f.now.width:
            assert (d.current_speed_gt_s, d.current_width_lanes) == (float(GTS[f.now.gen]), f.now.width), f.address


def test_an_ordinary_user_sees_the_same_classes() -> None:
    """Without root the config space ends at 64 bytes; the tree is the same."""
    m = machine("hgx_h100_cx7", system={"root": False})
    root = build(read_node(cached("hgx_h100_cx7").host())).paths
    user = build(read_node(m.host())).paths
    assert [(p.from_, p.to, p.class_, p.pcie_class) for p in user] == [
        (p.from_, p.to, p.class_, p.pcie_class) for p in root
    ]
