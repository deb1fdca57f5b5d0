"""The answers that checks rest on, by name: what a check says it needs (`needs=` of `@check`) is written in these."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

PCI = "/sys/bus/pci/devices"
IDS = rf"read:{PCI}/[^/]+/(modalias|vendor|device|class|subsystem_vendor|subsystem_device)$"
_RDMA_CLASS, _PORT = "/sys/class/infiniband", "/sys/class/infiniband/[^/]+/ports/[^/]+"

SOURCES: Mapping[str, tuple[str, ...]] = {
    # Which PCI functions there are, what they are, and where.
    "pci": (f"list:{PCI}$", f"realpath:{PCI}/[^/]+$", IDS),
    "driver": (f"readlink:{PCI}/[^/]+/driver$",),
    "config": (rf"read:{PCI}/[^/]+/config\|",),
    "link": (f"read:{PCI}/[^/]+/(current|max)_link_(speed|width)$",),
    "errors": (f"read:{PCI}/[^/]+/aer_dev_(fatal|nonfatal)$",),
    "node": (f"read:{PCI}/[^/]+/numa_node$",),
    # Which GPUs the driver knows, and what it says of them.
    "nvml": ("nvml:DeviceGetCount$", "nvml:DeviceGetPciInfo\\|"),
    "gpu name": ("nvml:DeviceGetName\\|",),
    "gpu uuid": ("nvml:DeviceGetUUID\\|",),
    "gpu": ("nvml:DeviceGet(BAR1MemoryInfo|MemoryInfo|EccMode|CurrPcieLinkWidth)\\|",),
    "rest": ("nvml:DeviceGet(PerformanceState|UtilizationRates|ComputeRunningProcesses)\\|",),
    "clocks": ("nvml:DeviceGetCurrentClocksEventReasons\\|",),
    "gpu cpus": ("nvml:DeviceGetCpuAffinity\\|",),
    "fabric": ("nvml:DeviceGetGpuFabricInfoV\\|",),
    "nvlinks": ("nvml:DeviceGetNvLink(State|RemotePciInfo|RemoteDeviceType)\\|",),
    "nvlink counters": ("nvml:DeviceGetFieldValues\\|", "nvml:DeviceGetNvLinkVersion\\|"),
    "peer access": ("nvml:DeviceGetP2PStatus\\|",),
    "mig": ("nvml:DeviceGet(MigMode|MaxMigDeviceCount|MigDeviceHandleByIndex)\\|",),
    "confidential": ("nvml:SystemGetConfComputeState$",),
    "versions": ("nvml:SystemGetDriverVersion$", "read:(/sys/module/nvidia|/proc/driver/nvidia)/version$"),
    "params": ("lines:/proc/driver/nvidia/params",),
    "cuda": ("cuda:",),
    # Which RDMA devices there are, what they are, and which of their ports are up.
    "rdma": (
        f"list:{_RDMA_CLASS}(/[^/]+/ports)?$",
        f"realpath:{_RDMA_CLASS}/[^/]+/device$",
        f"read:{_PORT}/(state|link_layer)$",
    ),
    "rate": (f"read:{_PORT}/rate$",),
    "gids": (f"(list|read):{_PORT}/(gids|gid_attrs/types)",),
    "model": (f"read:{_RDMA_CLASS}/[^/]+/(board_id|hca_type|fw_ver)$",),
    "physfn": (f"readlink:{_RDMA_CLASS}/[^/]+/device/physfn$",),
    "counters": (f"(list|read):{_PORT}/(hw_)?counters",),
    "verbs": ("(list|access):/dev/infiniband", "list:/sys/class/infiniband_verbs$"),
    "addresses": ("psutil:net_netmasks$",),
    "routes": ("read:/proc/net/route", "lines:/proc/net/fib_trie", "read:/proc/sys/net/ipv4/conf/"),
    "interfaces": ("list:/sys/class/net$", "read:/sys/class/net/[^/]+/(flags|operstate)$"),
    # NCCL's settings and its version, wherever they stand.
    "settings": ("environ:$", "process:$", "conf:"),
    "topology file": ("read:.*\\.xml$",),
    "nccl": ("list:.*/(dist|site)-packages$", "readlink:.*/libnccl\\.so", "process:$"),
    # The machine as a whole.
    "modules": ("lines:/proc/modules", "list:/sys/(module|kernel/mm/memory_peers)$"),
    "iommu": (
        "(list|read):/sys/kernel/iommu_groups",
        f"readlink:{PCI}/[^/]+/iommu_group$",
        "list:/sys/class/iommu$",
        "kernel_options:$",
    ),
    "hypervisor": ("read:/proc/cpuinfo", "read:/sys/class/dmi/id/", "read:/(sys/hypervisor|proc/device-tree)/"),
    "container": ("stat:/(\\.|run/)", "read:/proc/self/cgroup$", "environ:$"),
    "kubelet": ("stat:/var/lib/kubelet$",),
    "services": ("run:.*systemctl", "stat:/proc/driver/nvidia$", "run:.*nv-fabricmanager"),
    "numa": ("read:/sys/devices/system/node/(online|has_memory|node[0-9]+/cpulist)$",),
    "sockets": ("read:/sys/devices/system/cpu/(online|cpu[0-9]+/topology/package_cpus_list)$",),
    # This process.
    "status": ("lines:/proc/self/status",),
    "limits": ("read:/proc/self/limits$",),
    "shared memory": ("(list|stat|statvfs):/dev/shm", "now:$"),
    "matrix": ("run:.*nvidia-smi",),
}
"""Name -> patterns of questions."""

PROBES = {
    "pci": ("pci", "driver", "config", "link", "errors", "node", "iommu"),
    "nvml": (
        *("nvml", "gpu name", "gpu uuid", "gpu", "gpu cpus", "mig", "confidential", "versions"),
        *("rest", "clocks", "fabric", "nvlinks", "nvlink counters", "peer access"),
    ),
    "cuda": ("cuda",),
    "net": ("rdma", "rate", "gids", "model", "physfn", "counters", "verbs", "interfaces", "addresses", "routes"),
    "settings": ("settings", "topology file"),
    "software": ("nccl",),
    "system": ("modules", "iommu", "hypervisor", "container", "kubelet", "versions", "params"),
    "services": ("services",),
    "programs": ("services",),
    "numa": ("numa", "sockets", "status"),
    "limits": ("limits", "status", "shared memory"),
    "smi_topo": ("matrix",),
}
"""Probe -> the sources that are lost where it broke as a whole."""


class Needs(msgspec.Struct, frozen=True):
    """What a check cannot do without: names in SOURCES.

    Attributes:
        applies: what shows that there is something to judge. Without it `not_applicable` is not known either.
        judged: what it goes by then.
    """

    applies: tuple[str, ...] = ()
    judged: tuple[str, ...] = ()


NOTHING = Needs()

GPUS = ("pci", "nvml")
PEERS = (*GPUS, "peer access", "nvlinks", "cuda", "mig", "confidential", "fabric", "hypervisor")
NICS = (*GPUS, "rdma")
GPUDIRECT = (*NICS, "modules", "cuda", "driver", "fabric")
