"""Cases of the second series about boards of today, bridges, bonds and files of other machines."""

from __future__ import annotations

import msgspec
import pytest

from tests.checks.support import Row, assert_row, context, findings, healthy, run, variant
from topocheck.model.base import State, Verdict
from topocheck.topology.numa import crossed_nodes

HGX = "hgx_h100_cx7"
F, W, N, U = State.FAIL, State.WARN, State.NOTE, State.UNKNOWN
PORT = "/sys/class/infiniband/mlx5_3/ports/1"

ROWS = [
    Row(id="nvlink.fabric-not-ready", machine="h51_b200_no_umad", state=F, subject="0000:19:00.0 GPU0",
        says=("mlx5_ib and ib_umad not loaded", "modprobe mlx5_ib ib_umad", "nvlsm")),
    Row(id="nvlink.fabric-not-ready", machine="h50_hgx_b200",
        change={"gpus": {"fabric": {"state": 2}}}, state=F, says=("nvlsm", "install nvidia-fabricmanager")),
    Row(id="nvlink.fabric-not-ready", machine="h52_b200_one_outside", state=F, subject="0000:4c:00.0 GPU2",
        says=("check the fabric manager's log for this GPU",)),
    Row(id="nvlink.fabric-not-ready", machine="h50_hgx_b200"),
    # nvml.h: DEGRADED_BW true is 1 in bits 1:0; ROUTE_UNHEALTHY true is 1 in bits 5:4.
    Row(id="nvlink.fabric-not-ready", machine="h50_hgx_b200",
        change={"gpu": {"3": {"fabric": {"healthMask": 0b01, "healthSummary": 1}}}}, state=W,
        subject="0000:5d:00.0 GPU3", says=("DEGRADED_BW",)),
    Row(id="nvlink.fabric-not-ready", machine="h50_hgx_b200",
        change={"gpu": {"3": {"fabric": {"healthMask": 0b010000, "healthSummary": 1}}}}, state=F,
        subject="0000:5d:00.0 GPU3", says=("ROUTE_UNHEALTHY",)),
    # all fields "false" (2), configuration "none" (1), partition assigned and GFM connected (1): 0x51aa
    Row(id="nvlink.fabric-not-ready", machine="h50_hgx_b200",
        change={"gpus": {"fabric": {"healthMask": 0x51AA, "healthSummary": 1}}}),
    Row(id="nvlink.links-down", machine="h56_bridge_half_seated", state=W, subject="0000:01:00.0 GPU0",
        says=("2 of 4", "seat")),
    Row(id="nvlink.links-down", machine="rtx3090_x2_bridge"),
    Row(id="rdma.no-gdr-path", machine="h53_gb200_iommu_groups", state=U, subject="node",
        says=("IOMMU groups", "NVreg_GrdmaPciTopoCheckOverride=1")),
    Row(id="rdma.no-gdr-path", machine="h53_gb200_iommu_groups",
        change={"driver": {"params": {"GrdmaPciTopoCheckOverride": 1}}}),
    Row(id="rdma.no-gdr-path", machine="h53_gb200_iommu_groups", change={"system": {"iommu": "identity"}}),
    Row(id="rdma.half-port", machine="h54_spark_half_port", state=W, subject="NCCL_IB_HCA",
        says=("roceP2p1s0f0", "half of the cable", "enP2p1s0f0np0")),
    Row(id="rdma.half-port", machine="h54_spark_half_port",
        change={"environment": {"NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0"}}),
    Row(id="rdma.half-port", machine="h54_spark_half_port", change={"environment": {"NCCL_IB_HCA": "^rocep1s0f1"}}),
    Row(id="rdma.half-port", machine=HGX, change={"environment": {"NCCL_IB_HCA": "mlx5_0"}}, applies=False),
    Row(id="rdma.small-mtu", machine="h54_spark_half_port", state=N, subject="node", says=("1500", "mtu 9000")),
    Row(id="rdma.small-mtu", machine=HGX, change={"nics": {"layer": "Ethernet"}}),
    Row(id="rdma.bond-one-connection", machine="h55_bonded_port", state=N, says=(
        "802.3ad", "layer2", "NCCL_IB_QPS_PER_CONNECTION=2", "NCCL_IB_SPLIT_DATA_ON_QPS=0", "layer3+4")),
    Row(id="rdma.bond-one-connection", machine="h55_bonded_port",
        change={"environment": {"NCCL_IB_QPS_PER_CONNECTION": "2"}}),
    Row(id="rdma.bond-one-connection", machine="h55_bonded_port",
        change={"bonds": {"bond0": {"slaves": ["eth1", "eth2"], "mode": "active-backup 1"}}}, applies=False),
    Row(id="nvlink.imex", machine="h58_dra_imex", state=W, subject="node", says=("DRA driver", "disable --now")),
    Row(id="nvlink.imex", machine="gb200_tray", change={"driver": {"imex_channels": 1}}),
    Row(id="nvlink.c2c-down", machine="gh200", change={"gpus": {"c2c": {"links": 5, "mb_s": 44712, "down": [3]}}},
        state=F, says=("4 of 5",)),
    Row(id="nvlink.c2c-down", machine="gh200"),
    Row(id="nvlink.c2c-down", machine=HGX, applies=False),
    Row(id="consistency.change-pending", machine="dgx_a100", change={"gpu": {"2": {"mig_pending": 1}}}, state=N,
        says=("MIG will be on", "nvidia-smi -r")),
    Row(id="consistency.change-pending", machine="dgx_a100"),
    Row(id="numa.one-affinity", machine="l4_x2_across_sockets",
        change={"nvml": {"DeviceGetCpuAffinity|*": [(1 << 64) - 1]}}, state=N, says=("NUMA nodes 0, 2",)),
    Row(id="numa.one-affinity", machine=HGX),
    Row(id="consistency.visible-devices", machine="mig_node", change={"environment": {"CUDA_VISIBLE_DEVICES": "0"}},
        state=W, subject="process", says=("by number", "MIG-UUID")),
    Row(id="numa.nodes-across-sockets", machine=HGX),
    # Sockets 0-23,48-71 and 24-47,72-95: each of these nodes has CPUs of both.
    Row(id="numa.nodes-across-sockets", machine="l4_x2_across_sockets", state=W, change={"files": {
        "/sys/devices/system/node/node0/cpulist": "0-11,72-83",
        "/sys/devices/system/node/node2/cpulist": "24-35,48-59",
    }}),
    Row(id="rdma.port-below-maximum", machine=HGX, change={"patch": {"mlx5_0": {"rate": "25_Gb/sec_(1X_EDR)"}}},
        state=W, says=("one lane",)),
    Row(id="rdma.port-below-maximum", machine=HGX, change={"nics": {"rate": "100_Gb/sec_(4X_EDR)"}}, state=N,
        subject="node", says=("100 Gb/s", "ConnectX-7", "400 Gb/s")),
    Row(id="rdma.port-below-maximum", machine=HGX),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_rows(row: Row) -> None:
    assert_row(row)


def test_functions_that_manage_switches_are_no_nics() -> None:
    """Eight NICs for jobs; of the four others no counter is read."""
    t = healthy("h50_hgx_b200").topology
    assert [n.label for n in t.nics] == [f"mlx5_{i}" for i in range(8)]
    assert [n.label for n in t.switch_nics] == ["mlx5_8", "mlx5_9", "mlx5_10", "mlx5_11"]
    assert all(p.counters == {} and p.counters_missing for n in t.switch_nics if n.rdma for p in n.rdma.ports)
    assert all(p.counters for n in t.nics if n.rdma for p in n.rdma.ports)


def test_switch_functions_are_known_without_rdma_devices_too() -> None:
    c = healthy("h51_b200_no_umad")
    assert len(c.topology.switch_functions) == 4
    assert any(e.source == "/sys/module/ib_umad" for e in findings("nvlink.fabric-not-ready", c)[0].evidence)


def test_a_board_with_switches_on_the_bus_has_no_such_functions() -> None:
    assert healthy(HGX).topology.switch_functions == ()


def test_one_of_eight_ports_is_named_and_all_alike_are_judged_by_traffic() -> None:
    """91,316 lost acknowledgements on one port; then 2 million on each of ten over 4 TB: some 500 a GB."""
    c = variant(HGX, files={f"{PORT}/hw_counters/local_ack_timeout_err": "91316",
                            f"{PORT}/hw_counters/out_of_sequence": "6140236"})  # fmt: skip
    assert {(f.state, f.subject) for f in findings("rdma.counters", c)} == {(W, "0000:5d:00.0 mlx5_3 port 1")}
    files = {}
    for n in range(10):
        port = f"/sys/class/infiniband/mlx5_{n}/ports/1"
        files[f"{port}/hw_counters/out_of_sequence"] = "2000000"
        files[f"{port}/counters/port_rcv_data"] = str(4 * 10**12 // 4)
    alike = findings("rdma.counters", variant(HGX, files=files))
    assert {f.state for f in alike} == {W}
    assert "500 per GB" in alike[0].title
    # The same count over 4,000 PB is less than the links' own error rate.
    quiet = {k: str(10**18) if k.endswith("port_rcv_data") else v for k, v in files.items()}
    assert findings("rdma.counters", variant(HGX, files=quiet)) == ()


def test_nodes_and_sockets_that_cut_across_each_other() -> None:
    """Sockets 0-63 and 64-127, nodes 0-31,64-95 and 32-63,96-127; no affinity is advised then."""
    node = healthy("l4_x2_across_sockets").node
    first, second = node.numa.nodes[:2]  # type: ignore[index]
    numa = msgspec.structs.replace(
        node.numa,
        nodes=(
            msgspec.structs.replace(first, node=0, cpulist="0-31,64-95"),
            msgspec.structs.replace(second, node=1, cpulist="32-63,96-127"),
        ),
        cpu_packages={"0": "0-63", "1": "64-127"},
        online_cpus="0-127",
        sockets=2,
    )
    assert crossed_nodes(numa) == {0: ("0", "1"), 1: ("0", "1")}
    c = context(msgspec.structs.replace(node, numa=numa))
    (f,) = findings("numa.nodes-across-sockets", c)
    assert f.state is W
    from topocheck.placement.plan import plan

    p = plan(c.node, c.topology)
    assert all(b.cpus == "" for b in p.bindings)
    assert any("overlap" in n for n in p.notes)
    whole = msgspec.structs.replace(numa, nodes=(msgspec.structs.replace(first, node=0, cpulist="0-127"),))
    assert crossed_nodes(whole) == {}


def test_the_driver_may_be_told_to_refuse() -> None:
    c = variant("h53_gb200_iommu_groups", driver={"params": {"GrdmaPciTopoCheckOverride": 2}})
    assert {v.dma_buf for v in c.gpudirect.rdma} == {Verdict.NO}


def test_cpu_without_arch_ends_init_where_its_gpus_are_hidden() -> None:
    """A file of two CPUs without arch: NCCL fills it in for the CPU of GPU0 alone, when only GPU0 is visible."""
    pci = '<pci busid="{}" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"/>'
    gpus = [g.address for g in healthy("a100_x4").topology.gpus]
    cpus = [
        f'<cpu numaid="{n}" affinity="000000ff">' + "".join(pci.format(a) for a in some) + "</cpu>"
        for n, some in enumerate((gpus[:2], gpus[2:]))
    ]
    files = {"/opt/topo.xml": f'<system version="1">{"".join(cpus)}</system>'}
    seen = {"NCCL_TOPO_FILE": "/opt/topo.xml", "CUDA_VISIBLE_DEVICES": "0,1"}
    (f,) = findings("nccl.topo-file", variant("a100_x4", files=files, environment=seen))
    assert f.state is F
    assert "no arch" in f.title
    assert 'arch="x86_64"' in (f.fix or "")
    (all_seen,) = findings(
        "nccl.topo-file", variant("a100_x4", files=files, environment={**seen, "CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    )
    assert all_seen.state is W


def test_a_card_with_one_bridge_of_three() -> None:
    """A100 PCIe: one bridge joins four links, three make twelve."""
    pairs = {"nvlink": {"pairs": {"0-1": 4}}}
    c = variant("l4_x2_across_sockets", gpus={"name": "NVIDIA A100-PCIE-40GB", "nvlinks": 12, "nvlink_version": 4,
                                              "nvlink_mb_s": 25000}, **pairs)  # fmt: skip
    found = findings("nvlink.links-down", c)
    assert {f.state for f in found} == {N}
    assert "1 bridge of 3" in found[0].title
    assert run("nvlink.links-down", c)[0].state is N
