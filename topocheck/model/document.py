"""The JSON report as other programs read it. Its names are a promise: a change of one is a new major version.

A field that could not be known is null, and its reason stands under its name in the sibling `missing` map. The
JSON Schema in docs/schema/ is made from these structs, and the fleet reads stored reports through them.
"""

from __future__ import annotations

import msgspec

from topocheck.model.document_host import Doc, GpuDoc, HostDoc, InterfaceDoc, NicDoc, NumaNodeDoc, Number, PciDoc


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


class SystemSummaryDoc(msgspec.Struct, kw_only=True):
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


class HopDoc(Doc, kw_only=True):
    """One hop."""

    kind: str
    address: str
    upstream: str | None = None
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
    nvlinks: int | None = 0
    theoretical_gb_s: float | None = None
    upper_bound: bool = False
    narrowest: HopDoc | None = None


class VerdictDoc(msgspec.Struct, kw_only=True, omit_defaults=True, rename={"from_": "from"}):
    """One GPUDirect verdict; `link` for P2P, `peermem` and `dma_buf` for RDMA."""

    from_: str
    to: str
    from_label: str
    to_label: str
    verdict: str
    link: str | None = None
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
    reasons: list[ReasonDoc] = msgspec.field(default_factory=list)


class BoundDoc(msgspec.Struct, kw_only=True):
    """An upper bound of an AllReduce's bus bandwidth in GB/s (10^9 bytes), and the link that sets it."""

    algorithm: str
    busbw_gb_s: float
    limited_by: str
    formula: str


class NcclDoc(Doc, kw_only=True):
    """NCCL's view of all GPUs of the node in one job.

    `predicted_for` is the version it is worked out for, `fatal` why NCCL's init would end (empty: it would not),
    `nvls` whether it would reduce in the NVSwitch, `network` what it goes by between nodes (IB, Socket, or a plugin).
    """

    version: str | None = None
    network: str | None = None
    settings: list[SettingDoc] = msgspec.field(default_factory=list)
    pairs: list[NcclPairDoc] = msgspec.field(default_factory=list)
    predicted_for: str = ""
    fatal: str = ""
    nvls: bool | None = None
    nvls_reason: str = ""
    bounds: list[BoundDoc] = msgspec.field(default_factory=list)


class LimitsDoc(Doc, kw_only=True):
    """Limits of this process; null with no entry in `missing` means unlimited. Sizes in bytes."""

    memlock_bytes: Number | None = None
    nofile: Number | None = None
    nproc: Number | None = None
    stack_bytes: Number | None = None
    shm_total_bytes: Number | None = None
    shm_free_bytes: Number | None = None
    memory_max_bytes: Number | None = None


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
    reason: str


class ReportDoc(msgspec.Struct, kw_only=True):
    """The whole report."""

    schema_version: str
    topocheck_version: str
    source: str
    taken_at: str
    host: HostDoc
    system_summary: SystemSummaryDoc
    gpus: list[GpuDoc]
    accelerators: list[GpuDoc] = []
    nics: list[NicDoc]
    interfaces: list[InterfaceDoc] = []
    numa_nodes: list[NumaNodeDoc]
    pci: list[PciDoc]
    paths: list[PathDoc]
    switch_nics: list[NicDoc] = []
    """RDMA devices that manage NVSwitches and carry no traffic of jobs."""
    unplaced_nics: list[NicDoc] = []
    """RDMA devices whose PCI address is not known; their names stand for it."""
    nearest_nics: dict[str, list[str]] = {}
    gpudirect: GpuDirectDoc
    nccl: NcclDoc
    backends: list[BackendDoc] = []
    related_settings: list[SettingDoc] = []
    limits: LimitsDoc
    software: dict[str, str]
    findings: list[FindingDoc]
    probes: list[ProbeDoc]
    missing: dict[str, str] = {}
    """List that may lack entries (`gpus`, `nics`, `host.services`) -> why.

    `host` and `software`: what is absent there was not looked for.
    """
