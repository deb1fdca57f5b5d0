"""A fleet of described nodes, healthy ones that differ as healthy nodes do, and faults planted in their raw answers.

Knows nothing of checks or comparison: a fault is a changed file, NVML answer or description, and `sign` is a word
that must stand in whatever is said of the node.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from tests.machines.builder import Machine, build
from tests.machines.description import load, merge

BASE = "hgx_h100_cx7"
RAILS = 8


class Fault(msgspec.Struct, frozen=True):
    """A fault: what it changes in a description, given a random number generator, and the sign of it."""

    name: str
    sign: str
    change: Callable[[random.Random], dict[str, Any]]


def _gpu(r: random.Random) -> str:
    return f"GPU{r.randrange(8)}"


def _nic(r: random.Random) -> str:
    return f"mlx5_{r.randrange(RAILS)}"


def _patch_gpu(**told: str) -> Callable[[random.Random], dict[str, Any]]:
    return lambda r: {"patch": {_gpu(r): told}}


def _patch_nic(**told: str) -> Callable[[random.Random], dict[str, Any]]:
    return lambda r: {"patch": {_nic(r): told}}


def _one_gpu(**told: Any) -> Callable[[random.Random], dict[str, Any]]:
    return lambda r: {"gpu": {str(r.randrange(8)): dict(told)}}


def _library(version: str) -> dict[str, Any]:
    """NVML's library as the driver's package installs it."""
    library = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so"
    return {f"{library}.1": {"link": f"libnvidia-ml.so.{version}"}, f"{library}.{version}": "x"}


def _refused(path: str) -> dict[str, Any]:
    """A device file that may not be opened, as a device cgroup refuses it to root as well."""
    return {"files": {path: {"error": "EACCES"}}}


def _swap(r: random.Random) -> dict[str, Any]:
    a, b = r.sample(range(RAILS), 2)
    return {"swap": (a, b)}


FAULTS = (
    Fault("GPU at half the lanes", "width", _patch_gpu(now="5x8")),
    Fault("GPU off the bus", "GPU", _patch_gpu(lost="1")),
    Fault("GPU not there", "GPU", _patch_gpu(hidden="1")),
    Fault("NVLink down", "nvlinks", lambda r: {"gpu": {str(r.randrange(8)): {"links_down": [r.randrange(18)]}}}),
    Fault("NIC not there", " nic", _patch_nic(hidden="1")),
    Fault("NIC firmware old", "firmware", _patch_nic(firmware="28.33.0800")),
    Fault("NIC port down", "state", _patch_nic(state="DOWN/Polling")),
    Fault("NIC port at half rate", "rate", _patch_nic(rate="200_Gb/sec_(4X_HDR)")),
    Fault("NIC at half the lanes", "width", _patch_nic(now="5x8")),
    Fault("NIC at a lower generation", "speed", _patch_nic(now="4x16")),
    Fault("driver old", "driver", lambda r: {"driver": {"version": "550.90.07"}}),
    Fault("kernel old", "kernel", lambda r: {"system": {"kernel": "5.15.0-91-generic"}}),
    Fault("ACS redirects", "acs", lambda r: {"patch": {f"above {_gpu(r)}": {"acs": "0x1d"}}}),
    Fault("IOMMU translates", "iommu", lambda r: {"system": {"iommu": "DMA", "cmdline": "ro quiet"}}),
    Fault("peermem not loaded", "peermem", lambda r: {"modules": {"nvidia_peermem": {"absent": True}}}),
    Fault("ECC off", "ecc", lambda r: {"gpu": {str(r.randrange(8)): {"ecc": 0}}}),
    Fault("MIG on", "mig", lambda r: {"gpu": {str(r.randrange(8)): {"mig": 1}}}),
    Fault("VBIOS other", "vbios", lambda r: {"gpu": {str(r.randrange(8)): {"vbios": "96.00.30.00.01"}}}),
    Fault("persistence off", "persistence", lambda r: {"gpu": {str(r.randrange(8)): {"persistence": 0}}}),
    Fault(
        "NCCL setting left over", "NCCL_P2P_DISABLE", lambda r: {"files": {"/etc/nccl.conf": "NCCL_P2P_DISABLE=1\n"}}
    ),
    Fault("locked memory limited", "memlock", lambda r: {"limits": {"memlock": "65536"}}),
    Fault("half the memory of a socket", "memory", lambda r: {"halve": r.randrange(2)}),
    Fault("cables of two rails swapped", "network", _swap),
    Fault("payload small", "payload", lambda r: {"patch": {f"above {_gpu(r)}": {"mps": "128"}}}),
    Fault("board of another part number", "board_part_number", _one_gpu(board_part="692-2G520-0205-000")),
    Fault("maximum clock lower", "clock_sm_max_mhz", _one_gpu(clock_max_mhz=1755)),
    Fault("ECC to change at the next reset", "ecc_pending", _one_gpu(ecc_pending=0)),
    Fault("MIG to change at the next reset", "mig_pending", _one_gpu(mig_pending=1)),
    Fault("device file of another number", "minor", _one_gpu(minor=12)),
    Fault("board in another socket", "module_id", _one_gpu(module_id=13)),
    Fault("fabric bandwidth degraded", "fabric_health_mask", _one_gpu(fabric={"healthMask": 1})),
    Fault("module parameter", "nvidia_params", lambda r: {"driver": {"params": {"EnableResizableBar": 1}}}),
    Fault("automatic NUMA balancing on", "numa_balancing", lambda r: {"system": {"numa_balancing": True}}),
    Fault("relaxed ordering off", "relaxed_ordering", _patch_nic(ro="0")),
    Fault("Fabric Manager failed", "fabric", lambda r: {"services": {"nvidia-fabricmanager": "failed"}}),
    Fault(
        "NVSwitch not there",
        "inventory 10de:22a3",
        lambda r: {"patch": {f"0000:{83 + r.randrange(4)}:00.0": {"hidden": "1"}}},
    ),
    Fault(
        "NVSwitch without its driver",
        "nvswitch_devices",
        lambda r: {"patch": {f"0000:{83 + r.randrange(4)}:00.0": {"driver": "none"}}},
    ),
    Fault("power limit lowered", "power_limit_mw", _one_gpu(power_limit_w=500)),
    Fault("power limit of another product", "power_limit_default_mw", _one_gpu(power_default_w=650)),
    Fault("application clock lowered", "clock_sm_application_mhz", _one_gpu(clock_application_mhz=1410)),
    Fault("memory clock lower", "clock_memory_max_mhz", _one_gpu(clock_memory_max_mhz=1593)),
    Fault("compute mode exclusive", "compute_mode", _one_gpu(compute_mode=3)),
    Fault("addressing mode", "addressing_mode", _one_gpu(addressing=1)),
    Fault("virtualization mode", "virtualization_mode", _one_gpu(virtualization=3)),
    Fault("BAR1 small", "bar1_total_bytes", _one_gpu(bar1_mib=65536)),
    Fault("fabric not registered", "fabric_state", _one_gpu(fabric={"state": 2})),
    Fault("fabric in limited capacity", "fabric_health_summary", _one_gpu(fabric={"healthSummary": 3})),
    Fault("NVLinks at another rate", "nvlinks", _one_gpu(nvlink_mb_s=25000)),
    Fault(
        "peer access refused",
        "p2p_status",
        lambda r: {"nvml": {f"DeviceGetP2PStatus|{r.randrange(4)}|{4 + r.randrange(4)}|0": 1}},
    ),
    Fault("memory of another NUMA node", "memory_affinity", lambda r: {"gpu": {"1": {"memory_affinity": "1"}}}),
    Fault("GPU bound to vfio-pci", "GPU", lambda r: {"patch": {_gpu(r): {"driver": "vfio-pci"}}}),
    Fault("GPU in a clique of its own", "p2p_clique", lambda r: {"patch": {_gpu(r): {"clique": "5"}}}),
    Fault("GPU's device file refused", "device_files", lambda r: _refused(f"/dev/nvidia{r.randrange(8)}")),
    Fault("GPU's device file not there", "device_files", _one_gpu(device_file=False)),
    Fault("NIC's device file refused", "opens", lambda r: _refused(f"/dev/infiniband/uverbs{r.randrange(8)}")),
    Fault("NIC of another maker's order number", "board_id", _patch_nic(board="DEL0000000036")),
    Fault("NIC of another subsystem", "subsystem", _patch_nic(sub="1028:0041")),
    Fault("NIC of another model", "hca_type", _patch_nic(hca="MT4123")),
    Fault("NIC under another name", "label", lambda r: {"patch": {"mlx5_9": {"rdma": "mlx5_bond_0"}}}),
    Fault("NIC on another NUMA node", "numa_node", lambda r: {"patch": {"mlx5_0": {"node": "1"}}}),
    Fault("NIC in a slower slot", "speed", lambda r: {"patch": {f"above {_nic(r)}": {"max": "4x16"}}}),
    Fault("virtual functions enabled", "sriov", _patch_nic(totalvfs="16", numvfs="8")),
    Fault("read requests small", "max_read_request_bytes", _patch_nic(mrrs="256")),
    Fault("ATS on", "ats_enabled", _patch_nic(ats="on")),
    Fault(
        "payload that a port supports",
        "max_payload_supported_bytes",
        lambda r: {"patch": {f"above {_gpu(r)}": {"mps_supported": "256"}}},
    ),
    Fault("port as InfiniBand", "link_layer", _patch_nic(layer="InfiniBand")),
    Fault("port disabled", "phys_state", _patch_nic(state="DOWN/Disabled")),
    Fault("MTU of an interface", "mtu_bytes", _patch_nic(mtu="1500")),
    Fault(
        "RoCE v2 missing",
        "gids",
        lambda r: {"files": {f"/sys/class/infiniband/{_nic(r)}/ports/1/gid_attrs/types/3": "IB/RoCE v1"}},
    ),
    Fault(
        "bond that hashes by layer 2", "bond", lambda r: {"bonds": {"bond0": {"slaves": ["ens7f0np0", "ens8f0np0"]}}}
    ),
    Fault(
        "persistence daemon stopped",
        "nvidia_persistenced",
        lambda r: {"services": {"nvidia-persistenced": "inactive"}},
    ),
    Fault(
        "driver's library of another version",
        "nvml_library",
        lambda r: {"files": _library("570.86.15")},
    ),
    Fault("proprietary kernel module", "nvidia_module_flavor", lambda r: {"driver": {"flavor": "proprietary"}}),
    Fault("CUDA of another driver", "cuda_version", lambda r: {"driver": {"cuda": "12.4"}}),
    Fault("confidential computing on", "conf_computing", lambda r: {"driver": {"confidential": 1}}),
    Fault("IMEX channel that others lack", "imex_channels", lambda r: {"driver": {"imex_channels": 1}}),
    Fault("NIC driver of another version", "module mlx5_core", lambda r: {"modules": {"mlx5_core": "23.10-0.5.5"}}),
    Fault("operating system of another version", "os_name", lambda r: {"system": {"os": "Ubuntu 22.04.3 LTS"}}),
    Fault(
        "option of the kernel", "kernel_options", lambda r: {"system": {"cmdline": "ro quiet iommu=pt pcie_aspm=off"}}
    ),
    Fault("huge pages set aside", "hugepages", lambda r: {"system": {"hugepages": 51200}}),
    Fault("transparent huge pages", "transparent_hugepages", lambda r: {"system": {"transparent_hugepages": "always"}}),
    Fault("clock source slow", "clocksource", lambda r: {"system": {"clocksource": "hpet"}}),
    Fault("governor saves power", "cpu_governor", lambda r: {"system": {"governor": "powersave"}}),
    Fault("CPU frequency capped", "cpu_max_khz", lambda r: {"system": {"cpu_max_khz": 2_000_000}}),
    Fault("hyper-threading off", "smt", lambda r: {"system": {"smt": False}}),
    Fault("CPUs offline", "online_cpus", lambda r: {"files": {"/sys/devices/system/cpu/online": "0-190"}}),
    Fault("NUMA distances", "distances", lambda r: {"files": {"/sys/devices/system/node/node0/distance": "10 21"}}),
    Fault("in a virtual machine", "hypervisor", lambda r: {"system": {"hypervisor": True}}),
    Fault("in a container", "container", lambda r: {"system": {"marks": ["/.dockerenv"]}}),
    Fault("open files limited", "nofile", lambda r: {"limits": {"nofile": "1024"}}),
    Fault("stack limited", "stack_bytes", lambda r: {"limits": {"stack": "65536"}}),
    Fault("shared memory small", "shm_total_bytes", lambda r: {"limits": {"shm_bytes": 64 << 20}}),
    Fault("RemoveIPC set", "remove_ipc", lambda r: {"files": {"/etc/systemd/logind.conf": "[Login]\nRemoveIPC=no\n"}}),
    Fault("torch of another version", "software torch", lambda r: {"software": {"packages": {"torch": "2.5.1"}}}),
    Fault("UCX setting left over", "UCX_TLS", lambda r: {"environment": {"UCX_TLS": "tcp"}}),
    Fault(
        "topology file left over",
        "topo_file_path",
        lambda r: {"files": {"/var/run/nvidia-topologyd/virtualTopology.xml": '<system version="1"/>'}},
    ),
    Fault(
        "network plugin of NCCL",
        "network_plugins",
        lambda r: {"files": {"/usr/lib/x86_64-linux-gnu/libnccl-net.so": ""}},
    ),
)


def node(number: int, fault: Fault | None = None, seed: int = 0) -> Machine:
    """Return node `number` of the fleet, with at most one fault.

    Healthy nodes differ in host name, UUIDs, GUIDs, MAC and IP addresses, LIDs, resting GPUs and their links,
    processes, memory in use and free, a little in total memory, and in counters of traffic.
    """
    r = random.Random(f"{seed}/{number}")
    planted = fault.change(r) if fault else {}
    swap = planted.pop("swap", None)
    halve = planted.pop("halve", None)
    name = f"node{number:05d}"
    d = merge(load(BASE), _jitter(number, r, swap))
    d = merge(d, planted)
    if halve is not None:
        d["numa"] = [{**n, "memory_gib": 512} if i == halve else n for i, n in enumerate(d["numa"])]
        d["system"] = {k: v for k, v in d["system"].items() if k != "memory_kb"}
    if fault is not None and fault.name == "GPU off the bus":
        # A GPU that is lost leaves no memory to be asked of; nothing else of the node changes.
        d["gpu"] = {}
    return build(d, name)


def _jitter(number: int, r: random.Random, swap: tuple[int, int] | None) -> dict[str, Any]:
    place = list(range(RAILS))
    if swap:
        place[swap[0]], place[swap[1]] = place[swap[1]], place[swap[0]]
    hosts = f"{number // 250}.{number % 250 + 1}"
    patch: dict[str, dict[str, str]] = {
        f"mlx5_{k}": {"ip": f"10.{100 + rail}.{hosts}", "layer": "Ethernet"} for k, rail in enumerate(place)
    }
    patch["mlx5_8"] = {"ip": f"10.8.{hosts}", "layer": "Ethernet"}
    patch["mlx5_9"] = {"ip": f"10.9.{hosts}", "layer": "Ethernet"}
    gpus: dict[str, dict[str, Any]] = {}
    for g in range(8):
        rests = r.random() < 0.5
        patch[f"GPU{g}"] = {"now": "1x16" if rests else "5x16"}
        gpus[str(g)] = {
            "pstate": 8 if rests else 0,
            "memory_used_mib": r.randrange(1, 70_000),
            "pids": [] if rests else [r.randrange(1000, 60_000)],
        }
    kb = 2 * (1024 << 20) - r.randrange(40_000)
    return {
        "system": {"memory_kb": kb, "memory_available_kb": r.randrange(kb // 2, kb)},
        "patch": patch,
        "gpu": gpus,
        "now": f"2026-01-{r.randrange(1, 28):02d}T{r.randrange(24):02d}:00:00Z",
        "files": _library("570.124.06")
        | {
            f"/sys/class/infiniband/mlx5_{k}/ports/1/counters/{c}": str(r.randrange(1 << 40))
            for k in range(RAILS)
            for c in ("port_xmit_data", "port_rcv_data")
        },
    }


def plan(nodes: int, faults: int, seed: int = 0) -> dict[int, Fault]:
    """Return number of a node -> its fault, each kind of fault as often as the others."""
    chosen = random.Random(seed).sample(range(nodes), faults)
    return {n: FAULTS[i % len(FAULTS)] for i, n in enumerate(chosen)}
