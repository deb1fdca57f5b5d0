from __future__ import annotations

import msgspec

from tests.topology import facts
from topocheck.model.base import ABSENT, Missing, Reason
from topocheck.model.gpu import NvmlGpu
from topocheck.model.net import NetInterface, RdmaDevice
from topocheck.topology.build import build
from topocheck.topology.types import NearestNics

SWITCH = facts.two_gpus_below_a_switch()
A, B, N = "0000:03:00.0", "0000:04:00.0", "0000:05:00.0"


def labels(node) -> list[tuple[str, str]]:
    return [(g.label, g.address) for g in build(node).gpus]


def test_only_display_functions_are_gpus() -> None:
    audio = facts.function("pci0000:00 00:02.0 09:00.1", 0x10DE, 0x22BA, 0x040300)
    switch = facts.function("pci0000:00 00:02.0 0a:00.0", 0x10DE, 0x22A3, 0x068000)
    desktop = facts.function("pci0000:00 00:02.0 09:00.0", 0x10DE, 0x2684, 0x030000)
    assert labels(facts.node(audio, switch, desktop)) == [("GPU0", "0000:09:00.0")]


def test_nvmls_numbers_come_first() -> None:
    # a driver that leaves one GPU alone numbers the others without it
    n = facts.node(*SWITCH, gpus=(facts.nvml(0, B),))
    assert labels(n) == [("GPU0", B), ("GPU1", A)]


def test_a_gpu_that_cannot_tell_its_address_gets_the_free_one() -> None:
    lost = NvmlGpu(index=1, address=Missing(Reason.UNSUPPORTED), lost=True, error="GPU is lost")
    t = build(facts.node(*SWITCH, gpus=(facts.nvml(0, A), lost)))
    assert [(g.label, g.address, g.on_bus) for g in t.gpus] == [("GPU0", A, True), ("GPU1", B, False)]


def test_without_a_free_function_its_number_is_its_name() -> None:
    lost = NvmlGpu(index=2, address=Missing(Reason.UNSUPPORTED), lost=True)
    n = facts.node(*SWITCH, gpus=(facts.nvml(0, A), facts.nvml(1, B), lost))
    assert labels(n)[-1] == ("GPU2", "nvml:2")
    assert all(isinstance(p.class_, Missing) for p in build(n).paths if "nvml:2" in (p.from_, p.to))


def test_a_card_given_to_a_guest_is_listed_and_claims_no_nvml_number() -> None:
    given = facts.gpu("pci0000:00 00:03.0 08:00.0", driver="vfio-pci")
    nameless = NvmlGpu(index=1, address=Missing(Reason.UNSUPPORTED), lost=True)
    n = facts.node(*SWITCH, given, gpus=(facts.nvml(0, A), nameless))
    assert labels(n) == [("GPU0", A), ("GPU1", B), ("GPU2", "0000:08:00.0")]


def test_virtual_functions_beside_their_card_are_no_gpus_here() -> None:
    vf = facts.gpu("pci0000:00 00:01.0 01:00.0 02:00.0 03:00.4", physfn=A)
    assert ("GPU2", "0000:03:00.4") not in labels(facts.node(*SWITCH, vf))
    # in the guest it was given to, it stands alone and is one
    assert labels(facts.node(facts.gpu("pci0000:00 00:06.0", physfn=ABSENT))) == [("GPU0", "0000:00:06.0")]


def test_a_config_space_of_all_ones_is_a_card_off_the_bus_unless_it_sleeps() -> None:
    gone = facts.gpu("pci0000:00 00:02.0 06:00.0", config_all_ones=True)
    asleep = facts.gpu("pci0000:00 00:03.0 07:00.0", config_all_ones=True, runtime_status="suspended")
    assert [g.on_bus for g in build(facts.node(gone, asleep)).gpus] == [False, True]


def test_numa_node_of_the_bridge_above_stands_in() -> None:
    devices = (
        facts.root_port("pci0000:40 40:01.0", numa_node=1),
        facts.gpu("pci0000:40 40:01.0 41:00.0"),
        facts.root_port("pci0000:00 00:01.0"),
        facts.gpu("pci0000:00 00:01.0 01:00.0"),
    )
    t = build(
        facts.node(*devices, gpus=(facts.nvml(0, "0000:01:00.0", cpu_affinity="0-7"), facts.nvml(1, "0000:41:00.0")))
    )
    assert [g.cpu_node for g in t.gpus] == [0, 1]  # CPUs 0-7 are node 0's; node 1 by the root port
    assert t.path("0000:01:00.0", "0000:41:00.0").class_ == "SYS"


def test_memory_node_and_cpu_node_are_two_things() -> None:
    g = build(facts.node(*SWITCH, gpus=(facts.nvml(0, A, numa_node=26), facts.nvml(1, B)))).gpu(A)
    assert (g.cpu_node, g.memory_node) == (0, 26)


def test_other_makers_are_listed_and_have_paths() -> None:
    amd = facts.function("pci0000:00 00:04.0 0b:00.0", 0x1002, 0x74A1, 0x120000)
    gaudi = facts.function("pci0000:00 00:05.0 0c:00.0", 0x1DA3, 0x1020, 0x120000)
    board_vga = facts.function("pci0000:00 00:06.0", 0x1A03, 0x2000, 0x030000)
    cpu_graphics = facts.function("pci0000:00 00:02.0", 0x8086, 0x46A6, 0x030000)
    t = build(facts.node(*SWITCH, amd, gaudi, board_vga, cpu_graphics))
    assert [(a.label, a.vendor) for a in t.accelerators] == [("ACC0", "AMD"), ("ACC1", "Habana Labs")]
    assert t.path("0000:0b:00.0", "0000:0c:00.0").class_ == "PHB"
    assert t.path(A, "0000:0b:00.0").class_ == "PHB"


def test_nics_stand_in_the_order_of_their_names_and_software_apart() -> None:
    nics = (
        facts.rdma("mlx5_10", N),
        facts.rdma("mlx5_2", N),
        RdmaDevice(name="siw_eth0"),
        facts.rdma("mlx5_bond_0", N, netdevs=("bond0",)),
    )
    net = facts.node(*SWITCH, nics=nics)
    t = build(net)
    assert [n.label for n in t.nics] == ["mlx5_2", "mlx5_10", "mlx5_bond_0"]
    assert t.software_rdma == ("siw_eth0",)


def test_interfaces_by_name_else_by_function() -> None:
    n = facts.node(*SWITCH, nics=(facts.rdma("mlx5_0", N), facts.rdma("mlx5_bond_0", N, netdevs=("bond0",))))
    interfaces = (NetInterface(name="ens1", address=N), NetInterface(name="bond0"), NetInterface(name="lo"))
    n = msgspec.structs.replace(n, net=msgspec.structs.replace(n.net, interfaces=interfaces))
    assert [[i.name for i in x.interfaces] for x in build(n).nics] == [["ens1"], ["bond0"]]


def test_nearest_nics_are_all_of_the_best_class() -> None:
    far = (facts.root_port("pci0000:40 40:01.0", numa_node=1), facts.nic("pci0000:40 40:01.0 41:00.0", numa_node=1))
    n = facts.node(*SWITCH, *far, nics=(facts.rdma("mlx5_0", N), facts.rdma("mlx5_1", "0000:41:00.0")))
    nearest = {x.gpu: (x.nics, x.class_) for x in build(n).nearest_nics}
    assert nearest[A] == ((N,), "PIX")


def _apart(*numa_of_nics: object) -> NearestNics:
    """The nearest NICs of a GPU of node 0, all on host bridges of their own."""
    devices = [facts.gpu("pci0008:00 0008:01:00.0", numa_node=0)]
    for i, numa in enumerate(numa_of_nics):
        devices.append(facts.nic(f"pci000{i}:00 000{i}:01:00.0", numa_node=numa))
    nics = tuple(facts.rdma(f"mlx5_{i}", f"000{i}:01:00.0") for i in range(len(numa_of_nics)))
    return build(facts.node(*devices, nics=nics)).nearest_nics[0]


def test_a_nic_that_may_be_on_the_gpus_node_leaves_open_which_is_the_nearest() -> None:
    """SYS then stands for "not reported" too: the NIC without a node could be nearer than the others, or as far."""
    near = _apart(ABSENT, 1, 1)
    assert (near.nics, near.untold) == ((), "the NUMA node of mlx5_0 is not known")
    assert _apart(1, 1).nics == ("0000:01:00.0", "0001:01:00.0")
    # One of the GPU's own node is as near as any without a common bridge can be.
    assert (_apart(ABSENT, 0, 1).nics, _apart(ABSENT, 0, 1).class_) == (("0001:01:00.0",), "NODE")


def test_no_nic_has_a_reason() -> None:
    nearest = build(facts.node(*SWITCH)).nearest_nics[0]
    assert nearest.nics == ()
    assert isinstance(nearest.class_, Missing)
