"""P2P verdicts: each rule once where it fires and once where it stays quiet. Case numbers name public reports."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.topology import facts
from topocheck.gpudirect import judge
from topocheck.gpudirect.types import P2pVerdict
from topocheck.model.base import Missing, Reason
from topocheck.model.gpu import CudaFacts, CudaPeer
from topocheck.model.node import Node
from topocheck.model.system import SystemFacts
from topocheck.topology.build import build

A, B = "0000:03:00.0", "0000:04:00.0"
OFF = SystemFacts(iommu_devices=())
REDIRECT = 0x1D
"""SrcValid, ReqRedir, CmpltRedir, UpstreamFwd: as read in NVIDIA/nccl issue 2079."""


def pair(
    *, p2p: Any = None, a: Any = None, b: Any = None, system: SystemFacts = OFF, devices: Any = None, **more: Any
) -> Node:
    return facts.node(
        *(devices or facts.two_gpus_below_a_switch(acs_control_word=0)),
        gpus=(facts.nvml(0, A, **(a or {})), facts.nvml(1, B, **(b or {}))),
        p2p=facts.allowed(A, B) if p2p is None else p2p,
        system=system,
        **more,
    )


def verdict(node: Node) -> P2pVerdict:
    both = judge(node, build(node)).p2p
    assert both[0].verdict == both[1].verdict
    return both[0]


def texts(v: P2pVerdict, effect: str) -> str:
    return " | ".join(r.text for r in v.reasons if r.effect == effect)


def test_one_switch_and_nvmls_ok_is_yes() -> None:
    v = verdict(pair())
    assert (v.verdict, v.link) == ("yes", "pcie")
    assert all(r.evidence for r in v.reasons if r.effect == "yes")


def test_nvlink_is_yes_whatever_acs_and_iommu_do() -> None:
    system = SystemFacts(iommu_group_types={"DMA": 9})
    devices = facts.two_gpus_below_a_switch(acs_control_word=REDIRECT)
    v = verdict(
        pair(a={"nvlinks": facts.links(18, B)}, b={"nvlinks": facts.links(18, A)}, system=system, devices=devices)
    )
    assert (v.verdict, v.link) == ("yes", "nvlink")


@pytest.mark.parametrize("code", ["CNS", "GNS", "TNS", "DR", "NS"])
def test_a_refusal_is_no_and_spelt_out(code: str) -> None:
    v = verdict(pair(p2p=facts.allowed(A, B, read=code, write=code)))
    assert (v.verdict, v.link) == ("no", "none")
    assert code in texts(v, "no")
    assert all(r.fix for r in v.reasons if r.effect == "no")


def test_one_refused_direction_is_enough() -> None:
    assert verdict(pair(p2p=facts.allowed(A, B, write="NS"))).verdict == "no"


def test_the_drivers_own_unknown_stays_unknown() -> None:
    assert verdict(pair(p2p=facts.allowed(A, B, read="U", write="U"))).verdict == "unknown"


def test_the_nvlink_code_alone_refuses_nothing() -> None:
    """A public recording of a two-H100 guest: `topo -p2p n` says NS beside r and w OK and 18 links."""
    masked = {"nvlinks": facts.links(18, facts.MASKED, "switch")}
    v = verdict(pair(p2p=facts.allowed(A, B, nvlink="NS"), a=masked, b=masked))
    assert (v.verdict, v.link) == ("yes", "nvlink")


def cuda(can: bool) -> CudaFacts:
    peers = tuple(CudaPeer(from_address=x, to_address=y, can_access=can) for x, y in ((A, B), (B, A)))
    return CudaFacts(devices=(), peers=peers)


def test_cuda_answers_where_nvml_is_silent() -> None:
    assert verdict(pair(p2p=(), cuda=cuda(True))).verdict == "yes"
    assert verdict(pair(p2p=(), cuda=cuda(False))).verdict == "no"
    assert verdict(pair(p2p=())).verdict == "unknown"


def test_cuda_refusing_beats_nvml_permitting() -> None:
    assert verdict(pair(cuda=cuda(False))).verdict == "no"


def test_mig_takes_peer_access_away() -> None:
    v = verdict(pair(a={"mig_current": True}))
    assert v.verdict == "no"
    assert "MIG" in texts(v, "no")


def test_acs_that_redirects_degrades_and_names_the_ports() -> None:
    v = verdict(pair(devices=facts.two_gpus_below_a_switch(acs_control_word=REDIRECT)))
    assert v.verdict == "degraded"
    step = next(r for r in v.reasons if "ACS" in r.text)
    assert [e.source for e in step.evidence] == ["0000:02:00.0 ACSCtl", "0000:02:01.0 ACSCtl"]
    assert step.evidence[0].raw == "0x001d (SrcValid ReqRedir CmpltRedir UpstreamFwd)"
    assert "pci=noacs" not in step.fix


def test_source_validation_alone_redirects_nothing() -> None:
    assert verdict(pair(devices=facts.two_gpus_below_a_switch(acs_control_word=0x11))).verdict == "yes"


def test_root_ports_count_where_the_way_passes_them() -> None:
    """NVIDIA/nccl issue 2079: two root ports of one bridge, 0x001d on them."""
    devices = (
        facts.root_port("pci0000:00 00:03.1", acs_control_word=REDIRECT, numa_node=0),
        facts.gpu("pci0000:00 00:03.1 03:00.0", numa_node=0),
        facts.root_port("pci0000:00 00:03.2", acs_control_word=REDIRECT, numa_node=0),
        facts.gpu("pci0000:00 00:03.2 04:00.0", numa_node=0),
    )
    v = verdict(pair(devices=devices))
    assert v.verdict == "degraded"
    assert {e.source.split()[0] for r in v.reasons if "ACS" in r.text for e in r.evidence} == {
        "0000:00:03.1",
        "0000:00:03.2",
    }


def test_unread_acs_is_told_and_takes_no_yes_back() -> None:
    unread = facts.two_gpus_below_a_switch(acs_control_word=Missing(Reason.DENIED, "64 bytes"))
    v = verdict(pair(devices=unread, system=SystemFacts(iommu_group_types={"identity": 40})))
    assert v.verdict == "yes"
    assert "needs root" in texts(v, "info")
    none = facts.two_gpus_below_a_switch(acs_capable=False)
    assert "ACS" not in texts(verdict(pair(devices=none)), "info")


@pytest.mark.parametrize("kind", ["DMA", "DMA-FQ"])
def test_a_translating_iommu_degrades(kind: str) -> None:
    """NVIDIA/open-gpu-kernel-modules issue 1257: every call says success, the bytes differ."""
    v = verdict(pair(system=SystemFacts(iommu_group_types={kind: 40})))
    assert v.verdict == "degraded"
    assert "iommu=pt" in " ".join(r.fix or "" for r in v.reasons)


def test_the_groups_of_the_two_decide_before_the_machines() -> None:
    devices = tuple(
        msgspec.structs.replace(d, iommu_group="7", iommu_group_type="identity")
        for d in facts.two_gpus_below_a_switch()
    )
    assert verdict(pair(devices=devices, system=SystemFacts(iommu_group_types={"DMA": 40}))).verdict == "yes"


@pytest.mark.parametrize("option", ["iommu=pt", "iommu.passthrough=1", "intel_iommu=off"])
def test_kernel_options_tell_where_groups_do_not(option: str) -> None:
    assert (
        verdict(pair(system=SystemFacts(iommu_devices=("dmar0",), kernel_options=("quiet", option)))).verdict == "yes"
    )


def test_an_iommu_of_unknown_mode_leaves_it_open() -> None:
    assert verdict(pair(system=SystemFacts(iommu_devices=("dmar0",), kernel_options=("quiet",)))).verdict == "unknown"


def test_a_way_between_sockets_degrades_and_one_node_does_not() -> None:
    for node, expected in ((0, "yes"), (1, "degraded")):
        devices = (
            facts.root_port("pci0000:00 00:01.0", acs_capable=False, numa_node=0),
            facts.gpu("pci0000:00 00:01.0 03:00.0", numa_node=0),
            facts.root_port("pci0000:40 40:01.0", acs_capable=False, numa_node=node),
            facts.gpu("pci0000:40 40:01.0 04:00.0", numa_node=node),
        )
        assert verdict(pair(devices=devices)).verdict == expected


def test_a_lost_gpu_leaves_its_pairs_open_and_the_others_judged() -> None:
    """NVIDIA/k8s-device-plugin issue 2038: eight GPUs, one lost: 7 pairs open, 21 judged."""
    addresses = [f"0000:{i + 1:02x}:00.0" for i in range(8)]
    devices = [
        d
        for i, a in enumerate(addresses)
        for d in (
            facts.root_port(f"pci0000:00 00:{i + 1:02x}.0", acs_capable=False, numa_node=0),
            facts.gpu(f"pci0000:00 00:{i + 1:02x}.0 {a}", numa_node=0),
        )
    ]
    gpus = tuple(facts.nvml(i, a, lost=i == 5, error="GPU is lost" if i == 5 else "") for i, a in enumerate(addresses))
    n = facts.node(*devices, gpus=gpus, p2p=facts.allowed(*(a for i, a in enumerate(addresses) if i != 5)))
    verdicts = {(v.from_, v.to): v.verdict for v in judge(n, build(n)).p2p}
    assert sum(v == "unknown" for v in verdicts.values()) == 2 * 7
    assert sum(v == "yes" for v in verdicts.values()) == 2 * 21
    assert all((v == "unknown") == (addresses[5] in k) for k, v in verdicts.items())


def test_islands_by_bridges_leave_cross_pairs_to_pcie() -> None:
    """vllm-project/vllm PR 4159: four active links each, two islands; cross pairs go by PCIe."""
    addresses = [f"0000:{i + 1:02x}:00.0" for i in range(4)]
    devices = [
        d
        for i, a in enumerate(addresses)
        for d in (
            facts.root_port(f"pci0000:00 00:{i + 1:02x}.0", acs_capable=False),
            facts.gpu(f"pci0000:00 00:{i + 1:02x}.0 {a}"),
        )
    ]
    gpus = tuple(
        facts.nvml(i, a, nvlinks=facts.links(4, addresses[i ^ 1], version=3, speed=14062))
        for i, a in enumerate(addresses)
    )
    n = facts.node(*devices, gpus=gpus, p2p=facts.allowed(*addresses))
    t = build(n)
    roads = {(v.from_label, v.to_label): v.link for v in judge(n, t).p2p}
    assert roads["GPU0", "GPU1"] == roads["GPU2", "GPU3"] == "nvlink"
    assert roads["GPU0", "GPU2"] == roads["GPU1", "GPU3"] == "pcie"
    assert [g.gpus for g in t.nvlink_groups] == [tuple(addresses[:2]), tuple(addresses[2:])]


def test_dead_bridges_fall_to_pcie() -> None:
    """NVIDIA/DCGM issue 198: two H100 NVL, every link down on both."""
    from topocheck.model.gpu import NvLink

    dead = {"nvlinks": tuple(NvLink(link=i, active=False) for i in range(18)), "name": "NVIDIA H100 NVL"}
    v = verdict(pair(a=dead, b=dead))
    assert (v.verdict, v.link) == ("yes", "pcie")


@pytest.mark.parametrize(
    ("state", "status", "expected"),
    [
        ("Completed", "Success", "yes"),
        ("Completed", "Insufficient Resources", "no"),  # Azure/azhpc-images PR 506
        ("In Progress", "Success", "no"),  # NVIDIA/NVSentinel issue 883
        ("Not Supported", "Success", "yes"),
    ],
)
def test_the_fabric_must_have_taken_the_gpu_in(state: str, status: str, expected: str) -> None:
    told = {"nvlinks": facts.links(18, "0000:c1:00.0", "switch"), "fabric_state": state, "fabric_status": status}
    assert verdict(pair(a=told, b=told)).verdict == expected


def guest(clique_a: Any, clique_b: Any) -> Node:
    more = [{} if c is None else {"p2p_clique": c} for c in (clique_a, clique_b)]
    devices = (facts.gpu("pci0000:00 03:00.0", **more[0]), facts.gpu("pci0000:00 04:00.0", **more[1]))
    return pair(devices=devices, system=SystemFacts(hypervisor="KVM", iommu_devices=()), numa=1)


@pytest.mark.parametrize(
    ("a", "b", "expected"), [(1, 1, "yes"), (1, 2, "no"), (1, None, "no"), (None, None, "unknown"), (0, 0, "yes")]
)
def test_in_a_guest_the_hypervisors_clique_decides(a: Any, b: Any, expected: str) -> None:
    assert verdict(guest(a, b)).verdict == expected


def test_a_card_given_to_a_guest_has_no_peer_access_here() -> None:
    devices = tuple(
        msgspec.structs.replace(d, driver="vfio-pci") if d.address == B else d for d in facts.two_gpus_below_a_switch()
    )
    n = facts.node(*devices, gpus=(facts.nvml(0, A),))
    assert {v.verdict for v in judge(n, build(n)).p2p} == {"no"}


def test_without_a_driver_nothing_is_promised() -> None:
    n = facts.node(*facts.two_gpus_below_a_switch())
    v = judge(n, build(n)).p2p[0]
    assert v.verdict == "unknown"
    assert "driver is not loaded" in v.reasons[0].text


def test_a_gpu_that_this_container_does_not_get() -> None:
    n = facts.node(
        *facts.two_gpus_below_a_switch(), gpus=(facts.nvml(0, A),), system=SystemFacts(loaded_modules={"nvidia": 9})
    )
    assert "does not show GPU1" in judge(n, build(n)).p2p[0].reasons[0].text


def test_a_small_window_is_told() -> None:
    small = {"bar1_total_bytes": 256 << 20, "memory_total_bytes": 48 << 30}
    assert "256 MiB" in texts(verdict(pair(a=small)), "info")
    whole = {"bar1_total_bytes": 64 << 30, "memory_total_bytes": 48 << 30}
    assert "BAR1" not in texts(verdict(pair(a=whole)), "info")


@pytest.mark.parametrize(("name", "expected"), [("NVIDIA GB200", "no"), ("NVIDIA A100-SXM4-80GB", "yes")])
def test_a_product_that_lives_in_a_fabric_must_report_one(name: str, expected: str) -> None:
    """leptonai/gpud PR 1140: four GB200 without a fabric are broken; older products never reported any."""
    told = {"nvlinks": facts.links(18, "0000:c1:00.0", "switch"), "name": name, "fabric_state": "Not Supported"}
    assert verdict(pair(a=told, b=told)).verdict == expected


def test_a_hidden_sys_is_no_word_on_the_iommu() -> None:
    """A container that masks /sys: NVML permits peer access, and what lies between stays open."""
    n = facts.node(gpus=(facts.nvml(0, A), facts.nvml(1, B)), p2p=facts.allowed(A, B, ancestor="PIX"))
    v = verdict(n)
    assert v.verdict == "unknown"
    assert "IOMMU" in texts(v, "unknown")
