"""NVLink checks on described machines with one planted fault, and on their healthy look-alikes."""

from __future__ import annotations

import msgspec
import pytest

from tests.checks.support import Row, assert_row, context, findings, healthy, variant
from topocheck.checks import registry
from topocheck.model.base import State

F, W, N, U = State.FAIL, State.WARN, State.NOTE, State.UNKNOWN
HGX = "hgx_h100_cx7"
GPU3 = "0000:5c:00.0 GPU3"
CLUSTER = "8d6a8e9c-3c1f-4a39-9f0b-0a7c1b2d3e4f"

ROWS = [
    Row(id="nvlink.links-down", machine=HGX, change={"gpu": {"3": {"links_down": [17]}}}, state=F, subject=GPU3,
        says=("17 NVLinks active", "siblings have 18", "down: 17")),
    Row(id="nvlink.links-down", machine=HGX, change={"gpus": {"links_down": [0, 1]}}, state=W, says=("16 of 18",)),
    Row(id="nvlink.links-down", machine=HGX, change={"gpus": {"links_down": list(range(18))}}, state=F,
        says=("all 18 NVLinks down",)),
    Row(id="nvlink.links-down", machine="rtx3090_x2_bridge", change={"gpu": {"0": {"links_down": [2]}}}, state=F,
        subject="0000:01:00.0 GPU0", says=("3 NVLinks active",)),
    Row(id="nvlink.links-down", machine="h06_h100_nvl_links_down", state=W, says=("bridge", "12 NVLinks")),
    Row(id="nvlink.links-down", machine="h14_bridge_pairs", change={"nvlink": {"pairs": {"2-3": 0}}}, state=N,
        says=("no bridge fitted",)),
    Row(id="nvlink.links-down", machine="h100_x2_vm", change={"nvlink": {"switch": 0}}, state=U, says=("host",)),
    Row(id="nvlink.links-down", machine=HGX,
        change={"nvml": {"DeviceGetNvLinkState|3|*": {"error": "Unknown"}}}, state=U, subject=GPU3),
    Row(id="nvlink.links-down", machine="h05_a100_pcie_alone", applies=False),
    Row(id="nvlink.links-down", machine="h07_h100_nvl_12_of_18"),
    Row(id="nvlink.links-down", machine="mig_node"),
    Row(id="nvlink.links-down", machine="l40s_x8", applies=False),
    Row(id="nvlink.errors", machine=HGX, change={"gpu": {"3": {"link_errors": {"4": 7}}}}, state=W, subject=GPU3,
        says=("NVLink 4 recovery: 7",)),
    Row(id="nvlink.errors", machine=HGX),
    Row(id="nvlink.p2p-disabled", machine=HGX, change={"p2p": {"override": True, "all": "NS"}}, state=F,
        says=("GPU0-GPU1", "NCCL refuses")),
    Row(id="nvlink.p2p-disabled", machine=HGX,
        change={"p2p": {"override": True, "all": "NS"}, "driver": {"confidential": 1}}, state=N),
    Row(id="nvlink.p2p-disabled", machine=HGX),
    Row(id="nvlink.p2p-disabled", machine="mig_node"),
    Row(id="nvlink.p2p-disabled", machine="l40s_x8", applies=False),
    Row(id="nvlink.partial-islands", machine="h14_bridge_pairs", state=N, subject="node",
        says=("{GPU0, GPU1}; {GPU2, GPU3}",)),
    Row(id="nvlink.partial-islands", machine="dgx1v", state=N, says=("not each with each",)),
    Row(id="nvlink.partial-islands", machine=HGX),
    Row(id="nvlink.partial-islands", machine="a100_x4"),
    Row(id="nvlink.partial-islands", machine="mig_node"),
    Row(id="nvlink.fabric-not-ready", machine=HGX, change={"gpu": {"3": {"fabric": {"state": 2}}}}, state=F,
        subject=GPU3, says=("In Progress", "802")),
    Row(id="nvlink.fabric-not-ready", machine=HGX, change={"gpu": {"3": {"fabric": False}}}, state=F, subject=GPU3,
        says=("siblings are registered",)),
    Row(id="nvlink.fabric-not-ready", machine=HGX,
        change={"gpus": {"fabric": {"clusterUuid": CLUSTER, "cliqueId": 7}}, "gpu": {"3": {"fabric":
                {"clusterUuid": CLUSTER, "cliqueId": 8}}}}, state=F, subject="node", says=("different",)),
    Row(id="nvlink.fabric-not-ready", machine=HGX,
        change={"gpus": {"fabric": {"clusterUuid": CLUSTER, "cliqueId": 7}}}),
    # A public capture of a healthy eight-GPU node: Completed, Success, clique 0, a cluster that is not zero.
    Row(id="nvlink.fabric-not-ready", machine=HGX,
        change={"gpus": {"fabric": {"clusterUuid": CLUSTER, "cliqueId": 0}}}),
    Row(id="nvlink.fabric-not-ready", machine="gb200_tray",
        change={"gpus": {"fabric": {"clusterUuid": "00000000-0000-0000-0000-000000000000", "cliqueId": 0}}}, state=F,
        subject="node", says=("without a cluster",)),
    Row(id="nvlink.fabric-not-ready", machine=HGX),
    Row(id="nvlink.fabric-not-ready", machine="gb200_tray"),
    Row(id="nvlink.fabric-not-ready", machine="h09a_h200_alone_vm", applies=False),
    Row(id="nvlink.fabric-not-ready", machine="dgx_a100", applies=False),
    Row(id="nvlink.fabric-manager", machine=HGX,
        change={"commands": {"nv-fabricmanager --version": "Fabric Manager version is : 570.86.15\n"}}, state=W,
        says=("570.86.15", "570.124.06")),
    Row(id="nvlink.fabric-manager", machine=HGX,
        change={"commands": {"nv-fabricmanager --version": "Fabric Manager version is : 570.124.06\n"}}),
    Row(id="nvlink.fabric-manager", machine="h10_fabric_in_progress", state=F, says=("failed", "4 NVSwitches")),
    Row(id="nvlink.fabric-manager", machine=HGX, change={"services": {"nvidia-fabricmanager": "failed"}}, state=W,
        says=("until the next reset",)),
    Row(id="nvlink.fabric-manager", machine=HGX, change={"services": {"nvidia-fabricmanager": "inactive"}}),
    Row(id="nvlink.fabric-manager", machine="h11_a40_needless_fabric_manager", state=N, says=("not needed here",)),
    Row(id="nvlink.fabric-manager", machine="h14_bridge_pairs", applies=False),
    Row(id="nvlink.imex", machine="gb200_tray", change={"services": {"nvidia-imex": "failed"}}, state=W),
    Row(id="nvlink.imex", machine="gb200_tray", change={"services": {"nvidia-imex": "inactive"}}, state=N),
    Row(id="nvlink.imex", machine="gb200_tray", change={"files": {"/dev/nvidia-caps-imex-channels/channel0": ""}}),
    Row(id="nvlink.imex", machine=HGX, change={"services": {"nvidia-imex": "failed"}}, applies=False),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_row(row: Row) -> None:
    """Each check fires on its fault, with subject and numbers, and is quiet on the look-alike."""
    assert_row(row)


def _with_errors(**errors: int) -> registry.Context:
    """Return the HGX node with these counters on the first link of its first GPU."""
    node = healthy(HGX).node
    assert isinstance(node.nvml.gpus, tuple)
    first = node.nvml.gpus[0]
    link = msgspec.structs.replace(first.nvlinks[0], errors=errors)
    gpu = msgspec.structs.replace(first, nvlinks=(link, *first.nvlinks[1:]))
    nvml = msgspec.structs.replace(node.nvml, gpus=(gpu, *node.nvml.gpus[1:]))
    return context(msgspec.structs.replace(node, nvml=nvml))


@pytest.mark.parametrize(
    ("errors", "state"),
    [
        ({"symbol_errors": 100000, "effective_errors": 3, "link_recoveries_successful": 2}, None),
        ({"replay": 100}, None),
        ({"replay": 101}, N),
        ({"recovery": 1}, W),
        ({"link_recoveries_failed": 1}, W),
    ],
)
def test_counters_by_what_they_mean(errors: dict[str, int], state: State | None) -> None:
    """What a healthy link counts is not judged; retries from a threshold on; a recovery from one."""
    found = findings("nvlink.errors", _with_errors(**errors))
    assert [f.state for f in found] == ([] if state is None else [state])


def test_fabric_findings_name_the_gpus() -> None:
    """Two GPUs with an error are named, the other six are not."""
    found = findings("nvlink.fabric-not-ready", healthy("h10b_fabric_mixed"))
    assert [f.subject.split()[1] for f in found] == ["GPU2", "GPU6"]


def test_a_lost_gpu_behind_a_switch_takes_no_links_from_others() -> None:
    """Links of the other GPUs lead to the switches, so they stay up."""
    assert findings("nvlink.links-down", variant(HGX, patch={"GPU5": {"lost": "1"}})) == ()
