"""CPU, NUMA, kernel, limits, settings and software of a node."""

from __future__ import annotations

import re

import msgspec

from topocheck.model.base import ABSENT, NOT_RECORDED, Fact, Missing


class NumaNode(Fact, frozen=True, kw_only=True):
    """One online NUMA node. `distances` follows the order of the online nodes, not their numbers."""

    node: int
    cpulist: str | Missing = ABSENT
    distances: tuple[int, ...] | Missing = ABSENT
    memory_total_bytes: int | Missing = ABSENT
    memory_free_bytes: int | Missing = ABSENT


class NumaFacts(Fact, frozen=True, kw_only=True):
    """NUMA nodes of the machine, and what this process may use of them (kernel lists)."""

    nodes: tuple[NumaNode, ...] | Missing = ABSENT
    online_nodes: str | Missing = ABSENT
    has_cpu: str | Missing = ABSENT
    has_memory: str | Missing = ABSENT
    online_cpus: str | Missing = ABSENT
    sockets: int | Missing = ABSENT
    cores: int | Missing = ABSENT
    cpu_packages: dict[str, str] = msgspec.field(default_factory=dict)
    """Package id -> kernel list of its CPUs."""
    allowed_cpus: str | Missing = ABSENT
    allowed_mems: str | Missing = ABSENT
    cgroup_cpus: str | Missing = ABSENT
    cgroup_mems: str | Missing = ABSENT


class DeviceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A device file under /dev that programs open for reading and writing.

    Attributes:
        path: such as `/dev/nvidia0`.
        opens: whether this process may open it; access(2) answers for its mode and for the device cgroup.
        mode, uid, gid: of the file.
        by_mode: a refusal that the file's mode explains; else the device cgroup (or a security module) refuses.
    """

    path: str
    opens: bool | Missing = ABSENT
    mode: int | Missing = ABSENT
    uid: int | Missing = ABSENT
    gid: int | Missing = ABSENT
    by_mode: bool = False

    @property
    def refused(self) -> bool:
        """Whether the file is there and may not be opened."""
        return self.opens is False


_LIBRARY = r"(?a)lib[a-z\-]{2,20}\.so\.([0-9]{3}\.[0-9]{2,3}(?:\.[0-9]{1,3})?)"


def library_version(name: str) -> str | None:
    """Return the version in the name of a library of NVIDIA's driver (`libnvidia-ml.so.580.95.05`), or None."""
    m = re.fullmatch(_LIBRARY, name)
    return m[1] if m else None


class SystemFacts(Fact, frozen=True, kw_only=True):
    """Kernel, platform, modules, IOMMU, hypervisor and container.

    Attributes:
        kernel_options: only the options of the command line that matter here (`iommu=pt`).
        iommu_devices: names under /sys/class/iommu.
        iommu_groups: number of groups; 0 where the kernel has IOMMU support and none is in use.
        iommu_group_types: type (`identity`, `DMA`, `DMA-FQ`) -> number of groups, of at most 64 looked at.
        kernel_config: build options of the running kernel that matter (`CONFIG_PCI_P2PDMA` -> `y`), where readable.
        hypervisor: vendor word (`KVM`, `VMware`, `Xen`, `Microsoft`, `WSL`, `unknown`); Missing(absent) on bare metal.
        container: docker, podman, kubernetes, singularity, lxc, gvisor...; Missing(absent) outside one.
        modules: module -> version (empty text where the module states none); from /proc/modules and /sys/module.
        loaded_modules: names in /proc/modules with their reference count.
        nvidia_module_flavor: `open` or `proprietary`.
        memory_peers: names under /sys/kernel/mm/memory_peers.
        nvidia_params: NVIDIA module parameters that matter (`EnableResizableBar`, `RegistryDwords`...).
        nvidia_files: the driver's device files that are there; empty where there are none.
        nvml_libraries: path of libnvidia-ml.so.1 -> the file that it is, `libnvidia-ml.so.580.95.05`.
        kernel_log: lines of the kernel's log about GPUs, NICs and PCI, the newest last, without their time.
        clocksource: what the kernel reads the time from (`tsc`, `hpet`).
        cpu_governor, cpu_max_khz: frequency governor and highest frequency allowed of the first CPU.
        smt: whether the threads of a core are in use.
        hugepages: pages of the default size that are set aside; transparent_hugepages: always, madvise or never.
        fabric_manager: state of the service (`active`, `failed`, `inactive`); Missing where it cannot be determined.
    """

    hostname: str | Missing = ABSENT
    os_name: str | Missing = ABSENT
    kernel_release: str | Missing = ABSENT
    machine: str | Missing = ABSENT
    kernel_options: tuple[str, ...] | Missing = ABSENT
    boot_id: str | Missing = ABSENT
    cpu_vendor: str | Missing = ABSENT
    cpu_model_name: str | Missing = ABSENT
    cpu_family: int | Missing = ABSENT
    cpu_model: int | Missing = ABSENT
    memory_total_bytes: int | Missing = ABSENT
    memory_available_bytes: int | Missing = ABSENT
    hypervisor: str | Missing = ABSENT
    dmi_vendor: str | Missing = ABSENT
    dmi_product: str | Missing = ABSENT
    container: str | Missing = ABSENT
    iommu_devices: tuple[str, ...] | Missing = ABSENT
    iommu_groups: int | Missing = ABSENT
    iommu_group_types: dict[str, int] = msgspec.field(default_factory=dict)
    kernel_config: dict[str, str] = msgspec.field(default_factory=dict)
    modules: dict[str, str] = msgspec.field(default_factory=dict)
    loaded_modules: dict[str, int | Missing] = msgspec.field(default_factory=dict)
    nvidia_module_flavor: str | Missing = ABSENT
    nvidia_module_version: str | Missing = ABSENT
    nvidia_params: dict[str, str] = msgspec.field(default_factory=dict)
    memory_peers: tuple[str, ...] | Missing = ABSENT
    peer_memory_symbol: bool | Missing = NOT_RECORDED
    """Whether the kernel's modules have the interface that peer-memory modules register with."""
    nvidia_files: tuple[DeviceFile, ...] | Missing = NOT_RECORDED
    nvml_libraries: dict[str, str] = msgspec.field(default_factory=dict)
    kernel_log: tuple[str, ...] | Missing = NOT_RECORDED
    fabric_manager: str | Missing = ABSENT
    imex_channels: tuple[str, ...] | Missing = ABSENT
    kubelet: bool | Missing = NOT_RECORDED
    """Whether /var/lib/kubelet is there: a node of a Kubernetes cluster."""
    nvswitch_devices: tuple[str, ...] | Missing = ABSENT
    numa_balancing: bool | Missing = ABSENT
    clocksource: str | Missing = NOT_RECORDED
    cpu_governor: str | Missing = NOT_RECORDED
    cpu_max_khz: int | Missing = NOT_RECORDED
    smt: bool | Missing = NOT_RECORDED
    hugepages: int | Missing = NOT_RECORDED
    transparent_hugepages: str | Missing = NOT_RECORDED
    remove_ipc: str | Missing = ABSENT
    nvidia_gpu_minors: dict[str, int] = msgspec.field(default_factory=dict)
    """PCI address -> minor of /dev/nvidiaN, from /proc/driver/nvidia/gpus."""
    nvidia_gpus_excluded: tuple[str, ...] = ()
    """Addresses of GPUs that the driver was told to leave alone (`GPU Excluded: Yes`)."""
    services: dict[str, str] = msgspec.field(default_factory=dict)
    """Unit -> systemd's state (`active`, `inactive`, `failed`), `not-found` where there is no such unit."""


def gpu_file(system: SystemFacts, address: str) -> DeviceFile | None:
    """Return the device file of a GPU; None where it is not there, or its number is not known."""
    minor, files = system.nvidia_gpu_minors.get(address), system.nvidia_files
    if minor is None or isinstance(files, Missing):
        return None
    return next((f for f in files if f.path == f"/dev/nvidia{minor}"), None)


class Limits(Fact, frozen=True, kw_only=True):
    """Limits of this process. -1 never appears: an unlimited value is `unlimited` in the *_text twin.

    Attributes:
        memlock_bytes, nofile, stack_bytes, nproc: soft limit; None means unlimited.
        shm_total_bytes, shm_free_bytes: of /dev/shm.
        shm_leftovers: (file name, size in bytes, owner uid, age in seconds) of `/dev/shm/nccl-*` files.
        capabilities: names of the capabilities in the effective set that matter (SYS_NICE, IPC_LOCK, SYS_ADMIN).
        memory_max_bytes: the cgroup's memory limit; None means unlimited.
    """

    memlock_bytes: int | Missing | None = ABSENT
    nofile: int | Missing | None = ABSENT
    stack_bytes: int | Missing | None = ABSENT
    nproc: int | Missing | None = ABSENT
    shm_total_bytes: int | Missing = ABSENT
    shm_free_bytes: int | Missing = ABSENT
    shm_device: int | Missing = ABSENT
    shm_leftovers: tuple[tuple[str, int, int, int], ...] | Missing = ABSENT
    shm_leftovers_unlisted: int = 0
    capabilities: tuple[str, ...] | Missing = ABSENT
    seccomp: int | Missing = ABSENT
    memory_max_bytes: int | Missing | None = ABSENT
    uid: int | Missing = ABSENT


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting in force or shadowed. `source` is `environment` or a file with its line (`/etc/nccl.conf:3`)."""

    name: str
    value: str
    source: str
    in_force: bool = True


class SettingFacts(Fact, frozen=True, kw_only=True):
    """NCCL's settings in its own order of precedence, and the related ones that matter.

    Attributes:
        topo_file: text of the topology file that NCCL opens.
        topo_file_path: where it lies: NCCL_TOPO_FILE, else NCCL's default file; empty where neither is there.
    """

    nccl: tuple[Setting, ...] = ()
    related: tuple[Setting, ...] = ()
    conf_files: dict[str, tuple[str, ...] | Missing] = msgspec.field(default_factory=dict)
    """Path -> what NCCL misreads in the file, a line each, none in a clean file; Missing where it was not read."""
    topo_file: str | Missing = ABSENT
    topo_file_path: str = ""
    graph_file: str | Missing = ABSENT
    """Text of the file of NCCL_GRAPH_FILE; Missing(not visible) where it is not set, Missing(denied) and the like where
    the file cannot be read."""


class SoftwareFacts(Fact, frozen=True, kw_only=True):
    """Versions, without importing what they are versions of. Name -> version, with where it was found in `raw`.

    Names: python, torch, nccl, nccl_system, cuda_toolkit, mpi, slurm, dcgm, fabric_manager, imex, ofed, ucx, hwloc.
    """

    versions: dict[str, str] = msgspec.field(default_factory=dict)
    mpi_cuda_aware: bool | Missing = ABSENT
    network_plugins: tuple[str, ...] | Missing = ABSENT
    """NCCL's external network plugins that the loader would find."""
    plugins_elsewhere: tuple[str, ...] = ()
    """Such plugins in the folders of known packages, where the loader does not look."""
    mpi_implementation: str | Missing = ABSENT
