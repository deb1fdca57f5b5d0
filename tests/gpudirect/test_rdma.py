from __future__ import annotations

from typing import Any

import pytest

from tests.topology import facts
from tests.topology.described import cached
from topocheck.gpudirect import judge
from topocheck.gpudirect.types import RdmaVerdict
from topocheck.model.base import ABSENT, DENIED, Missing
from topocheck.model.gpu import CudaDevice, CudaFacts
from topocheck.model.node import Node
from topocheck.model.system import SystemFacts
from topocheck.topology.build import build

A, N = "0000:03:00.0", "0000:05:00.0"
BASE: dict[str, Any] = {
    "iommu_devices": (),
    "modules": {"nvidia": "570.1", "nvidia_peermem": "570.1", "mlx5_core": ""},
    "loaded_modules": {"nvidia": 5, "nvidia_peermem": 0, "mlx5_core": 1},
    "memory_peers": ("nv_mem", "nv_mem_nc"),
    "nvidia_module_flavor": "open",
    "kernel_release": "6.8.0-90-generic",
}


def machine(*, system: Any = None, gpu: Any = None, state: Any = "ACTIVE", devices: Any = None, **more: Any) -> Node:
    return facts.node(
        *(devices or facts.two_gpus_below_a_switch(acs_control_word=0)),
        gpus=(facts.nvml(0, A, **(gpu or {})),),
        nics=(facts.rdma("mlx5_0", N, state),),
        system=SystemFacts(**(BASE | (system or {}))),
        **more,
    )


def verdict(node: Node) -> RdmaVerdict:
    return next(v for v in judge(node, build(node)).rdma if v.from_ == A)


def roads(node: Node) -> tuple[str, str, str]:
    v = verdict(node)
    return v.verdict.value, v.peermem.value, v.dma_buf.value


def test_both_roads_below_one_switch() -> None:
    v = verdict(machine())
    assert roads(machine()) == ("yes", "yes", "yes")
    assert all(r.evidence for r in v.reasons if r.effect == "yes")


NO_PEERS = {"memory_peers": ABSENT}


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        # NVIDIA/nccl issue 1939: loaded, never registered
        (NO_PEERS | {"nvidia_module_flavor": "proprietary"}, ("no", "no", "no")),
        (NO_PEERS, ("yes", "no", "yes")),
        ({"memory_peers": ()}, ("yes", "no", "yes")),
        ({"memory_peers": DENIED, "nvidia_module_flavor": "proprietary"}, ("unknown", "unknown", "no")),
        # a module that is in use has registered
        (NO_PEERS | {"loaded_modules": {"nvidia_peermem": 1}}, ("yes", "yes", "yes")),
        # the older module
        (
            {"modules": {"nv_peer_mem": "1.0-9"}, "loaded_modules": {}, "memory_peers": ("nv_mem",)},
            ("yes", "yes", "yes"),
        ),
        ({"modules": {"nvidia": ""}, "loaded_modules": {"nvidia": 1}}, ("yes", "no", "yes")),
        ({"modules": {}, "loaded_modules": {}, "nvidia_module_flavor": ABSENT}, ("unknown", "unknown", "unknown")),
        ({"kernel_release": "5.4.0-1"}, ("yes", "yes", "no")),
        ({"kernel_release": "5.11.0"}, ("yes", "yes", "no")),
        ({"kernel_release": "5.12.0"}, ("yes", "yes", "yes")),
        ({"kernel_release": ABSENT}, ("yes", "yes", "unknown")),
    ],
)
def test_one_road_is_enough(system: dict[str, Any], expected: tuple[str, str, str]) -> None:
    assert roads(machine(system=system)) == expected


def cuda(**more: Any) -> CudaFacts:
    return CudaFacts(devices=(CudaDevice(ordinal=0, address=A, **more),))


def test_cudas_word_on_dma_buf_comes_before_the_modules() -> None:
    assert roads(machine(cuda=cuda(dma_buf=False)))[2] == "no"
    assert roads(machine(cuda=cuda(dma_buf=True), system={"nvidia_module_flavor": ABSENT}))[2] == "yes"


def test_a_nic_driver_that_is_not_known_to_register_leaves_dma_buf_open() -> None:
    devices = tuple(
        facts.nic(" ".join(d.chain), driver="mlx4_core", numa_node=0) if d.address == N else d
        for d in facts.two_gpus_below_a_switch(acs_control_word=0)
    )
    assert roads(machine(devices=devices))[2] == "unknown"


def test_cudas_attribute_comes_before_the_product() -> None:
    assert verdict(machine(cuda=cuda(gpudirect_rdma=False))).verdict == "no"
    geforce = {"name": "NVIDIA GeForce RTX 4090"}
    assert verdict(machine(gpu=geforce)).verdict == "no"
    assert verdict(machine(gpu=geforce, cuda=cuda(gpudirect_rdma=True))).verdict == "yes"
    assert verdict(machine(gpu={"name": "NVIDIA Q900 FutureCard"})).verdict == "unknown"


@pytest.mark.parametrize(
    ("state", "expected"), [("ACTIVE", "yes"), ("DOWN", "no"), ("INIT", "no"), (Missing(ABSENT.reason), "unknown")]
)
def test_something_must_be_at_the_other_end(state: Any, expected: str) -> None:
    assert verdict(machine(state=state)).verdict == expected


def split(node_of_nic: int | Missing, numa: int = 2, **more: Any) -> Node:
    devices = (
        facts.root_port("pci0000:00 00:01.0", acs_capable=False, numa_node=0),
        facts.gpu("pci0000:00 00:01.0 03:00.0", numa_node=0, **more),
        facts.root_port("pci0000:40 40:01.0", acs_capable=False, numa_node=node_of_nic),
        facts.nic("pci0000:40 40:01.0 05:00.0", numa_node=node_of_nic),
    )
    return machine(devices=devices, numa=numa)


@pytest.mark.parametrize("node", [0, 1])
def test_host_bridges_on_the_way_degrade(node: int) -> None:
    v = verdict(split(node))
    assert v.verdict == "degraded"
    assert v.peermem == v.dma_buf == "yes"


@pytest.mark.parametrize(("node", "expected"), [(0, "yes"), (1, "degraded")])
def test_c2c_is_no_detour_on_its_own_cpu(node: int, expected: str) -> None:
    import msgspec

    n = split(node)
    gpus = (facts.nvml(0, A, "NVIDIA GH200 480GB", c2c_links=10, c2c_link_mb_s=44712),)
    n = msgspec.structs.replace(n, nvml=msgspec.structs.replace(n.nvml, gpus=gpus))
    assert verdict(n).verdict == expected


def test_c2c_to_a_nic_whose_cpu_nobody_knows_is_unknown() -> None:
    import msgspec

    def tray(numa: int) -> RdmaVerdict:
        n = split(ABSENT, numa)
        gpus = (facts.nvml(0, A, "NVIDIA GH200 480GB", c2c_links=10, c2c_link_mb_s=44712),)
        return verdict(msgspec.structs.replace(n, nvml=msgspec.structs.replace(n.nvml, gpus=gpus)))

    step = next(r for r in tray(2).reasons if r.effect == "unknown")
    assert tray(2).verdict == "unknown"
    assert "the NUMA node of mlx5_0 is not known" in step.text
    assert "numa_node" in (step.fix or "")
    assert tray(1).verdict == "yes"  # one node has all CPUs


def test_no_crossing_is_claimed_that_nobody_knows_of() -> None:
    def way(node_of_nic: int | Missing, numa: int) -> str:
        return next(r.text for r in verdict(split(node_of_nic, numa)).reasons if "crosses" in r.text)

    assert "two host bridges of one NUMA node" in way(ABSENT, 1)
    assert "the NUMA node of mlx5_0 is not known" in way(ABSENT, 2)
    assert "crosses NUMA nodes (SYS)" in way(1, 2)


def test_a_guest_of_one_node_has_nothing_to_cross() -> None:
    """cloud_vm_17nic: one socket, one NUMA node, numa_node -1 everywhere; nvidia-smi says SYS there."""
    t = build(cached("cloud_vm_17nic"))
    texts = {r.text for v in judge(cached("cloud_vm_17nic"), t).rdma for r in v.reasons if "crosses" in r.text}
    assert texts == {"traffic crosses two host bridges of one NUMA node (SYS), at less than the link's rate"}


def test_a_translating_iommu_and_acs_degrade() -> None:
    assert (
        verdict(machine(system={"iommu_devices": ("dmar0",), "iommu_group_types": {"DMA-FQ": 9}})).verdict == "degraded"
    )
    redirecting = facts.two_gpus_below_a_switch(acs_control_word=0x1D)
    v = verdict(machine(devices=redirecting))
    assert v.verdict == "degraded"
    assert any("0000:02:02.0" in (r.fix or "") for r in v.reasons)


def test_a_small_window_degrades() -> None:
    small = {"bar1_total_bytes": 256 << 20, "memory_total_bytes": 80 << 30}
    assert verdict(machine(gpu=small)).verdict == "degraded"
    assert verdict(machine(gpu={"bar1_total_bytes": 128 << 30, "memory_total_bytes": 80 << 30})).verdict == "yes"


def test_a_flat_guest_cannot_tell_how_close() -> None:
    """NVIDIA/nccl issue 1674: eight A800 in a guest, all PHB, NUMA of the NICs not reported: no cabling advice."""
    devices = (facts.gpu("pci0000:00 03:00.0", numa_node=1), facts.nic("pci0000:00 05:00.0"))
    v = verdict(machine(devices=devices, system={"hypervisor": "KVM"}))
    assert v.verdict == "unknown"
    assert not any("slot" in (r.fix or "") or "cable" in (r.fix or "") for r in v.reasons)
    assert any("NCCL_TOPO_FILE" in (r.fix or "") for r in v.reasons)


@pytest.mark.parametrize(("ats", "expected"), [(True, "yes"), (False, "degraded"), (DENIED, "unknown")])
def test_a_guest_with_switches_needs_ats(ats: Any, expected: str) -> None:
    devices = tuple(
        facts.nic(" ".join(d.chain), ats_enabled=ats, numa_node=0) if d.address == N else d
        for d in facts.two_gpus_below_a_switch()
    )
    assert verdict(machine(devices=devices, system={"hypervisor": "KVM"})).verdict == expected


def test_a_lost_gpu_is_open_on_every_road() -> None:
    assert roads(machine(gpu={"lost": True})) == ("unknown", "unknown", "unknown")


def test_a_gpu_that_waits_for_its_fabric_cannot_be_used() -> None:
    assert verdict(machine(gpu={"fabric_state": "In Progress"})).verdict == "no"
    assert verdict(machine(gpu={"fabric_state": "Completed", "fabric_status": "Success"})).verdict == "yes"


@pytest.mark.parametrize(("architecture", "advised"), [(5, False), (6, True), (9, True)])
def test_the_open_modules_are_advised_from_turing_on(architecture: int, advised: bool) -> None:
    # NVML numbers Volta 5, Turing 6, Hopper 9. No peer-memory module is loaded: DMA-BUF is the road that is missing.
    system = {"nvidia_module_flavor": "proprietary", "modules": {"nvidia": "570.1"}, "loaded_modules": {"nvidia": 5}}
    v = verdict(machine(system=system, gpu={"architecture": architecture}))
    (step,) = [r for r in v.reasons if r.text.startswith("DMA-BUF")]
    assert step.effect == "no"
    assert ("open kernel modules" in (step.fix or "")) is advised
