"""The JSON report as other programs read it. Its names are a promise: a change of one is a new major version.

A field that could not be known is null, and its reason stands under its name in the sibling `missing` map. The
JSON Schema in docs/schema/ is made from these structs, and the fleet reads stored reports through them.
"""

from __future__ import annotations

from typing import Any

import msgspec

SCHEMA_VERSION = "1.0"


class Doc(msgspec.Struct, kw_only=True):
    """A part of the document; `missing` maps a null field to why it is null."""

    missing: dict[str, str] = msgspec.field(default_factory=dict)


class EvidenceDoc(msgspec.Struct):
    """The file or call, and what it said."""

    source: str
    raw: str


class ReasonDoc(msgspec.Struct, kw_only=True):
    """One link of a chain of reasons."""

    text: str
    effect: str
    evidence: list[EvidenceDoc] = []
    fix: str | None = None


class FindingDoc(msgspec.Struct, kw_only=True):
    """One finding of a check."""

    id: str
    state: str
    subject: str
    title: str
    consequence: str = ""
    evidence: list[EvidenceDoc] = []
    rule: str = ""
    fix: str | None = None


class HostDoc(Doc, kw_only=True):
    """The node as a whole. Sizes in bytes; CPU lists in the kernel's form."""

    hostname: str | None = None
    os_name: str | None = None
    kernel_release: str | None = None
    machine: str | None = None
    cpu_vendor: str | None = None
    cpu_model_name: str | None = None
    sockets: int | None = None
    online_cpus: str | None = None
    allowed_cpus: str | None = None
    allowed_mems: str | None = None
    memory_total_bytes: int | None = None
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
    driver_version: str | None = None
    cuda_version: str | None = None
    flat_tree: bool = False


class RecordDoc(msgspec.Struct, kw_only=True):
    """What papers and lab reports ask of an experiment's machine."""

    servers: int
    gpus_per_server: int
    gpu_models: dict[str, int]
    nics_per_server: int
    nic_models: dict[str, int]
    gpu_connection: str
    os: str
    gpu_driver: str
    nic_driver: str
    framework: str
    cuda: str
    nccl: str


class NvLinkDoc(Doc, kw_only=True):
    """One NVLink; `speed_mb_s` is NVML's signalling figure, 10^6 bytes/s per direction."""

    link: int
    active: bool | None = None
    version: int | None = None
    speed_mb_s: int | None = None
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
    index: int | None = None
    minor: int | None = None
    on_bus: bool = True
    cpu_node: int | None = None
    memory_node: int | None = None
    cpu_affinity: str | None = None
    memory_total_bytes: int | None = None
    bar1_total_bytes: int | None = None
    vbios: str | None = None
    compute_capability: str | None = None
    pcie_gen_current: int | None = None
    pcie_gen_max: int | None = None
    pcie_width_current: int | None = None
    pcie_width_max: int | None = None
    performance_state: int | None = None
    mig_current: bool | None = None
    ecc_current: bool | None = None
    compute_mode: str | None = None
    persistence_mode: bool | None = None
    c2c_links: int | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None
    fabric_clique: int | None = None
    fabric_cluster_uuid: str | None = None
    nvlinks: list[NvLinkDoc] = []
    processes: int | None = None


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
    lid: int | None = None
    sm_lid: int | None = None
    gids: list[GidDoc] | None = None
    counters: dict[str, int] = {}
    hw_counters: dict[str, int] = {}


class NicDoc(Doc, kw_only=True):
    """One NIC."""

    address: str
    label: str
    cpu_node: int | None = None
    hca_type: str | None = None
    firmware: str | None = None
    board_id: str | None = None
    node_guid: str | None = None
    physfn: str | None = None
    netdevs: list[str] = []
    ports: list[PortDoc] = []


class InterfaceDoc(Doc, kw_only=True):
    """One network interface."""

    name: str
    address: str | None = None
    driver: str | None = None
    speed_mbit_s: int | None = None
    mtu_bytes: int | None = None
    operstate: str | None = None


class NumaNodeDoc(Doc, kw_only=True):
    """One NUMA node."""

    node: int
    cpulist: str | None = None
    distances: list[int] | None = None
    memory_total_bytes: int | None = None


class PciDoc(Doc, kw_only=True):
    """One PCI function; ids are numbers, speeds GT/s per lane, `link_gb_s` the negotiated theoretical rate."""

    address: str
    parent: str | None = None
    role: str = ""
    class_code: int | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    vendor_name: str | None = None
    device_name: str | None = None
    driver: str | None = None
    numa_node: int | None = None
    current_speed_gt_s: float | None = None
    max_speed_gt_s: float | None = None
    current_width_lanes: int | None = None
    max_width_lanes: int | None = None
    link_gb_s: float | None = None
    iommu_group: str | None = None
    iommu_group_type: str | None = None
    acs_control_word: int | None = None
    max_payload_bytes: int | None = None


class HopDoc(Doc, kw_only=True):
    """One hop."""

    kind: str
    address: str
    upper: str | None = None
    gb_s: float | None = None
    attainable_gb_s: float | None = None
    text: str = ""


class PathDoc(Doc, kw_only=True, rename={"from_": "from", "class_": "class"}):
    """The way between two endpoints."""

    from_: str
    to: str
    from_label: str
    to_label: str
    class_: str | None = None
    pcie_class: str | None = None
    nvlinks: int = 0
    theoretical_gb_s: float | None = None
    upper_bound: bool = False
    narrowest: HopDoc | None = None


class VerdictDoc(msgspec.Struct, kw_only=True, omit_defaults=True, rename={"from_": "from"}):
    """One GPUDirect verdict; `road` for P2P, `peermem` and `dma_buf` for RDMA."""

    from_: str
    to: str
    from_label: str
    to_label: str
    verdict: str
    road: str | None = None
    peermem: str | None = None
    dma_buf: str | None = None
    reasons: list[ReasonDoc] = []


class GpuDirectDoc(msgspec.Struct, kw_only=True):
    """All verdicts."""

    p2p: list[VerdictDoc] = []
    rdma: list[VerdictDoc] = []


class SettingDoc(msgspec.Struct, kw_only=True):
    """One setting."""

    name: str
    value: str
    source: str
    in_force: bool = True


class NcclPairDoc(Doc, kw_only=True, rename={"from_": "from"}):
    """NCCL's decision for one pair."""

    from_: str
    to: str
    from_label: str
    to_label: str
    nccl_class: str | None = None
    transport: str | None = None
    why: list[ReasonDoc] = []


class BoundDoc(msgspec.Struct, kw_only=True):
    """An upper bound of an AllReduce's bus bandwidth in GB/s (10^9 bytes), and the link that sets it."""

    algorithm: str
    busbw_gb_s: float
    limited_by: str
    formula: str


class NcclDoc(Doc, kw_only=True):
    """NCCL's view of all GPUs of the node in one job.

    `predicted_for` is the version it is worked out for, `fatal` why NCCL's init would end (empty: it would not),
    `nvls` whether it would reduce in the NVSwitch.
    """

    version: str | None = None
    settings: list[SettingDoc] = []
    pairs: list[NcclPairDoc] = []
    predicted_for: str = ""
    fatal: str = ""
    nvls: bool | None = None
    nvls_why: str = ""
    bounds: list[BoundDoc] = []


class LimitsDoc(Doc, kw_only=True):
    """Limits of this process; null with no entry in `missing` means unlimited. Sizes in bytes."""

    memlock_bytes: int | None = None
    nofile: int | None = None
    stack_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    memory_max_bytes: int | None = None


class ProbeDoc(msgspec.Struct, kw_only=True):
    """How one probe went."""

    name: str
    state: str
    ms: float
    detail: str = ""


class BackendDoc(msgspec.Struct, kw_only=True):
    """Which communication library fits, and why."""

    name: str
    fits: str
    why: str


class ReportDoc(msgspec.Struct, kw_only=True):
    """The whole report."""

    schema_version: str
    topocheck_version: str
    source: str
    taken_at: str
    host: HostDoc
    record: RecordDoc
    gpus: list[GpuDoc]
    accelerators: list[GpuDoc] = []
    nics: list[NicDoc]
    interfaces: list[InterfaceDoc] = []
    numa_nodes: list[NumaNodeDoc]
    pci: list[PciDoc]
    paths: list[PathDoc]
    nearest_nics: dict[str, list[str]] = {}
    gpudirect: GpuDirectDoc
    nccl: NcclDoc
    backends: list[BackendDoc] = []
    neighbours: list[SettingDoc] = []
    limits: LimitsDoc
    software: dict[str, str]
    findings: list[FindingDoc]
    probes: list[ProbeDoc]


class CheckDoc(msgspec.Struct, kw_only=True):
    """How one check went."""

    id: str
    scope: str
    state: str
    subjects: list[str] = []
    detail: str = ""


class CheckRunDoc(msgspec.Struct, kw_only=True):
    """The document of `topocheck check`."""

    schema_version: str
    topocheck_version: str
    source: str
    taken_at: str
    policy: dict[str, Any]
    state: str
    exit_code: int
    findings: list[FindingDoc]
    checks: list[CheckDoc]
