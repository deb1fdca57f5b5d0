"""The parts of a JSON report that are compared, and nothing else, so that ten thousand reports are read quickly.

The parts are those of model/document.py and document_host.py. Where most of one is not compared (evidence, hops,
verdicts), the struct here has the rest, and what is left out is skipped while decoding.
"""

from __future__ import annotations

import msgspec

from topocheck.model import old_names
from topocheck.model.base import InputError
from topocheck.model.document import LimitsDoc, ProbeDoc, ReportDoc, SettingDoc
from topocheck.model.document_host import GpuDoc, HostDoc, InterfaceDoc, NicDoc, NumaNodeDoc, PciDoc
from topocheck.model.excerpt import json_fault
from topocheck.model.version import SCHEMA_VERSION


class Path(msgspec.Struct, kw_only=True, rename={"from_": "from", "class_": "class"}):
    """The class of one path."""

    from_: str
    to: str
    class_: str | None = None
    pcie_class: str | None = None
    nvlinks: int | None = 0


class Nccl(msgspec.Struct, kw_only=True):
    """NCCL's version and settings."""

    version: str | None = None
    network: str | None = None
    settings: list[SettingDoc] = []


class Finding(msgspec.Struct, kw_only=True):
    """One finding, without its evidence."""

    id: str
    state: str
    subject: str
    title: str
    fix: str | None = None


class LeanReport(msgspec.Struct, kw_only=True):
    """A report as the comparison reads it."""

    schema_version: str
    topocheck_version: str = ""
    taken_at: str = ""
    host: HostDoc
    gpus: list[GpuDoc]
    accelerators: list[GpuDoc] = []
    nics: list[NicDoc]
    interfaces: list[InterfaceDoc] = []
    numa_nodes: list[NumaNodeDoc]
    pci: list[PciDoc]
    paths: list[Path]
    nccl: Nccl
    related_settings: list[SettingDoc] = []
    limits: LimitsDoc
    software: dict[str, str] = {}
    findings: list[Finding] = []
    probes: list[ProbeDoc] = []
    missing: dict[str, str] = {}


_LATER = frozenset(
    """
    nvidia_params nvswitch_devices numa_balancing ecc_pending mig_pending board_part_number module_id clock_sm_max_mhz
    fabric_health_mask fabric_health_summary relaxed_ordering clocksource cpu_governor cpu_max_khz smt hugepages
    transparent_hugepages remove_ipc peer_memory_symbol conf_computing nvml_library device_files mpi_cuda_aware
    network_plugins topo_file_path clock_memory_max_mhz clock_sm_application_mhz power_limit_mw power_limit_default_mw
    max_read_request_bytes ats_enabled p2p_clique opens services
    p2p_status nproc dma_buf fabric_handles flush_writes_options gpudirect_rdma max_payload_supported_bytes revision
    hw_rev addressing_mode autonomous_speed_disabled c2c_enabled virtualization_mode node_type memory_affinity
    """.split()
)
"""Fields that reports of version 0.1 do not have."""

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
        what, shown = json_fault(e, data)
        raise InputError(f"{name}: {what}; expected `topocheck report --format json`", excerpt=shown) from None
    major = report.schema_version.split(".")[0]
    if major == "1":
        # What is compared is called in 1.x as in 2.0, but for the ids of some checks.
        for finding in report.findings:
            finding.id = old_names.current(finding.id)
        for part in (report.host, report.limits, *report.gpus, *report.accelerators, *report.nics, *report.pci):
            for name in _LATER.intersection(part.__struct_fields__):
                part.missing.setdefault(name, "not_recorded")
    elif major != SCHEMA_VERSION.split(".")[0]:
        raise InputError(
            f"{name}: schema version {report.schema_version[:20]!r}; this version of topocheck reads {SCHEMA_VERSION}"
        )
    return report


def from_document(document: ReportDoc) -> LeanReport:
    """Return the compared parts of a report that was made here.

    Raises:
        InputError: a number in it, of a recording from elsewhere, is larger than a document can hold.
    """
    try:
        return msgspec.json.decode(msgspec.json.encode(document), type=LeanReport)
    except msgspec.ValidationError as e:
        raise InputError(f"its report cannot be compared: {e}") from None
