"""The host and its devices in the JSON report: GPUs, NICs, interfaces, NUMA nodes, PCI functions."""

from __future__ import annotations

from typing import Annotated

import msgspec

Number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""What a machine's integer holds; a report that somebody wrote may name any other."""


class Doc(msgspec.Struct, kw_only=True):
    """A part of the document; `missing` maps a null field to why it is null."""

    missing: dict[str, str] = msgspec.field(default_factory=dict)


class HostDoc(Doc, kw_only=True):
    """The node as a whole. Sizes in bytes; CPU lists in the kernel's form."""

    hostname: str | None = None
    os_name: str | None = None
    kernel_release: str | None = None
    machine: str | None = None
    cpu_vendor: str | None = None
    cpu_model_name: str | None = None
    sockets: Number | None = None
    online_cpus: str | None = None
    allowed_cpus: str | None = None
    allowed_mems: str | None = None
    memory_total_bytes: Number | None = None
    dmi_vendor: str | None = None
    dmi_product: str | None = None
    hypervisor: str | None = None
    container: str | None = None
    kernel_options: list[str] | None = None
    iommu_devices: list[str] | None = None
    iommu_group_types: dict[str, int] = {}
    nvidia_module_flavor: str | None = None
    modules: dict[str, str] = {}
    memory_peers: list[str] | None = None
    fabric_manager: str | None = None
    imex_channels: list[str] | None = None
    kubelet: bool | None = None
    nvswitch_devices: list[str] | None = None
    kernel_config: dict[str, str] = {}
    cgroup_cpus: str | None = None
    cgroup_mems: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    nvidia_params: dict[str, str] | None = None
    numa_balancing: bool | None = None
    clocksource: str | None = None
    cpu_governor: str | None = None
    cpu_max_khz: Number | None = None
    smt: bool | None = None
    hugepages: Number | None = None
    transparent_hugepages: str | None = None
    remove_ipc: str | None = None
    peer_memory_symbol: bool | None = None
    conf_computing: bool | None = None
    nvml_library: str | None = None
    """Version in the name of the library that libnvidia-ml.so.1 is."""
    nvidia_gpus_excluded: list[str] = []
    device_files: dict[str, bool | None] | None = None
    """Device file of NVIDIA's driver -> whether this process may open it."""
    services: dict[str, str] = {}
    mpi_cuda_aware: bool | None = None
    network_plugins: list[str] | None = None
    topo_file_path: str | None = None
    """The topology file that NCCL opens."""
    flat_tree: bool = False


class NvLinkDoc(Doc, kw_only=True):
    """One NVLink; `speed_mb_s` is NVML's signalling figure, 10^6 bytes/s per direction."""

    link: int
    active: bool | None = None
    version: Number | None = None
    speed_mb_s: Number | None = None
    remote_type: str | None = None
    remote_address: str | None = None
    errors: dict[str, int] = {}


class GpuDoc(Doc, kw_only=True):
    """One GPU or accelerator."""

    address: str
    label: str
    vendor: str
    uuid: str | None = None
    name: str | None = None
    index: Number | None = None
    minor: Number | None = None
    on_bus: bool = True
    cpu_node: Number | None = None
    memory_node: Number | None = None
    cpu_affinity: str | None = None
    memory_total_bytes: Number | None = None
    bar1_total_bytes: Number | None = None
    vbios: str | None = None
    compute_capability: str | None = None
    pcie_gen_current: Number | None = None
    pcie_gen_max: Number | None = None
    pcie_width_current: Number | None = None
    pcie_width_max: Number | None = None
    performance_state: Number | None = None
    mig_current: bool | None = None
    mig_pending: bool | None = None
    ecc_current: bool | None = None
    ecc_pending: bool | None = None
    board_part_number: str | None = None
    module_id: Number | None = None
    clock_sm_max_mhz: Number | None = None
    clock_memory_max_mhz: Number | None = None
    clock_sm_application_mhz: Number | None = None
    power_limit_mw: Number | None = None
    power_limit_default_mw: Number | None = None
    p2p_status: dict[str, int] = {}
    """NVML's P2P status to the other GPUs, such as `read OK` -> to how many."""
    compute_mode: str | None = None
    persistence_mode: bool | None = None
    serial: str | None = None
    memory_affinity: str | None = None
    clock_sm_mhz: Number | None = None
    pcie_errors: dict[str, int] = {}
    virtualization_mode: str | None = None
    addressing_mode: str | None = None
    c2c_enabled: bool | None = None
    c2c_links: Number | None = None
    c2c_links_active: Number | None = None
    integrated: bool | None = None
    gpudirect_rdma: bool | None = None
    dma_buf: bool | None = None
    fabric_handles: bool | None = None
    flush_writes_options: Number | None = None
    fabric_health_mask: Number | None = None
    fabric_health_summary: str | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None
    fabric_clique: Number | None = None
    fabric_cluster_uuid: str | None = None
    nvlinks: list[NvLinkDoc] = []
    processes: Number | None = None


class GidDoc(Doc, kw_only=True):
    """One GID that is not zero."""

    index: int
    gid: str
    type: str | None = None
    netdev: str | None = None


class PortDoc(Doc, kw_only=True):
    """One port of an RDMA device; `rate_gbit_s` is the kernel's signalling rate."""

    port: int
    state: str | None = None
    phys_state: str | None = None
    link_layer: str | None = None
    rate_gbit_s: float | None = None
    rate_text: str | None = None
    lid: Number | None = None
    sm_lid: Number | None = None
    gids: list[GidDoc] | None = None
    counters: dict[str, int] = {}
    hw_counters: dict[str, int] = {}
    counters_missing: dict[str, str] = {}


class NicDoc(Doc, kw_only=True):
    """One NIC."""

    address: str
    label: str
    cpu_node: Number | None = None
    hca_type: str | None = None
    firmware: str | None = None
    board_id: str | None = None
    hw_rev: str | None = None
    node_type: str | None = None
    node_guid: str | None = None
    opens: bool | None = None
    """Whether this process may open its device under /dev/infiniband."""
    physfn: str | None = None
    netdevs: list[str] = []
    ports: list[PortDoc] = []


class InterfaceDoc(Doc, kw_only=True):
    """One network interface."""

    name: str
    address: str | None = None
    driver: str | None = None
    speed_mbit_s: Number | None = None
    mtu_bytes: Number | None = None
    is_virtual: bool | None = None
    bond_mode: str | None = None
    bond_hash_policy: str | None = None
    bond_slaves: list[str] = []
    ipv4_prefix_lengths: list[int] | None = None
    operstate: str | None = None


class NumaNodeDoc(Doc, kw_only=True):
    """One NUMA node."""

    node: int
    cpulist: str | None = None
    distances: list[int] | None = None
    memory_total_bytes: Number | None = None
    memory_free_bytes: Number | None = None


class PciDoc(Doc, kw_only=True):
    """One PCI function; ids are numbers, speeds GT/s per lane, `link_gb_s` the negotiated theoretical rate."""

    address: str
    parent: str | None = None
    role: str = ""
    class_code: Number | None = None
    vendor_id: Number | None = None
    device_id: Number | None = None
    vendor_name: str | None = None
    device_name: str | None = None
    driver: str | None = None
    numa_node: Number | None = None
    current_speed_gt_s: float | None = None
    max_speed_gt_s: float | None = None
    current_width_lanes: Number | None = None
    max_width_lanes: Number | None = None
    link_gb_s: float | None = None
    iommu_group: str | None = None
    iommu_group_type: str | None = None
    acs_control_word: Number | None = None
    acs_capability_word: Number | None = None
    max_payload_bytes: Number | None = None
    max_payload_supported_bytes: Number | None = None
    max_read_request_bytes: Number | None = None
    ats_enabled: bool | None = None
    p2p_clique: Number | None = None
    relaxed_ordering: bool | None = None
    cap2_speeds_gt_s: list[float] | None = None
    autonomous_speed_disabled: bool | None = None
    subsystem_vendor_id: Number | None = None
    subsystem_device_id: Number | None = None
    revision: Number | None = None
    sriov_totalvfs: Number | None = None
    sriov_numvfs: Number | None = None
