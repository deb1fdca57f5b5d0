"""P2P checks on described machines with one planted fault, and on their healthy look-alikes."""

from __future__ import annotations

import pytest

from tests.checks.support import Row, assert_row, findings, hardware_checks, healthy, variant
from topocheck.model.base import State

F, W, N, U = State.FAIL, State.WARN, State.NOTE, State.UNKNOWN
HGX, ADA = "hgx_h100_cx7", "rtx6000ada_x4"
SPLIT_VM = {"nvlink": {"switch": 0}, "gpus": {"nvlinks": 0}, "p2p": {"all": "OK"}}
"""Two GPUs of a guest without NVLink between them, and NVML says yes."""

ROWS = [
    Row(id="p2p.refused", machine=ADA, change={"p2p": {"all": "CNS"}}, state=W, says=("CNS", "chipset", "host memory")),
    Row(id="p2p.refused", machine="rtx4090_x8", state=N, subject="node", says=("as expected", "CNS")),
    Row(id="p2p.refused", machine="rtx4090_x8",
        change={"p2p": {"all": "DR", "read": "DR", "write": "DR"}}, state=W, says=("DR", "NVreg_RegistryDwords")),
    Row(id="p2p.refused", machine=ADA, change={"p2p": {"all": "U"}}, state=U),
    Row(id="p2p.refused", machine=ADA, change={"p2p": {"all": "TNS"}}, state=N, says=("share no PCIe switch",)),
    Row(id="p2p.refused", machine="l40s_x8", change={"p2p": {"PIX": "TNS"}}, state=W, says=("TNS",)),
    Row(id="p2p.refused", machine=ADA, change={"p2p": {"all": "CNS"}, "driver": {"confidential": 1}}, state=N),
    Row(id="p2p.refused", machine=ADA, state=U, says=("neither NVML nor CUDA",),
        change={"nvml": {"DeviceGetP2PStatus|*": {"error": "NotSupported"}}, "cuda": {"state": "absent"}}),
    Row(id="p2p.refused", machine=ADA, change={"nvml": {"DeviceGetP2PStatus|*": {"error": "NotSupported"}}}),
    Row(id="p2p.refused", machine="driver_not_loaded", applies=False),
    Row(id="p2p.refused", machine="mig_node"),
    Row(id="p2p.refused", machine=ADA),
    Row(id="p2p.refused", machine="laptop", applies=False),
    Row(id="p2p.mig", machine="mig_node", state=N, subject="0000:45:00.0 GPU0", says=("2 slices", "-mig 0")),
    Row(id="p2p.mig", machine="a100_x4"),
    Row(id="p2p.acs-redirect", machine=ADA, change={"patch": {"above GPU0": {"acs": "0x1d"}}}, state=F,
        says=("GPU0-GPU1",)),
    Row(id="p2p.acs-redirect", machine=ADA, change={"patch": {"above GPU0": {"acs": "0x11"}}}),
    Row(id="p2p.acs-redirect", machine=ADA, change={"system": {"root": False}}, state=U, says=("root",)),
    Row(id="p2p.acs-redirect", machine=HGX, change={"patch": {"above GPU3": {"acs": "0x1d"}}}, state=W,
        says=("GPU3-mlx5_3",)),
    Row(id="p2p.acs-redirect", machine=HGX, change={"patch": {"all root_port": {"acs": "0x1d"}}}),
    Row(id="p2p.acs-redirect", machine="h26_vm_flat_a800", applies=False),
    Row(id="p2p.acs-redirect", machine="rtx4090_x8", change={"patch": {"all root_port": {"acs": "0x1d"}}},
        applies=False),
    Row(id="p2p.iommu-translates", machine="l40s_x8", change={"system": {"iommu": "DMA-FQ"}}, state=W,
        says=("GPU0-GPU1", "iommu=pt")),
    Row(id="p2p.iommu-translates", machine=HGX, change={"system": {"iommu": "DMA"}}, state=W, says=("GPU0-mlx5_0",)),
    Row(id="p2p.iommu-translates", machine="gh200", change={"system": {"iommu": "DMA"}}, applies=False),
    Row(id="p2p.iommu-translates", machine="rtx3090_x2_bridge", change={"system": {"iommu": "DMA"}},
        applies=False),
    Row(id="p2p.iommu-translates", machine=HGX),
    Row(id="p2p.unverified-across-host-bridges", machine=ADA, change={"system": {"iommu": "DMA"}}, state=W,
        says=("not verified", "NCCL_P2P_DISABLE=1")),
    Row(id="p2p.unverified-across-host-bridges", machine=ADA),
    Row(id="p2p.flat-vm-tree", machine="h26_vm_flat_a800", state=U, says=("8 GPUs and 8 NICs", "NCCL_TOPO_FILE")),
    Row(id="p2p.flat-vm-tree", machine="h26_vm_flat_a800",
        change={"environment": {"NCCL_TOPO_FILE": "/etc/topo.xml"}}, state=N),
    Row(id="p2p.flat-vm-tree", machine=HGX, applies=False),
    Row(id="p2p.flat-vm-tree", machine="h100_x2_vm"),
    Row(id="p2p.unverified-in-guest", machine="h100_x2_vm", change=SPLIT_VM, state=U, says=("GPU0-GPU1",)),
    Row(id="p2p.unverified-in-guest", machine="h100_x2_vm",
        change={**SPLIT_VM, "patch": {"GPU0": {"clique": "0"}, "GPU1": {"clique": "0"}}}),
    Row(id="p2p.unverified-in-guest", machine="h100_x2_vm"),
    Row(id="p2p.peer-access-disagrees", machine=ADA, change={"nvml": {"DeviceGetP2PStatus|0|1|0": 1}}, state=W,
        says=("NVML says CNS", "CUDA says yes")),
    Row(id="p2p.peer-access-disagrees", machine=ADA),
    Row(id="p2p.peer-access-disagrees", machine="rtx4090_x8",
        change={"environment": {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}}),
    Row(id="p2p.peer-access-disagrees", machine="rtx4090_x8", applies=False),
    Row(id="p2p.peer-access-disagrees", machine=ADA, change={"cuda": {"state": "absent"}}, applies=False),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_row(row: Row) -> None:
    """Each check fires on its fault, with subject and numbers, and is quiet on the look-alike."""
    assert_row(row)


def test_nobody_is_told_to_boot_with_noacs() -> None:
    """The kernel has no such option, whatever threads say; setpci's mask clears the two bits alone."""
    (f,) = findings("p2p.acs-redirect", healthy("h12_acs_redirect"))
    assert f.fix is not None
    assert "ECAP_ACS+6.w=0:c" in f.fix  # bits 2 and 3, ReqRedir and CmpltRedir
    assert "noacs" not in f.fix + "".join(c.doc for c in hardware_checks())


def test_acs_names_only_the_ports_on_the_way() -> None:
    """A redirecting port above a third GPU is no matter of the pair."""
    c = variant(ADA, patch={"above GPU0": {"acs": "0x1d"}})
    f = next(f for f in findings("p2p.acs-redirect", c) if f.state is F)
    above = c.topology.gpus[0].pci
    assert above is not None
    assert [e.source for e in f.evidence] == [f"{above.chain[-2]} ACSCtl"]


def test_acs_below_a_switch_is_no_matter_of_pairs_that_share_none() -> None:
    """What such a pair sends leaves the switch upwards in any case: the redirect changes the way of one pair only."""
    c = variant("l40s_x8", patch={"above GPU0": {"acs": "0x1d"}})
    (f,) = findings("p2p.acs-redirect", c)
    assert f.state is F
    assert f.title.startswith("ACS redirects peer traffic of GPU0-GPU1 at ")
    # Nor does the option for boot name ports of other switches.
    option = (f.fix or "").partition("pci=disable_acs_redir=")[2].partition("'")[0].split(";")
    assert len(option) == 2
    # Root ports have a say in what goes from one switch to another.
    (f,) = findings("p2p.acs-redirect", variant("l40s_x8", patch={"all root_port": {"acs": "0x1d"}}))
    assert "GPU0-GPU2" in f.title
    assert "GPU0-GPU1" not in f.title


def test_a_product_sold_without_peer_access_needs_no_mending() -> None:
    assert [f.fix for f in findings("p2p.refused", healthy("rtx4090_x8"))] == [None]
