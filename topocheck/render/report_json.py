"""From a report to the JSON document (model/document.py)."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, TypeVar

from topocheck.model import document as doc
from topocheck.model.base import ABSENT, Evidence, Finding, Missing, ReasonStep, known
from topocheck.model.net import NetFacts, NetInterface, ipv4_networks
from topocheck.model.system import Setting, library_version
from topocheck.render.quoting import json_text
from topocheck.render.words import gpu_connection

if TYPE_CHECKING:
    from topocheck.gpudirect.types import P2pVerdict, RdmaVerdict
    from topocheck.model.gpu import P2pStatus
    from topocheck.nccl.predict.types import Bound, NcclPair
    from topocheck.pipeline import Report
    from topocheck.topology.types import Gpu, Nic, Path, Topology

D = TypeVar("D", bound=doc.Doc)


def fill(kind: type[D], *sources: object, **given: Any) -> D:
    """Make a document part from the fields of the same name of `sources`, the first that has one winning.

    A Missing becomes None, with its reason in `missing`; a tuple becomes a list.
    """
    values: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name in kind.__struct_fields__:
        value = given.get(name, _NOTHING)
        if value is _NOTHING:  # a loop and no function: a node has ten thousand fields
            for source in sources:
                found = getattr(source, name, _NOTHING)
                if found is not _NOTHING:
                    value = found
                    if not isinstance(found, Missing):
                        break
        if value is _NOTHING or name == "missing":
            continue
        if isinstance(value, Missing):
            missing[name.rstrip("_")] = str(value)
            value = None
        values[name] = list(value) if isinstance(value, tuple) else value
    return kind(missing=missing, **values)


def _prefix_lengths(i: NetInterface) -> tuple[int, ...] | Missing:
    """Return the lengths of an interface's IPv4 networks, link-local ones left out; nodes of one job compare them."""
    if isinstance(i.ip_netmasks, Missing):
        return i.ip_netmasks
    return tuple(sorted({n.network.prefixlen for n in ipv4_networks(i) if not n.ip.is_link_local}))


_NOTHING: Any = object()


def evidence(items: tuple[Evidence, ...]) -> list[doc.EvidenceDoc]:
    """Return the document form of evidence."""
    return [doc.EvidenceDoc(e.source, e.raw) for e in items]


def reasons(steps: tuple[ReasonStep, ...]) -> list[doc.ReasonDoc]:
    """Return the document form of a chain of reasons."""
    return [doc.ReasonDoc(text=s.text, effect=s.effect, evidence=evidence(s.evidence), fix=s.fix) for s in steps]


def finding(f: Finding) -> doc.FindingDoc:
    """Return the document form of a finding."""
    return doc.FindingDoc(
        id=f.id,
        state=f.state.value,
        subject=f.subject,
        title=f.title,
        consequence=f.consequence,
        evidence=evidence(f.evidence),
        rule=f.rule,
        fix=f.fix,
    )


def report_document(report: Report, version: str) -> doc.ReportDoc:
    """Return the document of a report; `version` is topocheck's."""
    node, topology = report.node, report.topology
    devices = node.pci.devices if known(node.pci.devices) else ()
    statuses = _p2p_statuses(node.nvml.p2p)
    return doc.ReportDoc(
        schema_version=doc.SCHEMA_VERSION,
        topocheck_version=version,
        source=node.source,
        taken_at=node.taken_at,
        host=_host(report),
        system_summary=system_summary(report),
        gpus=[_gpu(g, statuses) for g in topology.gpus],
        accelerators=[_gpu(g, {}) for g in topology.accelerators],
        nics=[_nic(n, node.net) for n in topology.nics],
        switch_nics=[_nic(n, node.net) for n in topology.switch_nics],
        interfaces=[
            fill(doc.InterfaceDoc, i, ipv4_prefix_lengths=_prefix_lengths(i))
            for i in (node.net.interfaces if known(node.net.interfaces) else ())
        ],
        numa_nodes=[fill(doc.NumaNodeDoc, n) for n in (node.numa.nodes if known(node.numa.nodes) else ())],
        pci=[_pci(d, topology) for d in devices],
        paths=[_path(p) for p in topology.paths],
        nearest_nics={n.gpu: list(n.nics) for n in topology.nearest_nics},
        gpudirect=doc.GpuDirectDoc(
            p2p=[_p2p(v) for v in report.gpudirect.p2p],
            rdma=[_rdma(v) for v in report.gpudirect.rdma],
        ),
        nccl=fill(
            doc.NcclDoc,
            report.nccl,
            settings=settings(report.nccl.settings),
            pairs=[_nccl_pair(p) for p in report.nccl.pairs],
            bounds=[_bound(b) for b in report.nccl.bounds],
        ),
        backends=[doc.BackendDoc(name=b.name, fits=b.fits, reason=b.reason) for b in report.backends],
        related_settings=settings(node.settings.related),
        limits=fill(doc.LimitsDoc, node.limits),
        software=dict(sorted(node.software.versions.items())),
        findings=[finding(f) for f in report.findings],
        missing={} if topology.nics_untold is None else {"nics": str(topology.nics_untold)},
        probes=[doc.ProbeDoc(name=p.name, state=p.state, ms=p.ms, detail=p.detail) for p in node.probes],
    )


def _host(report: Report) -> doc.HostDoc:
    node, topology = report.node, report.topology
    system = node.system
    files: object = system.nvidia_files
    if isinstance(files, tuple):
        files = {f.path: f.opens if isinstance(f.opens, bool) else None for f in files}
    return fill(
        doc.HostDoc,
        system,
        node.numa,
        node.nvml,
        node.software,
        flat_tree=topology.flat_tree,
        device_files=files,
        nvml_library=next((v for f in system.nvml_libraries.values() if (v := library_version(f))), ABSENT),
        topo_file_path=node.settings.topo_file_path or ABSENT,
    )


def _p2p_statuses(statuses: tuple[P2pStatus, ...]) -> dict[str, dict[str, int]]:
    """Return address -> `read OK` and the like -> to how many other GPUs; what is not known is left out."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for s in statuses:
        for kind in ("read", "write", "nvlink", "atomics", "pcie"):
            word = getattr(s, kind)
            if known(word):
                found[s.from_address][f"{kind} {word}"] += 1
    return {a: dict(sorted(c.items())) for a, c in found.items()}


def system_summary(report: Report) -> doc.SystemSummaryDoc:
    """Return what papers and lab reports ask of the machine."""
    node, topology = report.node, report.topology
    versions = node.software.versions
    frameworks = [f"{n} {versions[n]}" for n in ("torch", "tensorflow", "jax", "mindspore") if n in versions]
    nic_drivers = {n.pci.driver for n in topology.nics if n.pci and known(n.pci.driver)}
    nic_versions = [f"{d} {node.system.modules.get(d) or ''}".strip() for d in sorted(nic_drivers)]
    nccl = report.nccl.version
    return doc.SystemSummaryDoc(
        servers=1,
        gpus_per_server=len(topology.gpus),
        gpu_models=dict(Counter(_text(g.name) for g in topology.gpus)),
        nics_per_server=len(topology.nics),
        nic_models=dict(Counter(_nic_model(n) for n in topology.nics)),
        gpu_connection=gpu_connection(topology),
        os=f"{_text(node.system.os_name)}, Linux {_text(node.system.kernel_release)}",
        gpu_driver=_text(node.nvml.driver_version),
        nic_driver=", ".join(nic_versions) or "none",
        framework=", ".join(frameworks) or "none found",
        cuda=_text(node.nvml.cuda_version),
        nccl=_text(nccl),
    )


def settings(items: tuple[Setting, ...]) -> list[doc.SettingDoc]:
    """Return the document form of settings."""
    return [doc.SettingDoc(name=s.name, value=s.value, source=s.source, in_force=s.in_force) for s in items]


def _text(value: str | Missing) -> str:
    return value if isinstance(value, str) else f"unknown ({value})"


def _nic_model(nic: Nic) -> str:
    if nic.pci is not None and known(nic.pci.device_name):
        return nic.pci.device_name
    return _text(nic.rdma.hca_type) if nic.rdma is not None else "unknown"


def _gpu(gpu: Gpu, statuses: dict[str, dict[str, int]]) -> doc.GpuDoc:
    nvml = gpu.nvml
    processes = nvml.processes if nvml is not None else None
    return fill(
        doc.GpuDoc,
        gpu,
        nvml,
        gpu.cuda,
        p2p_status=statuses.get(gpu.address, {}),
        nvlinks=[fill(doc.NvLinkDoc, link) for link in nvml.nvlinks] if nvml else [],
        processes=len(processes) if isinstance(processes, tuple) else processes,
    )


def _nic(nic: Nic, net: NetFacts) -> doc.NicDoc:
    ports = nic.rdma.ports if nic.rdma is not None else ()
    verbs = nic.rdma.verbs if nic.rdma is not None else ABSENT
    opens = verbs if isinstance(verbs, Missing) else net.verbs_opens.get(verbs, ABSENT)
    return fill(doc.NicDoc, nic, nic.rdma, opens=opens, ports=[_port(p) for p in ports])


def _port(port: Any) -> doc.PortDoc:
    gids = [fill(doc.GidDoc, g) for g in port.gids] if known(port.gids) else port.gids
    return fill(doc.PortDoc, port, gids=gids)


def _pci(device: Any, topology: Topology) -> doc.PciDoc:
    node = topology.tree.get(device.address)
    return fill(
        doc.PciDoc,
        device,
        parent=node.parent if node else None,
        role=node.role if node else "",
        link_gb_s=node.link_gb_s if node else None,
    )


def _path(path: Path) -> doc.PathDoc:
    untold = path.nvlinks_untold if not path.nvlinks else None
    links = path.nvlinks if untold is None else untold
    narrowest = None if path.narrowest is None else fill(doc.HopDoc, path.narrowest)
    return fill(doc.PathDoc, path, nvlinks=links, narrowest=narrowest)


def _p2p(v: P2pVerdict) -> doc.VerdictDoc:
    return doc.VerdictDoc(
        from_=v.from_,
        to=v.to,
        from_label=v.from_label,
        to_label=v.to_label,
        verdict=v.verdict.value,
        link=v.link,
        reasons=reasons(v.reasons),
    )


def _rdma(v: RdmaVerdict) -> doc.VerdictDoc:
    return doc.VerdictDoc(
        from_=v.from_,
        to=v.to,
        from_label=v.from_label,
        to_label=v.to_label,
        verdict=v.verdict.value,
        peermem=v.peermem.value,
        dma_buf=v.dma_buf.value,
        reasons=reasons(v.reasons),
    )


def _nccl_pair(p: NcclPair) -> doc.NcclPairDoc:
    return fill(doc.NcclPairDoc, p, reasons=reasons(p.reasons))


def _bound(b: Bound) -> doc.BoundDoc:
    return doc.BoundDoc(
        algorithm=b.algorithm, busbw_gb_s=round(b.busbw_gb_s, 3), limited_by=b.limited_by, formula=b.formula
    )


encode = json_text
"""Return a document as indented JSON text with a final newline."""
