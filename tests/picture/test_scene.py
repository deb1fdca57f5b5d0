"""What is drawn of a machine: in which box, with which links, in what state."""

from __future__ import annotations

import pytest

from tests.picture.drawn import changed, drawn, link, part
from topocheck.model.base import Finding, State
from topocheck.picture.scene import can_be_drawn, scene
from topocheck.picture.types import LinkState
from topocheck.picture.words import numbers, product
from topocheck.topology.types import Topology

FAULTS = {LinkState.REDUCED, LinkState.DOWN}


@pytest.mark.parametrize(
    "name", ["hgx_h100_cx7", "dgx1v", "dgx2", "gb200_tray", "laptop", "rtx4090_x8", "azure_ndv4_vm"]
)
def test_a_healthy_machine_has_no_faulty_link(name: str) -> None:
    assert [k.words for k in drawn(name)[2].links() if k.state in FAULTS] == []


def test_half_the_lanes() -> None:
    # 8 lanes x 32 GT/s x 128/130 / 8 bits = 31.5 GB/s
    half = link(changed("hgx_h100_cx7", patch={"GPU3": {"now": "5x8"}}), "GPU3")
    assert (half.state, half.mark, half.rate) == (LinkState.REDUCED, "x8 of x16", "32 GB/s")
    assert half.gb_s == pytest.approx(31.5, abs=0.02)


def test_a_slow_link() -> None:
    slow = link(changed("hgx_h100_cx7", patch={"mlx5_0": {"now": "3x16"}}), "mlx5_0")
    assert (slow.state, slow.mark) == (LinkState.REDUCED, "gen 3 of 5")


def test_the_slow_uplink_of_a_switch_is_drawn_on_it() -> None:
    slow = changed("hgx_h100_cx7", patch={"0000:16:00.0": {"now": "5x8"}})
    switch = next(p for p in slow.parts() if "0000:16:00.0" in p.addresses)
    assert switch.link.mark == "x8 of x16"
    assert {link(slow, "GPU0").state, link(slow, "mlx5_0").state} == {LinkState.OK}


def test_a_bridge_that_passes_through_is_folded_with_the_narrowest_rate() -> None:
    # dgx_a100: GPU0 hangs below 01:00.0 (upstream port), 02:00.0, 03:00.0 (upstream port of its own switch), 04:00.0.
    gpu = part(drawn("dgx_a100")[2], "GPU0")
    assert gpu.link.addresses == ("0000:05:00.0", "0000:03:00.0")
    folded = changed("dgx_a100", patch={"0000:03:00.0": {"now": "4x8"}})
    assert link(folded, "GPU0").mark == "x8 of x16"


def test_a_resting_gpu_is_idle_and_shows_the_rate_it_works_at() -> None:
    idle = link(drawn("laptop")[2], "GPU0")
    # gen 4 x8: 8 x 16 GT/s x 128/130 / 8 = 15.75 GB/s
    assert (idle.state, idle.mark, idle.rate) == (LinkState.IDLE, "idle at gen 1", "15.8 GB/s")


def test_a_lost_gpu_is_off_the_bus() -> None:
    _, topology, lost = drawn("gpu_lost")
    gone = next(g.label for g in topology.gpus if not g.on_bus)
    assert (link(lost, gone).state, link(lost, gone).rate) == (LinkState.DOWN, "")


def test_a_gpu_with_c2c_hangs_on_its_cpu() -> None:
    domains = drawn("gb200_tray")[2].domains
    assert [[p.title for p in d.parts if p.kind == "gpu"] for d in domains] == [["GPU0", "GPU1"], ["GPU2", "GPU3"], []]
    assert link(drawn("gb200_tray")[2], "GPU0").kind == "c2c"
    assert domains[-1].title == "NUMA node not reported"


def test_a_port_that_is_down_is_a_fault_where_a_check_says_so() -> None:
    down = changed("hgx_h100_cx7", patch={"mlx5_5": {"state": "DOWN/Polling"}})
    assert part(down, "mlx5_5").outward.state is LinkState.UNUSED  # type: ignore[union-attr]
    node, topology, _ = drawn("gb10")
    nic = next(n for n in topology.nics if n.rdma and n.rdma.ports[0].state == "DOWN")
    finding = Finding(id="rdma.port-down", state=State.WARN, subject="", title="", devices=(nic.address,))
    judged = part(scene(node, topology, [finding]), nic.label)
    assert (judged.finding, judged.outward.state) == (State.WARN, LinkState.DOWN)  # type: ignore[union-attr]


def test_a_note_marks_nothing() -> None:
    node, topology, _ = drawn("laptop")
    note = Finding(id="x.y", state=State.NOTE, subject="", title="", devices=(topology.gpus[0].address,))
    assert part(scene(node, topology, [note]), "GPU0").finding is None


def test_unused_nvlinks_are_a_fault_only_where_a_check_says_so() -> None:
    node, topology, before = drawn("a100_x4")
    gpu = topology.gpus[0]
    assert part(before, gpu.label).outward.state is LinkState.OK  # type: ignore[union-attr]
    found = Finding(id="nvlink.links-down", state=State.FAIL, subject="", title="", devices=(gpu.address,))
    after = part(scene(node, topology, [found]), gpu.label).outward
    up = sum(x.active is True for x in gpu.nvml.nvlinks)  # type: ignore[union-attr]
    every = len(gpu.nvml.nvlinks)  # type: ignore[union-attr]
    assert after is not None
    assert after.mark == (f"{up} of {every} up" if up < every else "")


@pytest.mark.parametrize(
    ("name", "mark"),
    [("h10_fabric_in_progress", "fabric in progress"), ("h08_fabric_insufficient", "fabric not ready")],
)
def test_nvlinks_without_a_fabric_are_down_where_a_check_says_so(name: str, mark: str) -> None:
    node, topology, before = drawn(name)
    gpu = topology.gpus[0]
    assert part(before, gpu.label).outward.state is LinkState.OK  # type: ignore[union-attr]
    found = Finding(id="nvlink.fabric-not-ready", state=State.FAIL, subject="", title="", devices=(gpu.address,))
    after = part(scene(node, topology, [found]), gpu.label).outward
    assert after is not None
    assert (after.state, after.mark) == (LinkState.DOWN, mark)


def test_a_bridge_that_is_half_seated() -> None:
    # The case's NVML shows 2 of 4 links of each card active, and the check warns of both cards.
    node, topology, _ = drawn("h56_bridge_half_seated")
    found = [
        Finding(id="nvlink.links-down", state=State.WARN, subject="", title="", devices=(g.address,))
        for g in topology.gpus
    ]
    (pair,) = scene(node, topology, found).fabrics[0].pairs
    assert (pair.link.state, pair.link.mark) == (LinkState.REDUCED, "2 of 4 up")


def test_what_joins_the_gpus() -> None:
    hgx, mesh, cube = (drawn(n)[2].fabrics for n in ("hgx_h100_cx7", "a100_x4", "dgx1v"))
    assert [(f.title, len(f.members), len(f.addresses)) for f in hgx] == [("NVSwitch", 8, 4)]
    assert [(f.title, f.name) for f in mesh] == [("NVLink mesh", "each pair 4 × NVLink 3 100 GB/s")]
    # Hybrid cube mesh: each of 8 GPUs has 4 neighbours, 16 pairs (nvidia-smi topo -m of a DGX-1).
    assert [(f.title, len(f.pairs)) for f in cube] == [("", 16)]


def test_many_equal_devices_are_stacked() -> None:
    _, topology, stacked = drawn("64 GPUs, 128 HCAs")
    boxes = [p for p in stacked.parts() if p.devices]
    # Two sockets with equal branches of a GPU and a NIC, and of a NIC alone (GPUs end before NICs do).
    assert len(boxes) <= 6
    assert sorted(a for p in boxes for a in p.devices) == sorted(x.address for x in (*topology.gpus, *topology.nics))


def test_what_a_finding_is_about_is_not_stacked() -> None:
    node, topology, _ = drawn("64 GPUs, 128 HCAs")
    gpu = topology.gpus[9]
    found = Finding(id="x.y", state=State.FAIL, subject="", title="", devices=(gpu.address,))
    assert part(scene(node, topology, [found]), gpu.label).finding is State.FAIL


def test_what_is_not_drawn_is_said() -> None:
    assert [p.others for p in drawn("thousand_devices")[2].parts() if p.kind == "complex"] == [56] * 8
    assert "flat PCI bus" in drawn("azure_ndv4_vm")[2].notes[0]
    assert drawn("no_pci")[2].notes


def test_devices_without_a_tree_cannot_be_drawn() -> None:
    assert can_be_drawn(drawn("laptop")[1])
    assert can_be_drawn(Topology())
    assert not can_be_drawn(Topology(gpus=drawn("laptop")[1].gpus))


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("MT2910 Family [ConnectX-7]", "ConnectX-7"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3"),
        ("GH100 [H100 SXM5 80GB]", "H100 SXM5 80GB"),
        ("", ""),
    ],
)
def test_trade_names(name: str, short: str) -> None:
    assert product(name) == short


def test_numbers_are_a_kernel_list() -> None:
    assert numbers([8, 0, 1, 2, 3]) == "0-3,8"
