"""CPU, NUMA, kernel, limits, settings and software of a node."""

from __future__ import annotations

import msgspec

from topocheck.model.base import ABSENT, Fact, Missing


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


class SystemFacts(Fact, frozen=True, kw_only=True):
    """Kernel, platform, modules, IOMMU, hypervisor and container.

    Attributes:
        kernel_options: only the options of the command line that matter here (`iommu=pt`).
        iommu_devices: names under /sys/class/iommu.
        iommu_groups: number of groups; 0 where the kernel has IOMMU support and none is in use.
        iommu_group_types: type (`identity`, `DMA`, `DMA-FQ`) -> number of groups, of at most 64 looked at.
        kernel_config: build options of the running kernel that matter (`CONFIG_PCI_P2PDMA` -> `y`), where readable.
        hypervisor: vendor word (`KVM`, `VMware`, `Xen`, `Microsoft`, `unknown`); Missing(absent) on bare metal.
        container: docker, podman, kubernetes, singularity, lxc, gvisor...; Missing(absent) outside one.
        modules: module -> version (empty text where the module states none); from /proc/modules and /sys/module.
        loaded_modules: names in /proc/modules with their reference count.
        nvidia_module_flavor: `open` or `proprietary`.
        memory_peers: names under /sys/kernel/mm/memory_peers.
        nvidia_params: NVIDIA module parameters that matter (`EnableResizableBar`, `RegistryDwords`...).
        fabric_manager: state of the service (`active`, `failed`, `inactive`); Missing where it cannot be told.
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
    fabric_manager: str | Missing = ABSENT
    imex_channels: tuple[str, ...] | Missing = ABSENT
    nvswitch_devices: tuple[str, ...] | Missing = ABSENT
    numa_balancing: bool | Missing = ABSENT
    remove_ipc: str | Missing = ABSENT
    nvidia_gpu_minors: dict[str, int] = msgspec.field(default_factory=dict)
    """PCI address -> minor of /dev/nvidiaN, from /proc/driver/nvidia/gpus."""
    nvidia_gpus_excluded: tuple[str, ...] = ()
    """Addresses of GPUs that the driver was told to leave alone (`GPU Excluded: Yes`)."""
    services: dict[str, str] = msgspec.field(default_factory=dict)
    """Unit -> systemd's state (`active`, `inactive`, `failed`), `not-found` where there is no such unit."""


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
    """NCCL's settings in its own order of precedence, and the neighbours that matter.

    Attributes:
        topo_file: text of the topology file that NCCL opens.
        topo_file_path: where it lies: NCCL_TOPO_FILE, else NCCL's default file; empty where neither is there.
    """

    nccl: tuple[Setting, ...] = ()
    neighbours: tuple[Setting, ...] = ()
    conf_files: dict[str, str] = msgspec.field(default_factory=dict)
    """Path -> read, absent, denied, or a line about what could not be read in it."""
    topo_file: str | Missing = ABSENT
    topo_file_path: str = ""


class SoftwareFacts(Fact, frozen=True, kw_only=True):
    """Versions, without importing what they are versions of. Name -> version, with where it was found in `raw`.

    Names: python, torch, nccl, nccl_system, cuda_toolkit, mpi, slurm, dcgm, fabric_manager, imex, ofed, ucx, hwloc.
    """

    versions: dict[str, str] = msgspec.field(default_factory=dict)
    mpi_cuda_aware: bool | Missing = ABSENT
    mpi_implementation: str | Missing = ABSENT
