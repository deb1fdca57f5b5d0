"""Hops and rates. Rates are the standard's: gen 5 x16 = 63.015, gen 4 x16 = 31.508, gen 1 x16 = 4.000 GB/s."""

from __future__ import annotations

import pytest

from tests.topology import facts
from topocheck.model.base import Missing
from topocheck.model.node import Node
from topocheck.model.system import SystemFacts
from topocheck.topology.build import build
from topocheck.topology.links import maximum, pcie_hop
from topocheck.topology.types import HopKind

A, B, N = "0000:03:00.0", "0000:04:00.0", "0000:05:00.0"
GEN5, GEN4, GEN1 = (32.0, 16), (16.0, 16), (2.5, 16)
SWITCH = facts.two_gpus_below_a_switch()


def test_a_path_below_one_switch_has_two_links_and_is_no_bound() -> None:
    path = build(facts.node(*SWITCH, gpus=(facts.nvml(0, A), facts.nvml(1, B)))).path(A, B)
    assert [(h.kind, h.address, h.upstream) for h in path.hops] == [
        (HopKind.PCIE, A, "0000:02:00.0"),
        (HopKind.PCIE, B, "0000:02:01.0"),
    ]
    assert round(path.theoretical_gb_s, 3) == 63.015
    assert not path.upper_bound
    assert path.class_ == path.pcie_class == "PIX"


def test_the_narrowest_hop_is_the_uplink_that_trained_low() -> None:
    devices = [
        facts.root_port("pci0000:00 00:01.0", numa_node=0),
        facts.up("pci0000:00 00:01.0 01:00.0", link={"current": GEN4, "max": GEN5}),
        facts.down("pci0000:00 00:01.0 01:00.0 02:00.0"),
        facts.gpu("pci0000:00 00:01.0 01:00.0 02:00.0 03:00.0", numa_node=0),
        facts.root_port("pci0000:40 40:01.0", numa_node=1),
        facts.nic("pci0000:40 40:01.0 41:00.0", numa_node=1),
    ]
    n = facts.node(*devices, gpus=(facts.nvml(0, A),), nics=(facts.rdma("mlx5_0", "0000:41:00.0"),))
    path = build(n).path(A, "0000:41:00.0")
    assert path.class_ == "SYS"
    assert path.narrowest is not None
    assert path.narrowest.address == "0000:01:00.0"
    assert round(path.theoretical_gb_s, 3) == 31.508
    assert path.upper_bound  # the host bridges and the sockets between them tell no rate
    assert [h.kind.value for h in path.hops] == ["pcie", "pcie", "host_bridge", "inter_socket", "pcie"]
    assert path.hops[2].address == "pci0000:00-pci0000:40"
    assert path.hops[3].address == "node0-node1"


def hop(current, most, above=GEN5, *, state=0, **more):
    lower = facts.gpu("pci0000:00 00:01.0 03:00.0", link={"current": current, "max": most}, **more)
    upstream = facts.root_port("pci0000:00 00:01.0", link={"current": current, "max": above})
    return pcie_hop(lower, upstream, gpu=facts.nvml(0, lower.address, performance_state=state))


def test_a_resting_gpu_is_rated_by_what_its_link_can_do() -> None:
    h = hop(GEN1, GEN5, state=8)
    assert h.idle
    assert round(h.gb_s, 3) == 4.0
    assert round(h.working_gb_s, 3) == 63.015
    assert h.text == "gen 5 x16, idle at gen 1"


def test_a_suspended_device_rests_whatever_nvml_says() -> None:
    assert hop(GEN1, GEN5, state=0, runtime_status="suspended").idle


def test_a_busy_gpu_on_a_slow_link_is_not_idle() -> None:
    h = hop(GEN1, GEN5, state=0)
    assert not h.idle
    assert round(h.working_gb_s, 3) == 4.0


def test_a_narrow_link_is_no_sign_of_rest() -> None:
    h = hop((32.0, 8), GEN5, state=8)
    assert not h.idle
    assert round(h.working_gb_s, 3) == 31.508


def test_attainable_is_what_both_ends_can_do() -> None:
    h = hop(GEN4, GEN5, above=GEN4)
    assert round(h.attainable_gb_s, 3) == 31.508
    assert not h.idle  # nothing faster to wake up to


def test_config_space_comes_before_sysfs() -> None:
    h = hop(GEN1, GEN5, sta_speed_gt_s=32.0, sta_width_lanes=16, state=0)
    assert round(h.gb_s, 3) == 63.015


@pytest.mark.parametrize("width", [0, 63, 255])
def test_widths_that_mean_unknown_are_no_width(width: int) -> None:
    device = facts.gpu("pci0000:00 00:01.0", link={"current": (32.0, width), "max": (32.0, width)})
    assert isinstance(maximum(device).width_lanes, Missing)
    assert isinstance(pcie_hop(device, None).gb_s, Missing)


def test_an_emulated_port_has_no_say() -> None:
    """QEMU's ports claim whatever they like; XIO3130 claims 2.5 GT/s x1."""
    lower = facts.gpu("pci0000:00 00:01.0 03:00.0")
    port = facts.root_port(
        "pci0000:00 00:01.0", vendor=0x104C, device=0x8233, link={"current": (2.5, 1), "max": (2.5, 1)}
    )
    h = pcie_hop(lower, port)
    assert round(h.gb_s, 3) == round(h.attainable_gb_s, 3) == 63.015
    assert not h.formal
    assert pcie_hop(port, None).formal


def vm(*gpus, **more) -> Node:
    """The public recording of a two-H100 guest: both GPUs straight on bus 0, no NUMA node told."""
    devices = (facts.gpu("pci0000:00 00:06.0"), facts.gpu("pci0000:00 00:07.0"))
    return facts.node(*devices, gpus=gpus, numa=1, system=SystemFacts(hypervisor="KVM", iommu_devices=()), **more)


def test_the_two_h100_guest() -> None:
    a, b = "0000:00:06.0", "0000:00:07.0"
    masked = facts.links(18, facts.MASKED, "switch")
    t = build(vm(facts.nvml(0, a, nvlinks=masked), facts.nvml(1, b, nvlinks=masked)))
    path = t.path(a, b)
    assert (path.class_, path.pcie_class, path.nvlinks) == ("NV18", "PHB", 18)  # as topo -m and -mp print there
    assert path.theoretical_gb_s == pytest.approx(450.0)
    assert not path.upper_bound
    assert t.flat_tree
    assert [g.kind for g in t.nvlink_groups] == ["switch"]


def test_a_guests_pcie_path_passes_the_hypervisor() -> None:
    path = build(vm(facts.nvml(0, "0000:00:06.0"), facts.nvml(1, "0000:00:07.0"))).path("0000:00:06.0", "0000:00:07.0")
    assert path.class_ == "PHB"
    assert path.upper_bound
    assert HopKind.HYPERVISOR in [h.kind for h in path.hops]


def coherent(**gpu_more) -> Node:
    """A GPU whose PCIe link is a placeholder (gen 1 x1), beside a NIC of the same CPU."""
    devices = (
        facts.root_port("pci0009:00 0009:00:00.0", numa_node=0),
        facts.gpu(
            "pci0009:00 0009:00:00.0 0009:01:00.0",
            device=0x2342,
            numa_node=0,
            link={"current": (2.5, 1), "max": (2.5, 1)},
        ),
        facts.root_port("pci0000:00 0000:00:00.0", numa_node=0),
        facts.nic("pci0000:00 0000:00:00.0 0000:01:00.0", numa_node=0),
    )
    gpu = facts.nvml(0, "0009:01:00.0", "NVIDIA GH200 480GB", **gpu_more)
    return facts.node(*devices, gpus=(gpu,), nics=(facts.rdma("mlx5_0", "0000:01:00.0"),), numa=1)


def test_c2c_carries_what_the_placeholder_link_does_not() -> None:
    path = build(coherent(c2c_links=10, c2c_link_mb_s=44712)).path("0009:01:00.0", "0000:01:00.0")
    assert [h.kind.value for h in path.hops] == ["c2c", "host_bridge", "pcie"]
    assert path.hops[0].gb_s == pytest.approx(447.12)  # 10 x 44.712
    assert round(path.theoretical_gb_s, 3) == 63.015  # the NIC's link
    # a driver too old to tell: the product table's 450
    assert build(coherent()).path("0009:01:00.0", "0000:01:00.0").hops[0].gb_s == 450.0


def test_masked_sysfs_leaves_nvmls_link_and_ancestor() -> None:
    """A container that hides /sys: NVML alone knows the GPUs."""
    a, b = (
        facts.nvml(i, x, pcie_gen_current=4, pcie_gen_max=4, pcie_width_current=16, pcie_width_max=16)
        for i, x in enumerate((A, B))
    )
    t = build(facts.node(gpus=(a, b), p2p=facts.allowed(A, B, ancestor="PXB")))
    path = t.path(A, B)
    assert path.class_ == path.driver_class == "PXB"
    assert round(path.theoretical_gb_s, 3) == 31.508
    assert t.gpu(A).pci is None


def test_a_lost_gpu_keeps_its_pairs_with_the_reason() -> None:
    t = build(facts.node(*SWITCH, gpus=(facts.nvml(0, A), facts.nvml(1, B, lost=True))))
    for path in (t.path(A, B), t.path(B, A)):
        assert isinstance(path.class_, Missing)
        assert "GPU1" in path.class_.detail
        assert isinstance(path.theoretical_gb_s, Missing)
    assert not t.gpu(B).on_bus


def test_every_ordered_pair_is_there_once() -> None:
    n = facts.node(*SWITCH, gpus=(facts.nvml(0, A), facts.nvml(1, B)), nics=(facts.rdma("mlx5_0", N),))
    assert [(p.from_label, p.to_label) for p in build(n).paths] == [
        ("GPU0", "GPU1"),
        ("GPU1", "GPU0"),
        ("GPU0", "mlx5_0"),
        ("GPU1", "mlx5_0"),
    ]


def test_a_virtual_function_has_the_link_of_its_card() -> None:
    top = "pci0000:00 00:01.0"
    vf_link = {"current": (0.0, 0), "max": (0.0, 0)}
    devices = (
        facts.root_port(top, numa_node=0),
        facts.nic(f"{top} 05:00.0", numa_node=0, link={"current": GEN4, "max": GEN4}),
        facts.nic(f"{top} 05:00.2", numa_node=0, link=vf_link, physfn="0000:05:00.0"),
        facts.root_port("pci0000:00 00:02.0", numa_node=0),
        facts.gpu("pci0000:00 00:02.0 06:00.0", numa_node=0),
    )
    n = facts.node(
        *devices,
        gpus=(facts.nvml(0, "0000:06:00.0"),),
        nics=(facts.rdma("mlx5_2", "0000:05:00.2", physfn="0000:05:00.0"),),
    )
    path = build(n).path("0000:06:00.0", "0000:05:00.2")
    assert round(path.theoretical_gb_s, 3) == 31.508


def test_an_empty_node_has_an_empty_topology() -> None:
    t = build(Node(source="nothing"))
    assert (t.gpus, t.nics, t.paths, t.tree, t.flat_tree) == ((), (), (), {}, False)


def test_the_strap_value_of_a_two_level_switch_is_no_rate() -> None:
    """A public dump of a healthy H100 machine: outer PEX890xx ports at 5.0 GT/s x16, inner ones at 32.0."""
    slow = {"current": (5.0, 16), "max": (5.0, 16)}
    top = "pci0000:00 00:01.0"
    pex = {"subsystem_device_id": 0x0072, "device_id": 0xC030}
    devices = (
        facts.root_port(top, numa_node=0),
        facts.up(f"{top} 08:00.0", link=slow, **pex),
        facts.down(f"{top} 08:00.0 09:00.0"),
        facts.gpu(f"{top} 08:00.0 09:00.0 0f:00.0", numa_node=0),
        facts.root_port("pci0000:00 00:02.0", numa_node=0),
        facts.nic("pci0000:00 00:02.0 11:00.0", numa_node=0),
    )
    n = facts.node(*devices, gpus=(facts.nvml(0, "0000:0f:00.0"),), nics=(facts.rdma("mlx5_0", "0000:11:00.0"),))
    path = build(n).path("0000:0f:00.0", "0000:11:00.0")
    assert round(path.theoretical_gb_s, 3) == 63.015
    assert next(h for h in path.hops if h.address == "0000:08:00.0").formal


def test_an_ordinary_switch_at_gen_2_is_believed() -> None:
    slow = facts.up("pci0000:00 00:01.0 08:00.0", link={"current": (5.0, 16), "max": (5.0, 16)})
    assert not pcie_hop(slow, None).formal


def test_a_guest_that_hides_its_tree_shows_nothing_flat() -> None:
    gpus = (facts.nvml(0, A), facts.nvml(1, B))
    n = facts.node(gpus=gpus, p2p=facts.allowed(A, B, ancestor="X"), system=SystemFacts(hypervisor="KVM"))
    t = build(n)
    assert not t.flat_tree
    assert t.path(A, B).pcie_class == "PIX"  # two GPUs of one board
