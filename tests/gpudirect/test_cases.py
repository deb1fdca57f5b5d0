"""Cases from the field: what a public report's machine must be judged to be. Each name leads to its description."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.topology.described import cached
from topocheck.gpudirect import judge
from topocheck.gpudirect.types import GpuDirect
from topocheck.topology.build import build


def judged(name: str) -> GpuDirect:
    node = cached(name)
    return judge(node, build(node))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # NVIDIA/k8s-device-plugin issue 2038: 7 pairs open, the other 21 judged (RTX 5090: refused)
        ("h02_gpu_is_lost", {"unknown": 14, "no": 42}),
        # NVIDIA/DCGM issue 198: falls to PCIe, which works
        ("h06_h100_nvl_links_down", {"yes": 2}),
        # Azure/azhpc-images PR 506 and NVIDIA/NVSentinel issue 883
        ("h08_fabric_insufficient", {"no": 56}),
        ("h10_fabric_in_progress", {"no": 56}),
        # leptonai/gpud PR 1140
        ("h09b_gb200_no_fabric", {"no": 12}),
        # NVIDIA/nccl issue 2079; its near miss: source validation redirects nothing
        ("h12_acs_redirect", {"degraded": 2}),
        ("h12b_acs_source_validation", {"yes": 2}),
        # NVIDIA/open-gpu-kernel-modules issue 1257
        ("h13_iommu_translates", {"degraded": 2}),
    ],
)
def test_p2p(name: str, expected: dict[str, int]) -> None:
    assert Counter(v.verdict.value for v in judged(name).p2p) == expected


def test_two_islands_of_bridges() -> None:
    """vllm-project/vllm PR 4159."""
    roads = {(v.from_label, v.to_label): v.link for v in judged("h14_bridge_pairs").p2p}
    assert {k for k, r in roads.items() if r == "nvlink"} == {
        ("GPU0", "GPU1"),
        ("GPU1", "GPU0"),
        ("GPU2", "GPU3"),
        ("GPU3", "GPU2"),
    }


@pytest.mark.parametrize(
    ("name", "peermem", "dma_buf", "refused"),
    [
        # NVIDIA/nccl issue 1939: loaded and not registered; the open modules leave the other road
        ("h18_peermem_not_registered", "no", "no", True),
        ("h18b_peermem_not_registered_open", "no", "yes", False),
    ],
)
def test_a_module_that_never_registered(name: str, peermem: str, dma_buf: str, refused: bool) -> None:
    rdma = judged(name).rdma
    assert {(v.peermem.value, v.dma_buf.value) for v in rdma} == {(peermem, dma_buf)}
    assert {v.verdict.value == "no" for v in rdma} == {refused}


def test_only_the_nic_without_a_partner_is_refused() -> None:
    """leptonai/gpud PR 482."""
    by_nic: dict[str, set[str]] = {}
    for v in judged("h21_port_polling").rdma:
        by_nic.setdefault(v.to_label, set()).add(v.verdict.value)
    refused = [n for n, verdicts in by_nic.items() if "no" in verdicts]
    assert len(refused) == 1
    assert by_nic[refused[0]] == {"no"}


def test_a_flat_guest_keeps_its_nvlink_and_leaves_closeness_open() -> None:
    """NVIDIA/nccl issues 1674 and 1464."""
    found = judged("h26_vm_flat_a800")
    assert {(v.verdict.value, v.link) for v in found.p2p} == {("yes", "nvlink")}
    assert {v.verdict.value for v in found.rdma} == {"unknown"}
