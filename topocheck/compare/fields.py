"""Which fields of a report are compared, to which section each belongs, and what on the machine is behind it.

Left out on purpose, because equal and healthy nodes differ in them: host names, serial numbers, UUIDs, GUIDs,
MAC and IP addresses, LIDs; the speed to which an idle GPU has slowed its link, clocks, performance state, memory in
use, processes; every counter; fabric clique and cluster (identifiers of an NVLink domain); affinity and memory limits
of the process that made the report, and the variables that say which rank or step of a job it is. Memory sizes are
compared with a tolerance (facts.py, `approximate`).
"""

from __future__ import annotations

import re

import msgspec


class Field(msgspec.Struct, frozen=True):
    """One compared field.

    Attributes:
        name: as in the JSON report.
        section: hardware, wiring, firmware, driver, software, settings, network or probes.
        source: what on the machine is behind it; `{address}`, `{name}` and `{port}` are filled in.
    """

    name: str
    section: str
    source: str = ""


def _fields(section: str, **sources: str) -> tuple[Field, ...]:
    return tuple(Field(name, section, source) for name, source in sources.items())


_DMI = "/sys/class/dmi/id/"
_PCI = "/sys/bus/pci/devices/{address}/"
_RDMA = _PCI + "infiniband/*/"
_PORT = _RDMA + "ports/{port}/"

NODE = (
    *_fields(
        "hardware",
        machine="uname -m",
        cpu_vendor="/proc/cpuinfo vendor_id",
        cpu_model_name="/proc/cpuinfo model name",
        sockets="/sys/devices/system/cpu/cpu*/topology/physical_package_id",
        online_cpus="/sys/devices/system/cpu/online",
        dmi_vendor=_DMI + "sys_vendor",
        dmi_product=_DMI + "product_name",
        gpus="PCI functions of GPUs",
        nics="RDMA devices with a PCI function",
        numa_nodes="/sys/devices/system/node/online",
        nvswitch_devices="/dev/nvidia-nvswitch*",
    ),
    *_fields(
        "software",
        os_name="/etc/os-release",
        kernel_release="/proc/sys/kernel/osrelease",
    ),
    *_fields(
        "driver",
        driver_version="NVML SystemGetDriverVersion",
        cuda_version="NVML SystemGetCudaDriverVersion",
        nvidia_module_flavor="/proc/driver/nvidia/version",
        fabric_manager="systemctl show nvidia-fabricmanager.service",
        nvidia_persistenced="systemctl show nvidia-persistenced.service",
        nvidia_imex="systemctl show nvidia-imex.service",
        nvml_library="libnvidia-ml.so.1",
        device_files="/dev/nvidia*",
        nvidia_gpus_excluded="/proc/driver/nvidia/gpus/*/information",
        imex_channels="/dev/nvidia-caps-imex-channels",
        peer_memory_symbol="/lib/modules/*/modules.symbols",
    ),
    *_fields(
        "settings",
        memory_peers="/sys/kernel/mm/memory_peers",
        hypervisor="/proc/cpuinfo flags, " + _DMI + "sys_vendor",
        container="/proc/1/cgroup, /.dockerenv and the like",
        kernel_options="/proc/cmdline",
        iommu_devices="/sys/class/iommu",
        iommu_group_types="/sys/kernel/iommu_groups/*/type",
        memlock_bytes="/proc/self/limits Max locked memory",
        nofile="/proc/self/limits Max open files",
        nproc="/proc/self/limits Max processes",
        stack_bytes="/proc/self/limits Max stack size",
        numa_balancing="/proc/sys/kernel/numa_balancing",
        nvidia_params="/proc/driver/nvidia/params",
        conf_computing="NVML SystemGetConfComputeState",
        clocksource="/sys/devices/system/clocksource/clocksource0/current_clocksource",
        cpu_governor="/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        cpu_max_khz="/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq",
        smt="/sys/devices/system/cpu/smt/active",
        hugepages="/proc/sys/vm/nr_hugepages",
        transparent_hugepages="/sys/kernel/mm/transparent_hugepage/enabled",
        remove_ipc="logind.conf RemoveIPC",
        topo_file_path="NCCL_TOPO_FILE",
    ),
    *_fields(
        "software",
        mpi_cuda_aware="ompi_info",
        network_plugins="LD_LIBRARY_PATH, the loader's folders",
    ),
)
GPU = (
    *_fields(
        "hardware",
        vendor=_PCI + "vendor",
        name="NVML DeviceGetName",
        compute_capability="NVML DeviceGetCudaComputeCapability",
        on_bus=_PCI + "config, NVML DeviceGetHandleByIndex",
        bar1_total_bytes="NVML DeviceGetBAR1MemoryInfo",
        pcie_gen_max="NVML DeviceGetMaxPcieLinkGeneration",
        pcie_width_max="NVML DeviceGetMaxPcieLinkWidth",
        c2c_links="NVML DeviceGetFieldValues C2C_LINK_COUNT",
        gpudirect_rdma="CUDA GPU_DIRECT_RDMA_SUPPORTED",
        dma_buf="CUDA DMA_BUF_SUPPORTED",
        fabric_handles="CUDA HANDLE_TYPE_FABRIC_SUPPORTED",
        flush_writes_options="CUDA GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS",
        board_part_number="NVML DeviceGetBoardPartNumber",
    ),
    *_fields("firmware", vbios="NVML DeviceGetVbiosVersion"),
    *_fields(
        "settings",
        mig_current="NVML DeviceGetMigMode",
        ecc_current="NVML DeviceGetEccMode",
        compute_mode="NVML DeviceGetComputeMode",
        persistence_mode="NVML DeviceGetPersistenceMode",
        ecc_pending="NVML DeviceGetEccMode",
        mig_pending="NVML DeviceGetMigMode",
        clock_sm_max_mhz="NVML DeviceGetMaxClockInfo SM",
        clock_memory_max_mhz="NVML DeviceGetMaxClockInfo MEM",
        clock_sm_application_mhz="NVML DeviceGetApplicationsClock SM",
        power_limit_mw="NVML DeviceGetPowerManagementLimit",
        power_limit_default_mw="NVML DeviceGetPowerManagementDefaultLimit",
        addressing_mode="NVML DeviceGetAddressingMode",
        virtualization_mode="NVML DeviceGetVirtualizationMode",
        c2c_enabled="NVML DeviceGetC2cModeInfoV",
    ),
    *_fields(
        "wiring",
        cpu_node=_PCI + "numa_node",
        memory_node="NVML DeviceGetNumaNodeId",
        cpu_affinity="NVML DeviceGetCpuAffinity",
        memory_affinity="NVML DeviceGetMemoryAffinity",
        p2p_status="NVML DeviceGetP2PStatus",
        c2c_links_active="NVML DeviceGetFieldValues C2C_LINK_GET_STATUS",
        pcie_width_current="NVML DeviceGetCurrPcieLinkWidth",
        nvlinks="NVML DeviceGetNvLinkState, DeviceGetNvLinkRemotePciInfo",
        fabric_state="NVML DeviceGetGpuFabricInfo",
        fabric_status="NVML DeviceGetGpuFabricInfo",
        fabric_health_mask="NVML DeviceGetGpuFabricInfoV",
        fabric_health_summary="NVML DeviceGetGpuFabricInfoV",
        module_id="NVML DeviceGetModuleId",
        minor="NVML DeviceGetMinorNumber",
    ),
)
NIC = (
    *_fields("hardware", hca_type=_RDMA + "hca_type", hw_rev=_RDMA + "hw_rev", physfn=_PCI + "physfn"),
    *_fields("firmware", firmware=_RDMA + "fw_ver", board_id=_RDMA + "board_id"),
    *_fields("driver", opens="/dev/infiniband/uverbs*"),
    *_fields("wiring", cpu_node=_PCI + "numa_node"),
    *_fields("settings", label="/sys/class/infiniband", netdevs=_PCI + "net", node_type=_RDMA + "node_type"),
)
PORT = _fields(
    "network",
    state=_PORT + "state",
    phys_state=_PORT + "phys_state",
    link_layer=_PORT + "link_layer",
    rate_gbit_s=_PORT + "rate",
    sm_lid=_PORT + "sm_lid",
    gids=_PORT + "gids, gid_attrs/types",
)
INTERFACE = (
    *_fields("driver", driver="/sys/class/net/{name}/device/driver"),
    *_fields("network", speed_mbit_s="/sys/class/net/{name}/speed", operstate="/sys/class/net/{name}/operstate"),
    *_fields(
        "settings",
        mtu_bytes="/sys/class/net/{name}/mtu",
        bond_mode="/sys/class/net/{name}/bonding/mode",
        bond_hash_policy="/sys/class/net/{name}/bonding/xmit_hash_policy",
    ),
)
NUMA = _fields(
    "hardware",
    cpulist="/sys/devices/system/node/node{name}/cpulist",
    distances="/sys/devices/system/node/node{name}/distance",
)
PCI = (
    *_fields(
        "hardware",
        id=_PCI + "vendor, device",
        subsystem=_PCI + "subsystem_vendor, subsystem_device",
        revision=_PCI + "config (Revision ID)",
        max_speed_gt_s=_PCI + "max_link_speed",
        max_payload_supported_bytes=_PCI + "config (Device Capabilities)",
    ),
    *_fields(
        "wiring",
        parent=_PCI.removesuffix("/"),
        numa_node=_PCI + "numa_node",
        max_width_lanes=_PCI + "max_link_width",
        current_width_lanes=_PCI + "current_link_width",
        current_speed_gt_s=_PCI + "current_link_speed",
    ),
    *_fields("driver", driver=_PCI + "driver"),
    *_fields(
        "settings",
        acs_control_word=_PCI + "config (ACS control)",
        max_payload_bytes=_PCI + "config (Device Control)",
        iommu_group_type=_PCI + "iommu_group/type",
        relaxed_ordering=_PCI + "config (Device Control)",
        max_read_request_bytes=_PCI + "config (Device Control)",
        ats_enabled=_PCI + "config (ATS control)",
        p2p_clique=_PCI + "config (vendor capability)",
        autonomous_speed_disabled=_PCI + "config (Link Control 2)",
        sriov_totalvfs=_PCI + "sriov_totalvfs",
        sriov_numvfs=_PCI + "sriov_numvfs",
    ),
)
PATH = _fields("wiring", **{"class": "PCI tree and NVLinks", "pcie_class": "PCI tree", "nvlinks": "NVLinks"})

KINDS: dict[str, tuple[Field, ...]] = {
    "node": NODE,
    "gpu": GPU,
    "accelerator": GPU,
    "nic": NIC,
    "port": PORT,
    "interface": INTERFACE,
    "numa": NUMA,
    "pci": PCI,
    "path": PATH,
    "module": _fields("driver", version="/sys/module/{name}/version, /proc/modules"),
    "software": _fields("software", version="software.{name}"),
    "setting": _fields("settings", value="environment or nccl.conf"),
    "inventory": _fields("hardware", count="/sys/bus/pci/devices/*/vendor, device"),
    "probe": _fields("probes", state="probe {name}"),
}
"""Kind of device -> its fields, in the order of the values in NodeFacts.devices."""

LOOSE_KINDS = frozenset({"module", "software", "setting", "inventory", "probe"})
"""Kinds whose entries are names with one value each: one that is not there is the value `absent`."""

_WORD = re.compile(r"[a-z]+")


def kind_of(slot: str) -> str:
    """Return the kind of a slot: `gpu` for `gpu3`, `path` for `path gpu0-nic1`."""
    m = _WORD.match(slot)
    return m[0] if m else slot
