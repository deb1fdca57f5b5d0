"""Every question that probes ask, and what a snapshot holds of the answer where identifiers are replaced.

A probe that asks something new needs a row here, or its answer is in no such snapshot; tests/host/test_kept.py says
so. The table of docs/snapshots.md is made from this one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from topocheck.host.live import cuda as cuda_calls
from topocheck.host.live import nvml as nvml_calls
from topocheck.host.recording.anonymize import Kept, Table
from topocheck.host.recording.forms import (
    ADDRESS,
    CPU_LIST,
    DEVICE,
    GID,
    GUID,
    HOST,
    NAME,
    NUMBER,
    NUMBERS,
    PATH,
    PCI,
    SYSFS,
    UUID,
    VERSION,
    by,
    exactly,
    fields,
    lines,
    mapping,
    one_of,
    scalar,
)  # fmt: skip
from topocheck.probes import modules, net_plugins, nvidia_procfs, nvml_library, rdma, routes
from topocheck.probes.kept import forms as own
from topocheck.probes.kept import texts
from topocheck.probes.kept.config import config_space
from topocheck.probes.kept.holes import HOLES, drop_in, learn, shared_memory
from topocheck.probes.kept.settings import KERNEL_OPTION, SETTING_LINE, environment, plugin_file
from topocheck.probes.registry import PROBE_NAMES

_PCI = "/sys/bus/pci/devices/{pci}"
_IB = "/sys/class/infiniband/{rdma}"
_NET = "/sys/class/net/{net}"
_NODE = "/sys/devices/system/node"
_CPU = "/sys/devices/system/cpu"
_NVIDIA = "/proc/driver/nvidia"
_CGROUP = "/sys/fs/cgroup{cgroup}"
_MODULES = (*modules.MODULES, *modules.LISTED_ONLY)
_FABRIC_MANAGER = "system.slice/nvidia-fabricmanager.service"


def _calls(kind: str, calls: Iterable[str]) -> Iterator[Kept]:
    """Yield a row for each call of a library that gives a text or a struct, and one for all that give numbers."""
    numbers = []
    for call in sorted(calls):
        if call in own.CALL_TEXTS:
            yield Kept(kind, f"{call}{{numbers}}", own.CALL_TEXTS[call])
        elif call in own.CALL_STRUCTS:
            yield Kept(kind, f"{call}{{numbers}}", own.CALL_STRUCTS[call], own.STRUCT_WORDS.get(call, "numbers"))
        else:
            numbers.append(call)
    yield Kept(kind, f"{{{' '.join(numbers)}}}{{numbers}}", scalar, "numbers")


def _asked(prefixes: Iterable[str]) -> str:
    """Return the arguments of a question for lines that begin so."""
    return "|".join(prefixes)


ROWS = (
    Kept("now", "", exactly("the time of the run", r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")),
    Kept("duration", f"{{{' '.join(PROBE_NAMES)}}}", scalar, "how long a probe took"),
    Kept("probe", f"{{{' '.join(PROBE_NAMES)}}}", scalar, "how a probe went, in topocheck's own words"),
    # -- PCI
    Kept("list", "/sys/bus/pci/devices", PCI),
    Kept("realpath", _PCI, SYSFS),
    Kept("read", f"{_PCI}/{{vendor device subsystem_vendor subsystem_device class}}", NUMBER),
    Kept("read", f"{_PCI}/modalias", exactly("PCI ids", r"pci:v[0-9A-F]{8}d[0-9A-F]{8}sv[0-9A-F]{8}sd[0-9A-F]{8}"
         r"bc[0-9A-F]{2}sc[0-9A-F]{2}i[0-9A-F]{2}")),
    Kept("read", f"{_PCI}/{{max_link_speed current_link_speed}}", own.SPEED),
    Kept("read", f"{_PCI}/{{max_link_width current_link_width numa_node secondary_bus_number subordinate_bus_number "
         "sriov_totalvfs sriov_numvfs}", NUMBER),
    Kept("read", f"{_PCI}/boot_vga", NUMBER),
    Kept("read", f"{_PCI}/power/runtime_status", one_of("active suspended suspending resuming error unsupported")),
    Kept("read", f"{_PCI}/power_state", one_of("D0 D1 D2 D3hot D3cold unknown error")),
    Kept("read", f"{_PCI}/local_cpulist", CPU_LIST),
    Kept("read", f"{_PCI}/resource", lines(exactly("numbers", "0x[0-9a-f]{16} 0x[0-9a-f]{16} 0x[0-9a-f]{16}"))),
    Kept("read", f"{_PCI}/config{{numbers}}", config_space, "the registers that are read; a serial number is replaced"),
    Kept("read", f"{_PCI}/vpd{{numbers}}", one_of("SMDL=SW_MNG"), "whether it says SMDL=SW_MNG; nothing else of it"),
    Kept("read", f"{_PCI}/aer_dev_{{correctable nonfatal fatal}}", lines(own.AER_LINE)),
    Kept("readlink", f"{_PCI}/driver", own.link(own.DRIVER)),
    Kept("readlink", f"{_PCI}/iommu_group", own.link(NUMBER)),
    Kept("readlink", f"{_PCI}/physfn", own.link(ADDRESS)),
    Kept("list", "/sys/bus/pci/slots", by(own.slot, "numbers of slots; other names are replaced")),
    Kept("read", "/sys/bus/pci/slots/{slot}/address", ADDRESS),
    Kept("list", "/sys/kernel/iommu_groups", exactly("numbers", "[0-9]{1,6}", drop=True)),
    Kept("read", "/sys/kernel/iommu_groups/{n}/type", own.IOMMU_TYPE),
    Kept("list", "/sys/class/iommu", own.IOMMU),
    Kept("pci_names", "{ids}", mapping(exactly("", "[0-9a-f]{4}:[0-9a-f]{4}", drop=True), own.names), NAME.what),
    Kept("lspci", "{pci}", texts.lspci_block, "lspci's lines of the registers that are read"),
    Kept("sources", "", texts.sources, "what was recognised in the files that a recording was made of; names replaced"),
    # -- RDMA and network interfaces
    Kept("list", "/sys/class/infiniband", DEVICE),
    Kept("realpath", f"{_IB}/device", SYSFS),
    Kept("readlink", f"{_IB}/device/physfn", own.link(ADDRESS)),
    Kept("list", f"{_IB}/device/net", DEVICE),
    Kept("read", f"{_IB}/fw_ver", VERSION),
    Kept("read", f"{_IB}/board_id", own.BOARD),
    Kept("read", f"{_IB}/hca_type", NAME),
    Kept("read", f"{_IB}/hw_rev", NUMBER),
    Kept("read", f"{_IB}/device/current_link_width", NUMBER),
    Kept("read", f"{_IB}/node_type", own.STATE),
    Kept("read", f"{_IB}/{{node_guid sys_image_guid}}", GUID),
    Kept("list", f"{_IB}/ports", exactly("numbers", "[0-9]{1,4}", drop=True)),
    Kept("read", f"{_IB}/ports/{{n}}/{{state phys_state}}", own.STATE),
    Kept("read", f"{_IB}/ports/{{n}}/link_layer", one_of("InfiniBand Ethernet Unspecified IB Unknown")),
    Kept("read", f"{_IB}/ports/{{n}}/rate", own.RATE),
    Kept("read", f"{_IB}/ports/{{n}}/{{lid sm_lid}}", NUMBER),
    Kept("list", f"{_IB}/ports/{{n}}/gids", exactly("numbers", "[0-9]{1,4}", drop=True)),
    Kept("read", f"{_IB}/ports/{{n}}/gids/{{n}}", GID),
    Kept("read", f"{_IB}/ports/{{n}}/gid_attrs/types/{{n}}", own.GID_TYPE),
    Kept("read", f"{_IB}/ports/{{n}}/gid_attrs/ndevs/{{n}}", DEVICE),
    Kept("list", f"{_IB}/ports/{{n}}/{{counters hw_counters}}",
         one_of(" ".join((*rdma.COUNTERS, *rdma.HW_COUNTERS)), "names of counters", drop=True)),
    Kept("read", f"{_IB}/ports/{{n}}/counters/{{{' '.join(rdma.COUNTERS)}}}", NUMBER),
    Kept("read", f"{_IB}/ports/{{n}}/hw_counters/{{{' '.join(rdma.HW_COUNTERS)}}}", NUMBER),
    Kept("list", "/dev/infiniband", own.VERBS),
    Kept("access", "/dev/infiniband/{verbs}|rw", scalar, "yes or no"),
    Kept("list", "/sys/class/infiniband_verbs", own.VERBS_CLASS),
    Kept("read", "/sys/class/infiniband_verbs/{verbs}/ibdev", DEVICE),
    Kept("list", "/sys/class/net", own.INTERFACE),
    Kept("realpath", _NET, SYSFS),
    Kept("realpath", f"{_NET}/device", SYSFS),
    Kept("readlink", f"{_NET}/device/driver", own.link(own.DRIVER)),
    Kept("readlink", f"{_NET}/master", own.link(DEVICE)),
    Kept("read", f"{_NET}/{{speed mtu flags}}", NUMBER),
    Kept("read", f"{_NET}/operstate", one_of("up down unknown notpresent lowerlayerdown testing dormant")),
    Kept("read", f"{_NET}/bonding/slaves", own.DEVICES),
    Kept("read", f"{_NET}/bonding/{{mode xmit_hash_policy}}",
         exactly("words of the kernel", r"[a-z0-9.+\-]{1,24} [0-9]{1,2}")),
    Kept("read", "/sys/class/net/bonding_masters", own.DEVICES),
    Kept("psutil", "{net_addresses net_netmasks}", mapping(DEVICE, own.addresses),
         "names of interfaces; addresses, replaced; netmasks"),
    Kept("read", f"{routes.FILE}{{numbers}}", lines(own.ROUTE)),
    Kept("lines", f"{routes.TABLES}|Id ", exactly("numbers of routing tables", "Id [0-9]{1,10}:", drop=True)),
    Kept("read", f"{routes.CONF}/all/{{{' '.join(routes.FILTERS)}}}", NUMBER),
    Kept("read", f"{routes.CONF}/{{net}}/{{{' '.join(routes.FILTERS)}}}", NUMBER),
    # -- processors and memory
    Kept("read", f"{_NODE}/{{online has_cpu has_memory}}", CPU_LIST),
    Kept("read", f"{_NODE}/node{{n}}/cpulist", CPU_LIST),
    Kept("read", f"{_NODE}/node{{n}}/distance", NUMBERS),
    Kept("lines", f"{_NODE}/node{{n}}/meminfo|Node {{n}} MemTotal|Node {{n}} MemFree",
         exactly("sizes", r"Node [0-9]{1,4} Mem(?:Total|Free):\s+[0-9]{1,18} kB", drop=True)),
    Kept("read", f"{_CPU}/online", CPU_LIST),
    Kept("read", f"{_CPU}/smt/active", NUMBER),
    Kept("read", f"{_CPU}/cpu0/cpufreq/scaling_governor",
         one_of("performance powersave ondemand conservative schedutil userspace")),
    Kept("read", f"{_CPU}/cpu0/cpufreq/scaling_max_freq", NUMBER),
    Kept("read", "/sys/devices/system/clocksource/clocksource0/current_clocksource",
         one_of("tsc hpet acpi_pm kvm-clock xen hyperv_clocksource_tsc_page arch_sys_counter timebase jiffies")),
    Kept("read", "/sys/kernel/mm/transparent_hugepage/enabled",
         exactly("words of the kernel", r"\[?always\]? \[?madvise\]? \[?never\]?")),
    Kept("read", "/proc/sys/vm/nr_hugepages", NUMBER),
    Kept("read", f"{_CPU}/cpu{{n}}/topology/{{package_cpus_list core_siblings_list core_cpus_list "
         "thread_siblings_list}", CPU_LIST),
    Kept("read", f"{_CPU}/cpu{{n}}/topology/physical_package_id", NUMBER),
    Kept("read", "/proc/cpuinfo{numbers}", lines(own.CPU)),
    Kept("lines", "/proc/meminfo|MemTotal:|MemAvailable:",
         exactly("sizes", r"Mem(?:Total|Available):\s+[0-9]{1,18} kB", drop=True)),
    # -- kernel, firmware, container
    Kept("read", "/proc/sys/kernel/hostname", HOST),
    Kept("read", "/proc/sys/kernel/random/boot_id", UUID),
    Kept("read", "/proc/sys/kernel/osrelease", VERSION),
    Kept("read", "/proc/sys/kernel/arch", one_of("x86_64 aarch64 ppc64le s390x riscv64 i686 loongarch64 armv7l")),
    Kept("read", "/proc/sys/kernel/numa_balancing", NUMBER),
    Kept("read", "/proc/version", own.KERNEL),
    Kept("kernel_options", "", KERNEL_OPTION),
    Kept("lines", "/boot/config-{release}|" + _asked(modules.CONFIG), own.BUILD_OPTION),
    Kept("lines", "/lib/modules/{release}/config|" + _asked(modules.CONFIG), own.BUILD_OPTION),
    Kept("lines", "{/etc/os-release /usr/lib/os-release}|PRETTY_NAME=", own.OS_NAME),
    Kept("lines", "/etc/systemd/logind.conf|RemoveIPC", own.REMOVE_IPC),
    Kept("lines", f"{{{' '.join(own.LOGIND)}}}/{{drop-in}}|RemoveIPC", own.REMOVE_IPC),
    Kept("list", f"{{{' '.join(own.LOGIND)}}}", by(drop_in, "how many files there are")),
    Kept("list", "/sys/module", one_of(" ".join(_MODULES), "names of modules for GPUs and networks", drop=True)),
    Kept("lines", "/proc/modules|" + _asked(f"{m} " for m in modules.MODULES), own.MODULE_LINE),
    Kept("read", f"/sys/module/{{{' '.join(_MODULES)}}}/version{{numbers}}", VERSION),
    Kept("list", "/sys/kernel/mm/memory_peers", own.DRIVER),
    Kept("lines", "/lib/modules/{release}/modules.symbols|" + modules.PEER_MEMORY, own.SYMBOL),
    Kept("kernel_log", "", own.LOG_LINE),
    Kept("read", "/sys/class/dmi/id/{sys_vendor product_name}", NAME),
    Kept("read", "/proc/device-tree/{compatible hypervisor/compatible}", own.DEVICE_TREE),
    Kept("read", "/sys/hypervisor/type", one_of("xen kvm vmware microsoft unknown")),
    Kept("read", "/proc/xen/capabilities", one_of("control_d")),
    Kept("read", "/run/systemd/container", own.CONTAINER),
    Kept("stat", "{/.dockerenv /run/.containerenv /.singularity.d /dev/shm /proc/driver/nvidia /var/lib/kubelet}",
         own.FILE_STATUS, own.STATUS),
    # -- NVIDIA's kernel module
    Kept("read", f"{_NVIDIA}/version", own.NVIDIA_VERSION),
    Kept("lines", f"{_NVIDIA}/params|" + _asked(f"{p}:" for p in nvidia_procfs.PARAMETERS), own.PARAMETER),
    Kept("list", f"{_NVIDIA}/gpus", PCI),
    Kept("lines", f"{_NVIDIA}/gpus/{{pci}}/information|Device Minor:|GPU Excluded:",
         exactly("numbers", r"Device Minor:\s+[0-9]{1,4}", r"GPU Excluded:\s+(?:Yes|No)", drop=True)),
    Kept("list", "/dev", own.NVIDIA_FILE),
    Kept("stat", "/dev/{nvidia-file}", own.FILE_STATUS, own.STATUS),
    Kept("access", "/dev/{nvidia-file}|rw", scalar, "yes or no"),
    Kept("realpath", f"{{{' '.join(nvml_library.PATHS)}}}", own.LIBRARY),
    Kept("stat", "/dev/nvidia-nvswitch{n}", own.FILE_STATUS, own.STATUS),
    Kept("list", "/dev/nvidia-caps-imex-channels", exactly("names of channels", "channel[0-9]{1,5}", drop=True)),
    *_calls("nvml", nvml_calls.CALLS),
    Kept("cuda", f"DeviceGetAttribute|{{n}}|{{{' '.join(cuda_calls.ATTRIBUTES)}}}", scalar, "numbers"),
    *_calls("cuda", cuda_calls.CALLS),
    # -- this process
    Kept("process", "",
         fields(uid=own.user, gid=own.user, home=own.HOME, affinity=CPU_LIST, python_version=VERSION, sys_path=PATH),
         "user, group and home folder, replaced; CPUs; the version of Python and the folders of its packages"),
    Kept("lines", "/proc/self/status|CapEff:|Seccomp:",
         exactly("numbers", r"CapEff:\s+[0-9a-f]{1,16}", r"Seccomp:\s+[0-9]{1,4}", drop=True)),
    Kept("lines", "/proc/self/status|Cpus_allowed_list:|Mems_allowed_list:",
         exactly("lists of CPUs and nodes", r"(?:Cpus|Mems)_allowed_list:\s+[0-9,\-]{0,4096}", drop=True)),
    Kept("read", "/proc/self/limits", lines(own.LIMIT)),
    Kept("read", "/proc/self/cgroup", lines(own.CGROUP_LINE)),
    Kept("read", f"{_CGROUP}/{{memory.max memory.limit_in_bytes}}", exactly("a number", "[0-9]{1,20}", "max")),
    Kept("read", f"{_CGROUP}/{{cpuset.cpus.effective cpuset.mems.effective cpuset.effective_cpus cpuset.effective_mems "
         "cpuset.cpus cpuset.mems}", CPU_LIST),
    Kept("list", "/sys/fs/cgroup/system.slice", exactly("whether it is there", "(?!)", drop=True)),
    Kept("read", f"/sys/fs/cgroup/{_FABRIC_MANAGER}/cgroup.events",
         lines(exactly("flags", "(?:populated|frozen) [01]", drop=True))),
    Kept("read", f"/sys/fs/cgroup/{{systemd unified}}/{_FABRIC_MANAGER}/cgroup.procs",
         lines(exactly("numbers of processes", "[0-9]{1,10}", drop=True))),
    Kept("statvfs", "/dev/shm", scalar, "sizes"),
    Kept("list", "/dev/shm", by(shared_memory, "files of NCCL")),
    Kept("stat", "/dev/shm/{shm}", own.FILE_STATUS, own.STATUS),
    # -- settings
    Kept("environ", "", environment, "variables of NCCL, launchers and libraries; of each value what its form allows"),
    Kept("conf", "{file}", SETTING_LINE),
    # -- software
    Kept("list", "{packages}", own.PACKAGE),
    Kept("read", "{packages}/torch/version.py{numbers}", lines(own.TORCH)),
    Kept("read", "/usr/local/cuda/version.{json txt}{numbers}", own.TOOLKIT),
    Kept("readlink", f"{{{' '.join(own.NCCL_LINKS)}}}", own.LIBRARY),
    Kept("access", f"{{{' '.join(own.SLURM_CONF)}}}|r", scalar, "yes or no"),
    Kept("list", net_plugins.LOADER_CONF,
         exactly("names that distributions use; others are left out", r"[a-z0-9_]{3,8}-linux-gnu\.conf|libc\.conf",
                 drop=True)),
    Kept("run", "{n}|{slurmd /usr/sbin/slurmd}|-V", own.VERSION_OUTPUT, VERSION.what),
    Kept("run", "{n}|{sinfo nv-fabricmanager nvidia-imex dcgmi lstopo-no-graphics hwloc-info}|--version",
         own.VERSION_OUTPUT, VERSION.what),
    Kept("run", "{n}|ofed_info|-s", own.VERSION_OUTPUT, VERSION.what),
    Kept("run", "{n}|ucx_info|-v", own.VERSION_OUTPUT, VERSION.what),
    Kept("run", "{n}|mpirun|--version", own.MPIRUN_OUTPUT, "the name and version of the MPI library"),
    Kept("run", "{n}|ompi_info|--parsable|--param|mpi|all|--level|9", own.OMPI_OUTPUT, "whether it was built for CUDA"),
    Kept("run", "{n}|systemctl|show|--property=Id,LoadState,ActiveState|"
         + _asked(f"{s}.service" for s in own.SERVICES), own.UNITS_OUTPUT, "states of NVIDIA's services"),
    Kept("run", "{n}|nvidia-smi|topo|{-m -mp}", own.MATRIX_OUTPUT, "the matrix; names of devices as above"),
    # Last, as they could be any file: NCCL_NET_PLUGIN and LD_LIBRARY_PATH name it, or NCCL_TOPO_FILE.
    Kept("access", "{plugin}|r", scalar, "yes or no"),
    Kept("read", "{topology}", own.TOPOLOGY),
)  # fmt: skip


@functools.cache
def table() -> Table:
    """Return the rows as a table that can be looked into."""
    return Table(ROWS, {**HOLES, "plugin": ("/.*", plugin_file)}, learn)
