"""Every machine of the field's reports beside the answer that is right for it, and near variants of each kind."""

from __future__ import annotations

import pytest

from tests.checks.support import Row, assert_row, findings, healthy, variant
from tests.machines.builder import case_names
from tests.machines.description import load
from topocheck.checks import registry, static_checks
from topocheck.model.base import State

F, W, N, U = State.FAIL, State.WARN, State.NOTE, State.UNKNOWN
HGX = "hgx_h100_cx7"
LOG = "/dev/kmsg"
ETHERNET = """
root 0000:00 node=0
  rp 01.0 5x16
    h100_sxm
  rp 02.0 5x16
    eth id=15b3:1021 driver=mlx5_core net=eth5 speed_mbit={}
"""

ROWS = [
    # ACS between GPU and NIC, and NCCL's own way round
    Row(id="p2p.acs-redirect", machine="h63_acs_below_switch", state=W, subject="node",
        says=("GPU0-mlx5_0", "disable_acs_redir=", "NCCL_NET_GDR_LEVEL=LOC")),
    Row(id="p2p.acs-redirect", machine="h63_acs_below_switch", change={"patch": {"all root_port": {"acs": "0x01"},
        "all downstream": {"acs": "0x11"}}}),
    Row(id="p2p.acs-redirect", machine="h64_maxq_acs_and_iommu", state=F, subject="node",
        says=("GPU2-GPU3", "0000:60:01.1")),
    # what is not to be trusted gets no advice to use it
    Row(id="nccl.p2p-level-default", machine="h64_maxq_acs_and_iommu"),
    Row(id="nccl.p2p-level-default", machine="h71_behind_chipset", change={"p2p": {"all": "OK"}}),
    Row(id="nccl.p2p-level-default", machine="h64_maxq_acs_and_iommu", change={"system": {"iommu": "off"},
        "patch": {"all root_port": {"acs": "0x01"}}}, state=N, says=("6 GPU pairs",)),
    # one card alone: nobody waits for it, and there is no other card to swap it with
    Row(id="pcie.link-speed", machine="h65_busy_at_gen1", state=F, subject="0000:01:00.0 GPU0",
        says=("gen 1 of gen 5 (2.5 of 32 GT/s)", "copies at a sixteenth of the link's rate", "firmware and driver",
              "try another slot")),
    Row(id="rdma.small-mtu", machine="h66_mtu_9000"),
    Row(id="rdma.small-mtu", machine="h67_mtu_one_rail", state=N, says=("mlx5_1", "1500")),
    Row(id="p2p.unverified-across-host-bridges", machine="h68_one_bridge_of_eight", state=W,
        says=("GPU0-GPU1", "and 19 more", "NCCL_P2P_DISABLE=1")),
    Row(id="nccl.graph-file", machine="h69_graph_file_of_four", state=F,
        subject="NCCL_GRAPH_FILE (/etc/nccl.conf:1)", says=("names GPU 1, 2, 3", "remove NCCL_GRAPH_FILE from")),
    Row(id="rdma.port-below-maximum", machine="h69_graph_file_of_four", applies=False),
    Row(id="pcie.nic-slot-too-slow", machine="h70_nic_in_gen4_slot", state=W, subject="0000:16:00.0 mlx5_0",
        says=("gen 4 x16", "0000:15:02.0 can do no more")),
    Row(id="pcie.link-speed", machine="h70_nic_in_gen4_slot"),
    # a narrow way to the CPU: behind the chipset, or by the slot alone
    Row(id="pcie.narrower-than-siblings", machine="h71_behind_chipset", state=W, subject="0000:03:00.0 GPU0",
        says=("7.9 GB/s", "gen 4 x4 at 0000:00:01.2", "1 other device shares", "15.8 GB/s", "half the rate")),
    Row(id="pcie.narrower-than-siblings", machine="h43_bridge_window"),
    Row(id="pcie.narrower-than-siblings", machine=HGX),
    Row(id="pcie.narrower-than-siblings", machine=HGX, change={"patch": {"GPU3": {"now": "5x8"}}}),  # not the board
    Row(id="pcie.narrower-than-siblings", machine=HGX, change={"patch": {"above GPU3": {"max": "5x8"}}}, state=W,
        subject="0000:5c:00.0 GPU3", says=("gen 5 x8", "31.5 GB/s", "63.0 GB/s")),
    Row(id="pcie.narrower-than-siblings", machine="h65_busy_at_gen1", applies=False),
    Row(id="numa.nodes-across-sockets", machine="h72_nodes_across_sockets", state=W,
        says=("node 0 has parts of sockets 0, 1",)),
    Row(id="rdma.counters", machine="h73_one_lossy_port", state=W, subject="0000:ac:00.0 mlx5_5 port 1",
        says=("70211", "7 siblings")),
    Row(id="rdma.counters", machine="h74_switch_side_nics"),
    Row(id="nccl.topo-file", machine="h75_topology_without_arch", state=F, subject="NCCL_TOPO_FILE",
        says=("numaid=6", "no arch", "internal error")),
    Row(id="consistency.visible-devices", machine="h76_old_mig_name", state=U, subject="process",
        says=("on GPU 0, 0000:45:00.0", "NoPermission", "CAP_SYS_ADMIN")),
    # a NIC on the bus without an RDMA device
    Row(id="rdma.no-device", machine="h77_hca_without_module", state=W, subject="0000:02:00.0",
        says=("InfiniBand", "mlx5_ib is not loaded", "modprobe mlx5_ib")),
    Row(id="rdma.no-device", machine="h77_hca_without_module", change={"system": {"marks": ["/.dockerenv"]}}, state=W,
        says=("on the node, outside this container: modprobe mlx5_ib",)),
    Row(id="rdma.no-device", machine="h77_hca_without_module", change={"modules": {"mlx5_ib": ""}}, state=W,
        says=("no RDMA device for it", "dmesg")),
    Row(id="rdma.no-device", machine="h77_hca_without_module", change={"patch": {"0000:02:00.0": {"driver": "none"}}},
        state=W, says=("no driver is bound",)),
    Row(id="rdma.no-device", machine="h77_hca_without_module",
        change={"patch": {"0000:02:00.0": {"driver": "vfio-pci"}}}, applies=False),
    Row(id="rdma.no-device", machine="h61_efa_no_plugin", change={"patch": {"all nic": {"rdma": "none",
        "driver": "none"}}, "modules": {"efa": {"absent": True}}}, state=W, says=("2 EFA functions", "modprobe efa")),
    Row(id="rdma.no-device", machine="h77_hca_without_module",
        change={"pci": {"tree": ETHERNET.format(400000)}}, state=N, says=("RDMA-capable Ethernet",)),
    Row(id="rdma.no-device", machine="h77_hca_without_module", change={"pci": {"tree": ETHERNET.format(25000)}}),
    Row(id="rdma.no-device", machine="h77_hca_without_module",
        change={"pci": {"tree": ETHERNET.format(400000)}, "system": {"hypervisor": "KVM"}}),
    # modules are masked, as in a sandbox: nothing is said of what is loaded
    Row(id="rdma.no-device", machine="h77_hca_without_module", change={"files": {"/proc/modules": {"error": "EACCES"},
        "/sys/module": {"error": "EACCES"}}}, state=W, says=("no RDMA device for it", "check the driver's messages")),
    Row(id="rdma.no-device", machine=HGX, applies=False),
    Row(id="rdma.no-device", machine="h51_b200_no_umad", applies=False),  # those manage the NVSwitches
    # the kernel's log
    Row(id="driver.kernel-log-errors", machine=HGX, change={"files": {LOG:
        "pcieport 0000:15:01.0: DPC: containment event, status:0x1f01 source:0x0000"}}, state=N,
        subject="0000:15:01.0 (port above GPU0)", says=("containment",)),
    Row(id="driver.kernel-log-errors", machine=HGX, change={"files": {LOG:
        "nvidia 0000:5c:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Requester ID)"}},
        state=N, subject="0000:5c:00.0 GPU3", says=("uncorrectable PCIe error (fatal)",)),
    Row(id="driver.kernel-log-errors", machine=HGX, change={"files": {LOG:
        "pcieport 0000:15:01.0: AER: Corrected error received: 0000:18:00.0"}}),
    Row(id="driver.kernel-log-errors", machine=HGX, change={"files": {LOG:
        "NVRM: Xid (PCI:0000:5c:00): 64, pid='<unknown>', name=<unknown>, Row Remapper: error"}}, state=W,
        subject="0000:5c:00.0 GPU3", says=("Xid 64",)),
    Row(id="driver.kernel-log-errors", machine=HGX, change={"files": {LOG:
        "NVRM: GPU 0000:5c:00.0: RmInitAdapter failed! (0x62:0x40:2477)"}}, state=N, says=("could not start",)),
    Row(id="pcie.device-lost", machine="h02_gpu_is_lost", change={"files": {LOG: "NVRM: Xid (PCI:0000:a1:00): 79"}},
        state=F, subject="0000:a1:00.0 GPU5"),
    # all ports of a node of NICs are down: no sibling shows it
    Row(id="rdma.port-down", machine=HGX, change={"patch": {f"mlx5_{n}": {"state": "DOWN/Polling"} for n in range(10)}},
        state=W, subject="node", says=("none of 8 ports",)),
    Row(id="rdma.port-down", machine="h66_mtu_9000", change={"patch": {f"mlx5_{n}": {"state": "DOWN/Polling"}
        for n in range(2)}}, state=N, says=("no signal from the other end",)),
    # one small window beside large ones: Resizable BAR is on
    Row(id="consistency.siblings-differ", machine="l40s_x8", change={"gpu": {"2": {"bar1_mib": 256}}}, state=W,
        subject="0000:3a:00.0 GPU2", says=("Resizable BAR is on", "displaymodeselector")),
    Row(id="pcie.bar1-small", machine="l40s_x8", change={"gpu": {"2": {"bar1_mib": 256}}}),
    # four Blackwell joined to each other without switches, and one alone: no fabric is missing
    Row(id="nvlink.fabric-not-ready", machine="gb200_tray", change={"gpus": {"fabric": False},
        "nvlink": {"switch": 0, "pairs": dict.fromkeys(("0-1", "0-2", "0-3", "1-2", "1-3", "2-3"), 6)}}),
    Row(id="nvlink.fabric-not-ready", machine="gb200_tray", change={"gpus": {"fabric": False}}, state=F,
        says=("reports no fabric",)),
    # a fix names the GPUs that it is to be done to
    Row(id="consistency.siblings-differ", machine=HGX, change={"gpu": {"2": {"mig": 1}, "5": {"mig": 1}}}, state=N,
        says=("nvidia-smi -i 2,5 -mig 0",)),
    # a provider's profile, whose values belong together
    Row(id="nccl.removed-setting", machine="h62_tcpxo_profile", change={"environment": {"NCCL_MIN_NCHANNELS": "4"}}),
    Row(id="nccl.removed-setting", machine=HGX, change={"environment": {"NCCL_MIN_NCHANNELS": "4"}}, state=N),
    # a GPU that fell out of the fabric is no island
    Row(id="nvlink.partial-islands", machine="h52_b200_one_outside"),
    # what a container cannot do is said as the node's
    Row(id="rdma.no-gdr-path", machine="h18_peermem_not_registered", change={"system": {"marks": ["/.dockerenv"]}},
        state=F, says=("on the node, outside this container:",)),
    Row(id="p2p.flat-vm-tree", machine="h69_graph_file_of_four", state=N, says=("1 GPU and 1 NIC",)),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_rows(row: Row) -> None:
    assert_row(row)


STATES = {"ok": {}, "note": {N}, "warn": {W}, "fail": {F}, "unknown": {U}}


@pytest.mark.parametrize("name", [n for n in case_names() if n >= "h40"])
def test_the_worst_of_a_report_is_what_is_right_to_say(name: str) -> None:
    """The state that the description calls right is found, and nothing fails that it does not call a failure."""
    c = healthy(name)
    found = [f for _, fs in registry.run(static_checks(), c) for f in fs]
    right = load(name)["case"]["state"]
    assert right == "ok" or {f.state for f in found} & set(STATES[right]), right
    if right != "fail":
        assert [f.title for f in found if f.state is F] == []


def test_evidence_of_a_lost_gpu_is_the_kernels_line() -> None:
    c = variant("h02_gpu_is_lost", files={LOG: "NVRM: Xid (PCI:0000:a1:00): 79"})
    (f,) = findings("pcie.device-lost", c)
    assert f.evidence[-1].raw == "NVRM: Xid (PCI:0000:a1:00): 79"
