"""Cases of the second series about peer traffic, BAR windows, links and tasks: state, subject, cause and fix."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checks.support import Row, assert_row, findings, healthy, variant
from topocheck.model.base import Finding, Missing, State
from topocheck.placement.gres import gres

HGX = "hgx_h100_cx7"
F, W, N, U = State.FAIL, State.WARN, State.NOTE, State.UNKNOWN
CARDS = "rtx6000ada_x4"

ROWS = [
    Row(id="pcie.bridge-window-small", machine="h43_bridge_window", state=W, subject="0000:06:00.0 GPU5",
        says=("256 MiB", "32 GiB", "0000:00:1d.4", "12 GiB", "firmware setup", "slot whose bridge", "is on")),
    Row(id="pcie.bridge-window-small", machine=HGX),
    Row(id="pcie.bridge-window-small", machine="rtx4090_x8"),
    Row(id="p2p.offered-beyond-product", machine="h45_peer_access_offered", state=W, subject="node",
        says=("RTX 4090", "sold without", "topocheck bw", "NCCL_P2P_DISABLE=1")),
    Row(id="p2p.offered-beyond-product", machine="rtx4090_x8"),
    Row(id="p2p.offered-beyond-product", machine=CARDS, applies=False),
    Row(id="p2p.hidden-from-task", machine="h46_task_of_one_gpu", state=W, subject="process",
        says=("4 tasks", "--gpus-per-node", "CUDA_VISIBLE_DEVICES")),
    Row(id="p2p.hidden-from-task", machine="h46_task_of_one_gpu", change={"environment": {"SLURM_NTASKS": "1"}}),
    Row(id="p2p.hidden-from-task", machine="h47_step_of_two_gpus"),
    Row(id="p2p.hidden-from-task", machine=HGX, applies=False),
    Row(id="p2p.acs-redirect", machine="h49_acs_above_nics", state=W, subject="node",
        says=("GPU0-mlx5_0", "config_acs=xxx00xx@", "setpci")),
    Row(id="p2p.refused", machine="h47_step_of_two_gpus"),
    Row(id="rdma.verbs-device-missing", machine="h44_one_nic_refused", state=F, subject="0000:3b:00.0 mlx5_1",
        says=("/dev/infiniband/uverbs1", "docker run --device=/dev/infiniband")),
    Row(id="rdma.verbs-device-missing", machine=HGX),
    Row(id="rdma.no-gdr-path", machine="h48_no_peer_memory_interface", state=W, subject="node",
        says=("no interface", "MLNX_OFED", "linux-nvidia")),
    Row(id="pcie.kernel-option-ignored", machine=CARDS, change={"system": {"cmdline": "ro pci=noacs,realloc"}}, state=N,
        says=("'noacs'", "disable_acs_redir")),
    Row(id="pcie.kernel-option-ignored", machine=CARDS, change={"system": {"cmdline": "iommu=pt iommu=nopt"}}, state=N,
        says=("'iommu=pt' has no effect",)),
    Row(id="pcie.kernel-option-ignored", machine=CARDS, change={"system": {"cmdline": "pci=realloc,noats iommu=pt"}}),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_rows(row: Row) -> None:
    assert_row(row)


def only(id_: str, name: str, **overrides: Any) -> Finding:
    """Return the one finding of a check that is more than a note, of several states the worst."""
    found = findings(id_, variant(name, **overrides) if overrides else healthy(name))
    loud = [f for state in (F, W, U) for f in found if f.state is state]
    assert loud
    return loud[0]


def test_the_window_is_quoted_and_resizable_bar_is_not_blamed() -> None:
    """Rows 13 to 16 of the bridge are its windows; the siblings show that Resizable BAR is on."""
    c = healthy("h43_bridge_window")
    f = only("pcie.bridge-window-small", "h43_bridge_window")
    assert any(e.source.endswith("0000:00:1d.4/resource row 15") for e in f.evidence)
    assert any("no space" in e.raw for e in f.evidence)
    assert findings("pcie.bar1-small", c) == ()
    assert findings("consistency.siblings-differ", c) == ()


def test_a_kernel_without_sriov_has_its_windows_elsewhere() -> None:
    """Eleven rows instead of seventeen (CONFIG_PCI_IOV off): the last four are the windows all the same."""
    f = only("pcie.bridge-window-small", "h43_bridge_window", patch={"all root_port": {"iov": "0"}})
    assert any(e.source.endswith("0000:00:1d.4/resource row 9") for e in f.evidence)


def test_the_windows_can_be_read_without_root() -> None:
    f = only("pcie.bridge-window-small", "h43_bridge_window", system={"root": False})
    assert "12 GiB" in f.title
    assert not any("no space" in e.raw for e in f.evidence)


def test_equal_small_bars_are_no_matter_of_windows() -> None:
    """Where all six have 256 MiB, Resizable BAR is off; windows are as small as what is below them."""
    patch = {f"GPU{i}": {"bars": "16M,256M6p,32M6p"} for i in range(6)}
    c = variant("h43_bridge_window", patch=patch, gpus={"bar1_mib": 256}, files={"/dev/kmsg": ""})
    assert findings("pcie.bridge-window-small", c) == ()
    assert "Resizable BAR" in (findings("pcie.bar1-small", c)[0].fix or "")


REDIRECT = {"path GPU0": {"acs": "0x1d"}, "path GPU1": {"acs": "0x1d"}}


@pytest.mark.parametrize(
    ("kernel", "says", "says_not"),
    [
        ("4.18.0", "a unit at boot", "pci="),
        ("5.15.0-119-generic", "pci=disable_acs_redir=", "config_acs"),
        ("6.11.0", "pci=config_acs=xxx00xx@", "disable_acs_redir"),
    ],
)
def test_the_option_is_one_that_the_kernel_knows(kernel: str, says: str, says_not: str) -> None:
    """disable_acs_redir came with 4.19, config_acs with 6.11 (Documentation/admin-guide/kernel-parameters.txt)."""
    f = only("p2p.acs-redirect", CARDS, patch=REDIRECT, system={"root": True, "kernel": kernel})
    assert says in (f.fix or "")
    assert says_not not in (f.fix or "")


def test_the_option_names_every_port() -> None:
    """A list replaces the one that stands there: those it names, and ports that were cleared by hand, stay in it."""
    system = {"root": True, "kernel": "5.15.0", "cmdline": "ro pci=disable_acs_redir=0000:99:00.0"}
    f = only("p2p.acs-redirect", CARDS, patch={"path GPU0": {"acs": "0x1d"}}, system=system)
    option = (f.fix or "").partition("pci=disable_acs_redir=")[2].partition("'")[0].split(";")
    assert "0000:99:00.0" in option
    assert len(option) > 2  # the ports of the others, which do not redirect now
    assert "ECAP_ACS+6.w=0:c" in (f.fix or "")


def test_nccl_has_a_way_round_for_nics() -> None:
    """Between GPU and NIC NCCL_NET_GDR_LEVEL=LOC keeps jobs going until ACS is off."""
    f = only("p2p.acs-redirect", HGX, patch={"path GPU0": {"acs": "0x1d"}, "path mlx5_0": {"acs": "0x1d"}})
    assert f.state is W
    assert "NCCL_NET_GDR_LEVEL=LOC" in (f.fix or "")


def test_a_denied_question_is_told_as_such() -> None:
    """NVML's refusal is no old driver: the fix is a permission."""
    c = variant(CARDS, nvml={"DeviceGetP2PStatus*": {"error": "NoPermission"}}, cuda={"state": "absent"},
                system={"root": False})  # fmt: skip
    (f,) = findings("p2p.refused", c)
    assert f.state is U
    assert "denied: NVMLError_NoPermission" in f.title
    assert "as root" in (f.fix or "")
    assert "update" not in (f.fix or "")


def test_a_slow_link_is_told_in_what_it_carries() -> None:
    """Gen 1 of gen 4: 0.25 of 1.97 GB/s a lane (8b/10b against 128b/130b), an eighth; by GT/s it would be 16 %."""
    f = only("pcie.link-speed", "rtx4090_x8", patch={"GPU0": {"now": "1x16", "busy": "1"}}, gpu={"0": {"pstate": 0}})
    assert f.state is F
    assert f.subject.endswith("GPU0")
    assert "an eighth of" in f.consequence


def test_a_link_that_is_set_to_a_lower_speed_is_told() -> None:
    """Link Control 2 of the port: the fix is the setting, and no card is reseated."""
    patch = {"GPU0": {"now": "3x16", "busy": "1"}, "above GPU0": {"target": 3}}
    f = only("pcie.link-speed", "rtx4090_x8", patch=patch, gpu={"0": {"pstate": 0}}, system={"root": True})
    assert "set to gen 3 at most" in f.title
    assert any("LnkCtl2" in e.source for e in f.evidence)
    assert "reseat" not in (f.fix or "")
    assert "CAP_EXP+30.w=4:f" in (f.fix or "")


def test_a_module_is_not_reseated() -> None:
    f = only("pcie.link-width", HGX, patch={"GPU3": {"now": "5x8"}})
    assert "reseat" not in (f.fix or "")
    assert "reseat" in (only("pcie.link-width", "rtx4090_x8", patch={"GPU3": {"now": "4x8"}}).fix or "")


def test_nvlink_of_hidden_gpus_is_unknown_and_not_sys() -> None:
    """NVML shows a job step nothing of the GPUs that its device cgroup hides."""
    c = healthy("h47_step_of_two_gpus")
    gpus = [g.address for g in c.topology.gpus]
    assert c.topology.path(gpus[0], gpus[1]).class_ == "NV12"
    hidden = c.topology.path(gpus[0], gpus[2])
    assert isinstance(hidden.class_, Missing)
    assert "/dev/nvidia2" in str(hidden.class_)
    made = gres(c.node, c.topology)
    assert all(line.links == () for line in made.lines)
    assert any("all GPUs can be seen" in n for n in made.notes)
