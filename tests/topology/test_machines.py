"""Every described machine: classes, NVLinks and nearest NICs as the public capture of such a machine shows them."""

from __future__ import annotations

import pytest

from tests.machines.builder import cached as described
from tests.machines.builder import names
from tests.machines.description import load
from tests.topology.described import cached, read
from topocheck.model.base import Missing, known
from topocheck.model.node import Node
from topocheck.topology.build import build
from topocheck.topology.classes import ORDER

MACHINES = names()


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("pcie", [False, True], ids=["topo-m", "topo-mp"])
def test_classes_are_those_of_the_capture(name: str, pcie: bool) -> None:
    paths = {(p.from_label, p.to_label): p for p in build(cached(name)).paths}
    got = {}
    for pair in described(name).classes_expected(pcie):
        path = paths[pair]
        got[pair] = path.pcie_class if pcie else path.class_
    assert got == described(name).classes_expected(pcie)


@pytest.mark.parametrize("name", MACHINES)
def test_a_class_has_no_direction_and_every_gap_a_reason(name: str) -> None:
    t = build(cached(name))
    classes = {(p.from_, p.to): p for p in t.paths}
    for (a, b), p in classes.items():
        back = classes.get((b, a))
        if back is not None:
            assert (p.class_, p.pcie_class, p.nvlinks) == (back.class_, back.pcie_class, back.nvlinks)
            assert p.theoretical_gb_s == back.theoretical_gb_s
        lost = any(not g.on_bus for g in t.gpus if g.address in (a, b))
        assert isinstance(p.class_, Missing) == lost
        assert not isinstance(p.class_, Missing) or p.class_.detail


@pytest.mark.parametrize("name", MACHINES)
def test_every_ordered_pair_has_its_path(name: str) -> None:
    t = build(cached(name))
    devices = len(t.gpus) + len(t.accelerators)
    assert len(t.paths) == devices * (devices - 1) + devices * len(t.nics)


@pytest.mark.parametrize("name", [n for n in MACHINES if load(n).get("expect", {}).get("nics")])
def test_the_nearest_nics_are_those_with_the_best_cell(name: str) -> None:
    t = build(cached(name))
    cells: dict[str, dict[str, str]] = {}
    for (a, b), c in described(name).classes_expected().items():
        if not b.startswith("GPU"):
            cells.setdefault(a, {})[b] = c
    labels = {n.address: n.label for n in t.nics}
    for g in t.gpus:
        row = cells.get(g.label, {})
        if len(row) != len(t.nics):
            continue  # the capture does not show every NIC of the description
        best = min(row.values(), key=lambda c: ORDER[c])
        nearest = next(n for n in t.nearest_nics if n.gpu == g.address)
        if nearest.untold:
            assert best == "SYS"
            assert any(isinstance(n.cpu_node, Missing) for n in t.nics)
            continue
        assert nearest.class_ == best
        shown = {labels[a] for a in nearest.nics}
        allowed = {n for n, c in row.items() if c == best}
        assert shown
        # NICs on the GPU's own node are nearer among equals
        assert shown == allowed or (shown < allowed and best == "SYS")


def _agrees_with_the_driver(node: Node) -> list[tuple[str, str, str, str]]:
    return [
        (p.from_label, p.to_label, p.pcie_class, p.driver_class)
        for p in build(node).paths
        if known(p.driver_class) and known(p.pcie_class) and p.driver_class != p.pcie_class
    ]


@pytest.mark.parametrize("name", MACHINES)
def test_nvmls_common_ancestor_agrees_with_the_tree(name: str) -> None:
    assert _agrees_with_the_driver(cached(name)) == []


def test_rates_of_the_hgx_machine() -> None:
    """18 links of 25 GB/s between GPUs; gen 5 x16 = 63.015 between a GPU and the NIC below its switch."""
    t = build(cached("hgx_h100_cx7"))
    by_label = {(p.from_label, p.to_label): p for p in t.paths}
    assert by_label["GPU0", "GPU7"].theoretical_gb_s == pytest.approx(450.0)
    near = by_label["GPU0", "mlx5_0"]
    assert round(near.theoretical_gb_s, 3) == 63.015
    assert not near.upper_bound
    assert by_label["GPU0", "mlx5_1"].upper_bound
    assert [g.kind for g in t.nvlink_groups] == ["switch"]
    assert not t.flat_tree


def test_half_the_lanes_show_as_the_narrowest_hop() -> None:
    t = build(read("hgx_h100_cx7", patch={"GPU3": {"now": "5x8"}}))
    path = next(p for p in t.paths if (p.from_label, p.to_label) == ("GPU3", "mlx5_3"))
    assert path.narrowest is not None
    assert path.narrowest.address == path.from_
    assert round(path.theoretical_gb_s, 3) == 31.508  # 63.015 / 2
    assert round(path.narrowest.attainable_gb_s, 3) == 63.015


def test_cube_mesh_rates_follow_the_links_of_each_pair() -> None:
    by_label = {(p.from_label, p.to_label): p for p in build(cached("dgx1v")).paths}
    assert by_label["GPU0", "GPU1"].theoretical_gb_s == pytest.approx(25.0)  # one link
    assert by_label["GPU0", "GPU3"].theoretical_gb_s == pytest.approx(50.0)  # two
    assert by_label["GPU0", "GPU5"].nvlinks == 0


@pytest.mark.parametrize("name", ["h100_x2_vm", "azure_ndv4_vm"])
def test_flat_guests_are_told(name: str) -> None:
    assert build(cached(name)).flat_tree


def test_the_kinds_of_nvlink_groups() -> None:
    kinds = {n: [(len(g.gpus), g.kind) for g in build(cached(n)).nvlink_groups] for n in MACHINES}
    assert kinds["dgx2"] == [(16, "switch")]
    assert kinds["dgx1v"] == [(8, "partial")]
    assert kinds["a100_x4"] == [(4, "mesh")]
    assert kinds["rtx3090_x2_bridge"] == [(2, "mesh")]
    assert kinds["power9_ac922"] == [(2, "mesh"), (2, "mesh")]
    assert kinds["l40s_x8"] == kinds["rtx4090_x8"] == []


def test_a_thousand_devices_have_their_tree() -> None:
    node = cached("thousand_devices")
    t = build(node)
    assert not isinstance(node.pci.devices, Missing)
    assert len(node.pci.devices) >= 1000
    assert sum(n.role != "host_bridge" for n in t.tree.values()) == len(node.pci.devices)


def test_power9_gpus_leave_by_nvlink_to_their_cpu() -> None:
    """AC922 with four GPUs: three links of 25 GB/s to the CPU carry what the GPU's PCIe link does not."""
    by_label = {(p.from_label, p.to_label): p for p in build(cached("power9_ac922")).paths}
    cross = by_label["GPU0", "GPU2"]
    assert [h.kind.value for h in cross.hops] == ["nvlink", "host_bridge", "inter_socket", "nvlink"]
    assert cross.theoretical_gb_s == pytest.approx(75.0)
    assert (cross.class_, cross.nvlinks, cross.upper_bound) == ("SYS", 0, True)
