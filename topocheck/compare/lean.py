"""The parts of a JSON report that are compared, and nothing else, so that ten thousand reports are read quickly.

Names and meanings are those of model/document.py; what is left out here is skipped while decoding.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from topocheck.model.base import InputError
from topocheck.model.document import SCHEMA_VERSION, ReportDoc

Text = str | None
Number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None


class Part(msgspec.Struct, kw_only=True):
    """A part of a report; `missing` maps a null field to why it is null."""

    missing: dict[str, str] = {}


class Host(Part, kw_only=True):
    """The node as a whole."""

    hostname: Text = None
    os_name: Text = None
    kernel_release: Text = None
    machine: Text = None
    cpu_vendor: Text = None
    cpu_model_name: Text = None
    sockets: Number = None
    online_cpus: Text = None
    memory_total_bytes: Number = None
    dmi_vendor: Text = None
    dmi_product: Text = None
    hypervisor: Text = None
    container: Text = None
    kernel_options: list[str] | None = None
    iommu_devices: list[str] | None = None
    iommu_group_types: dict[str, int] = {}
    nvidia_module_flavor: Text = None
    modules: dict[str, str] = {}
    memory_peers: list[str] | None = None
    fabric_manager: Text = None
    driver_version: Text = None
    cuda_version: Text = None
    flat_tree: bool = False


class NvLink(msgspec.Struct, kw_only=True):
    """One NVLink."""

    link: int
    active: bool | None = None
    version: Number = None
    speed_mb_s: Number = None
    remote_type: Text = None
    remote_address: Text = None


class Gpu(Part, kw_only=True):
    """One GPU or accelerator."""

    address: str
    label: str
    vendor: str = ""
    uuid: Text = None
    name: Text = None
    minor: Number = None
    on_bus: bool = True
    cpu_node: Number = None
    memory_node: Number = None
    cpu_affinity: Text = None
    memory_total_bytes: Number = None
    bar1_total_bytes: Number = None
    vbios: Text = None
    compute_capability: Text = None
    pcie_gen_max: Number = None
    pcie_width_current: Number = None
    pcie_width_max: Number = None
    mig_current: bool | None = None
    ecc_current: bool | None = None
    compute_mode: Text = None
    persistence_mode: bool | None = None
    c2c_links: Number = None
    fabric_state: Text = None
    fabric_status: Text = None
    fabric_clique: Number = None
    fabric_cluster_uuid: Text = None
    nvlinks: list[NvLink] = []


class Gid(msgspec.Struct, kw_only=True):
    """One GID."""

    gid: str
    type: Text = None


class Port(Part, kw_only=True):
    """One port of an RDMA device."""

    port: int
    state: Text = None
    phys_state: Text = None
    link_layer: Text = None
    rate_gbit_s: float | None = None
    lid: Number = None
    sm_lid: Number = None
    gids: list[Gid] | None = None


class Nic(Part, kw_only=True):
    """One NIC."""

    address: str
    label: str
    cpu_node: Number = None
    hca_type: Text = None
    firmware: Text = None
    board_id: Text = None
    node_guid: Text = None
    physfn: Text = None
    netdevs: list[str] = []
    ports: list[Port] = []


class Interface(Part, kw_only=True):
    """One network interface."""

    name: str
    address: Text = None
    driver: Text = None
    speed_mbit_s: Number = None
    mtu_bytes: Number = None
    operstate: Text = None


class NumaNode(Part, kw_only=True):
    """One NUMA node."""

    node: int
    cpulist: Text = None
    distances: list[int] | None = None
    memory_total_bytes: Number = None


class Pci(Part, kw_only=True):
    """One PCI function."""

    address: str
    parent: Text = None
    class_code: Number = None
    vendor_id: Number = None
    device_id: Number = None
    device_name: Text = None
    driver: Text = None
    numa_node: Number = None
    current_speed_gt_s: float | None = None
    max_speed_gt_s: float | None = None
    current_width_lanes: Number = None
    max_width_lanes: Number = None
    iommu_group_type: Text = None
    acs_control_word: Number = None
    max_payload_bytes: Number = None


class Path(msgspec.Struct, kw_only=True, rename={"from_": "from", "class_": "class"}):
    """The class of one path."""

    from_: str
    to: str
    class_: Text = None
    pcie_class: Text = None
    nvlinks: int = 0


class Setting(msgspec.Struct, kw_only=True):
    """One setting."""

    name: str
    value: str
    in_force: bool = True


class Nccl(msgspec.Struct, kw_only=True):
    """NCCL's version and settings."""

    version: Text = None
    settings: list[Setting] = []


class Limits(Part, kw_only=True):
    """Limits of the process that made the report."""

    memlock_bytes: Number = None
    nofile: Number = None
    stack_bytes: Number = None
    shm_total_bytes: Number = None
    memory_max_bytes: Number = None


class Probe(msgspec.Struct, kw_only=True):
    """How one probe went."""

    name: str
    state: str


class Finding(msgspec.Struct, kw_only=True):
    """One finding, without its evidence."""

    id: str
    state: str
    subject: str
    title: str


class LeanReport(msgspec.Struct, kw_only=True):
    """A report as the comparison reads it."""

    schema_version: str
    topocheck_version: str = ""
    taken_at: str = ""
    host: Host
    gpus: list[Gpu]
    accelerators: list[Gpu] = []
    nics: list[Nic]
    interfaces: list[Interface] = []
    numa_nodes: list[NumaNode]
    pci: list[Pci]
    paths: list[Path]
    nccl: Nccl
    limits: Limits
    software: dict[str, str] = {}
    findings: list[Finding] = []
    probes: list[Probe] = []


_DECODER = msgspec.json.Decoder(LeanReport)


def decode(data: bytes, name: str) -> LeanReport:
    """Return the compared parts of a JSON report; `name` is its file, for messages.

    Raises:
        InputError: it is not a report that this version can read.
    """
    try:
        report = _DECODER.decode(data)
    except msgspec.ValidationError as e:
        raise InputError(f"{name}: not a topocheck report: {e}; expected `topocheck report --format json`") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise InputError(f"{name}: not JSON: {e}; expected `topocheck report --format json`") from None
    if report.schema_version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise InputError(
            f"{name}: schema version {report.schema_version[:20]!r}; this version of topocheck reads {SCHEMA_VERSION}"
        )
    return report


def from_document(document: ReportDoc) -> LeanReport:
    """Return the compared parts of a report that was made here."""
    return msgspec.json.decode(msgspec.json.encode(document), type=LeanReport)
