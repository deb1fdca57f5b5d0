"""Machines with many faults at once: for every check that can warn or fail, one on which it does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.machines.builder import case_names, names
from tests.support.losses import Case
from tests.support.snapshots import record
from topocheck.host.base import Answer
from topocheck.host.recording.snapshot import load
from topocheck.policy.types import Expect, Policy
from topocheck.policy.write import expectations

RECORDINGS = Path(__file__).parents[1] / "recordings"
HGX = "hgx_h100_cx7"
_MLX0 = "/sys/bus/pci/devices/0000:19:00.0/infiniband/mlx5_0/ports/1"
_DOCKER = {"cap_eff": "00000000a80425fb", "seccomp": 2}
"""Docker's default capabilities and filter."""


def _nccl(version: str) -> dict[str, Any]:
    return {"packages": {"nvidia-nccl-cu12": version, "torch": "2.5.1"}}


FAULTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "hardware": (
        HGX,
        {
            "patch": {
                "GPU3": {"now": "5x8"},
                "GPU2": {"now": "3x16", "aer_fatal": "DLP:1", "mps": "512"},
                "above GPU3": {"acs": "0x1d"},
                "above GPU1": {"dpc": "1"},
                "GPU7": {"hidden": "1"},
                "mlx5_4": {"mrrs": "128", "rate": "200_Gb/sec_(2X_NDR)"},
                "mlx5_5": {"state": "DOWN/Polling"},
                "mlx5_6": {"firmware": "28.36.1010"},
                "above mlx5_0": {"max": "4x16"},
            },
            "gpu": {"1": {"clock_reasons": 0x40}, "2": {"pstate": 0}, "4": {"bar1_mib": 256},
                    "5": {"links_down": [17], "link_errors": {"4": 7}},
                    "6": {"ecc": 0}},
            "nvml": {"DeviceGetCurrPcieLinkWidth|1": 8},
            "files": {f"{_MLX0}/counters/link_downed": "57"},
        },
    ),
    "idle": (HGX, {"patch": {"GPU3": {"now": "1x16"}, "mlx5_0": {"lost": "1"}, "mlx5_3": {"layer": "Ethernet"}}}),
    "bound": (
        HGX,
        {
            "process": {"cpus": "48-95", "mems": "1", **_DOCKER},
            "environment": {"LOCAL_RANK": "0", "NCCL_IB_GID_INDEX": "1", "NCCL_SOCKET_IFNAME": "ens99"},
            "limits": {"memlock": "8388608", "nofile": "512", "stack": "unlimited"},
            "system": {"marks": ["/.dockerenv"], "iommu": "DMA"},
            "files": {"/dev/infiniband": {"remove": True}, "/etc/nccl.conf": "NCCL_IB_HCA = mlx5_0\n"},
            "software": _nccl("2.25.1"),
            "p2p": {"override": True, "all": "NS"},
        },
    ),
    "settings": (
        HGX,
        {
            "environment": {
                "NCCL_P2P_DISABEL": "1", "NCCL_LL_THRESHOLD": "0", "NCCL_IB_DISABLE": "true", "NCCL_P2P_DISABLE": "1",
                "NCCL_IB_TIMEOUT": "0", "NCCL_NVLS_ENABLE": "0", "NCCL_PROTO": "LL128",
                "NCCL_IGNORE_DISABLED_P2P": "1", "NCCL_IB_HCA": "mlx5_77", "NCCL_SOCKET_IFNAME": "eno1,ens99",
                "NCCL_NET_GDR_LEVEL": "LOC", "CUDA_VISIBLE_DEVICES": "0,7,x", "NCCL_TOPO_FILE": "/etc/topo.xml",
                "NCCL_SHM_DISABLE": "1", "NCCL_DMABUF_ENABLE": "0", "NCCL_NET_GDR_READ": "0", "NCCL_NET": "socket",
            },
            "modules": {"nvidia_peermem": {"absent": True}},
            "files": {"/etc/topo.xml": "not XML"},
            "software": _nccl("2.21.5"),
        },
    ),
    "settings of a rack": ("gb200_tray", {
        "environment": {"NCCL_NVLS_ENABLE": "1", "NCCL_LL128_C2C": "1", "NCCL_MNNVL_ENABLE": "0"},
        "services": {"nvidia-imex": "failed"}, "software": _nccl("2.26.2")}),
    "settings of a guest": ("cloud_vm_17nic", {
        "environment": {"NCCL_IB_PCI_RELAXED_ORDERING": "0", "CUDA_VISIBLE_DEVICES": "0,0"}}),
    "list of NICs": ("dgx_a100", {
        "environment": {"NCCL_IB_HCA": "=mlx5_4"}, "patch": {"mlx5_9": {"state": "INIT/LinkUp"}},
        "driver": {"flavor": "proprietary"}, "modules": {"nv_peer_mem": {"absent": True},
                                                         "nvidia_peermem": {"absent": True}}}),
    "fabric": (HGX, {
        "gpu": {"3": {"fabric": False}}, "services": {"nvidia-fabricmanager": "failed"},
        "commands": {"nv-fabricmanager --version": "Fabric Manager version is : 570.86.15\n"}}),
    "fabric unequal": ("gb200_tray", {
        "gpus": {"fabric": {"clusterUuid": "00000000-0000-0000-0000-000000000000", "cliqueId": 0}}}),
    "peers refused": ("l40s_x8", {"p2p": {"PIX": "TNS", "all": "OK"}, "system": {"iommu": "DMA-FQ"},
                                  "nvml": {"DeviceGetP2PStatus|0|5|0": 1}, "limits": {"shm_bytes": 64 << 20},
                                  "environment": {"NCCL_NET": "IB"}}),
    "peers redirected": ("rtx6000ada_x4", {
        "patch": {"above GPU0": {"acs": "0x1d"}}, "system": {"iommu": "DMA"},
        "environment": {"NCCL_SHM_DISABLE": "1"}}),
    "peers disagree": ("rtx6000ada_x4", {"nvml": {"DeviceGetP2PStatus|0|1|0": 1}}),
    "guest": ("h100_x2_vm", {
        "patch": {"GPU1": {"now": "5x8"}}, "nvlink": {"switch": 0}, "gpus": {"nvlinks": 0}, "p2p": {"all": "OK"}}),
    "versions": (HGX, {"driver": {"state": "LibRmVersionMismatch", "module_version": "570.86.15"}}),
    "not listed": (HGX, {"patch": {"GPU3": {"driver": "none"}}}),
    "shared memory": ("rtx4090_x8", {
        "limits": {"shm_bytes": 100 << 20}, "p2p": {"all": "DR", "read": "DR", "write": "DR"},
        "environment": {"NCCL_NVLS_ENABLE": "1"},
        "files": {"/dev/shm/nccl-aXb3": {"text": "x", "size": 90 << 20, "mtime": 1_767_200_000}}}),
    "little memory to lock": (HGX, {
        "process": _DOCKER, "system": {"marks": ["/.dockerenv"]}, "limits": {"memlock": "8388608"}}),
    "one far NIC": (HGX, {"patch": {"mlx5_2": {"hidden": "1"}}}),
    "nodes untold": (HGX, {
        "patch": {"all gpu": {"node": "-1"}, "all root_port": {"node": "-1"}, "all upstream": {"node": "-1"},
                  "all downstream": {"node": "-1"}, **{f"mlx5_{i}": {"node": "-1"} for i in range(10)}}}),
    "virtual function": (HGX, {
        "patch": {"mlx5_1": {"pf": "0000:19:00.0"}}, "environment": {"NCCL_IB_PCI_RELAXED_ORDERING": "1"}}),
    "topology file": (HGX, {"environment": {"NCCL_TOPO_FILE": "/etc/none.xml"}}),
    "saved by a setting": ("h22_mixed_gpus", {"environment": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}}),
    "saved by another": (
        HGX,
        {
            "environment": {"NCCL_CUMEM_HOST_ENABLE": "0", "NCCL_IB_GID_INDEX": "3", "NCCL_IB_HCA": "=mlx5_0"},
            "process": _DOCKER, "system": {"marks": ["/.dockerenv"]}, "software": _nccl("2.25.1"),
        },
    ),
    "saved by a capability": (HGX, {"limits": {"memlock": "8388608"}}),
    "saved by confidential computing": (HGX, {
        "p2p": {"override": True, "all": "NS"}, "driver": {"confidential": 1}}),
    "matrix": ("h100_x2_vm", {"commands": {"nvidia-smi topo -m": {"rc": 255, "stdout": "Failed\n"},
                                           "nvidia-smi topo -mp": {"rc": 255}}}),
}  # fmt: skip
"""Name -> described machine and what is laid over it."""

TOO_MUCH = Policy(
    expect=Expect(
        gpu_count=9, gpu_model="B200", nvlinks_per_gpu=24, nic_count=12, nic_rate_gbit_s=800, driver_version="999",
        p2p_everywhere=True, gdr_pairs=1000, pcie_gen=7, pcie_width=32,
    )
)  # fmt: skip
"""A policy that no machine here meets."""


def faulty(name: str) -> dict[str, Answer]:
    """Return the recorded answers of a machine of FAULTS."""
    machine, change = FAULTS[name]
    return record(machine, **change)


def case_of(name: str) -> Case:
    """Return a machine by its name: of FAULTS, `policy NAME`, `kept NAME`, a recording, or a described one.

    `policy NAME` is judged by a policy that it does not meet, `kept NAME` by the one that was written from it.
    """
    kind, _, machine = name.partition(" ")
    if name in FAULTS:
        return Case(name, faulty(name))
    if kind == "policy":
        return Case(name, record(machine), TOO_MUCH)
    if kind == "kept":
        report = Case(machine, record(machine)).base
        wants = expectations(report.node, report.topology, report.gpudirect)
        return Case(name, record(machine), Policy(expect=msgspec.convert(wants, Expect)))
    if name.endswith(".snap"):
        return Case(name, load(str(RECORDINGS / name))[1])
    return Case(name, record(name))


def case_list() -> list[str]:
    """Return the names that `case_of` knows: every described machine, recording and fault."""
    judged = [f"policy {HGX}", "policy rtx4090_x8", f"kept {HGX}", "kept dgx_a100", "kept gb200_tray"]
    recorded = sorted(p.name for p in RECORDINGS.glob("*.snap"))
    return [*names(), *case_names(), *recorded, *FAULTS, *judged]
