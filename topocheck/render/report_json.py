"""From a report to the JSON document (model/document.py)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from topocheck.model import document as doc
from topocheck.model import document_host as host_doc
from topocheck.model.base import ABSENT, Evidence, Finding, Missing, ReasonStep, known
from topocheck.model.net import NetFacts, NetInterface, ipv4_networks
from topocheck.model.system import Setting, library_version
from topocheck.model.version import SCHEMA_VERSION
from topocheck.render.quoting import Members, json_pieces, json_text
from topocheck.render.words import gpu_connection

if TYPE_CHECKING:
    from topocheck.gpudirect.types import P2pVerdict, RdmaVerdict
    from topocheck.model.gpu import P2pStatus
    from topocheck.nccl.predict.types import Bound, NcclPair
    from topocheck.pipeline import Report
    from topocheck.topology.types import Gpu, Hop, Nic, Path, Topology

D = TypeVar("D", bound=host_doc.Doc)
T = TypeVar("T")


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


def _as_written(steps: tuple[ReasonStep, ...]) -> list[doc.ReasonDoc]:
    """Return a chain of reasons for a document that is only written: a step has the members of its document form."""
    return steps  # type: ignore[return-value]  # there are eight objects fewer to make for each pair of GPUs


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


def report_pieces(report: Report, version: str) -> Iterator[str]:
    """Yield the text of the document of a report, in pieces: the document of 256 GPUs would take a gigabyte."""
    whole = report_document(report, version, pairs=False)
    members, nccl = members_of(whole), members_of(whole.nccl)
    members["paths"] = map(_path, report.topology.paths)
    members["gpudirect"] = Members(
        p2p=(_p2p(v, _as_written) for v in report.gpudirect.p2p),
        rdma=(_rdma(v, _as_written) for v in report.gpudirect.rdma),
    )
    nccl["pairs"] = (_nccl_pair(p, _as_written) for p in report.nccl.pairs)
    members["nccl"] = nccl
    return json_pieces(members)


def members_of(part: msgspec.Struct) -> Members:
    """Return the members of a part of a document by their names there."""
    return Members(zip(part.__struct_encode_fields__, msgspec.structs.astuple(part), strict=True))


def report_document(report: Report, version: str, *, pairs: bool = True) -> doc.ReportDoc:
    """Return the document of a report; `version` is topocheck's. Without `pairs` it says nothing of any pair."""
    node, topology = report.node, report.topology
    paths, p2p, rdma, nccl_pairs = (
        (topology.paths, report.gpudirect.p2p, report.gpudirect.rdma, report.nccl.pairs) if pairs else ((), (), (), ())
    )
    devices = node.pci.devices if known(node.pci.devices) else ()
    statuses = _p2p_statuses(node.nvml.p2p)
    return doc.ReportDoc(
        schema_version=SCHEMA_VERSION,
        topocheck_version=version,
        source=node.source,
        taken_at=node.taken_at,
        host=_host(report),
        system_summary=system_summary(report),
        gpus=[_gpu(g, statuses) for g in topology.gpus],
        accelerators=[_gpu(g, {}) for g in topology.accelerators],
        nics=[_nic(n, node.net) for n in topology.nics],
        switch_nics=[_nic(n, node.net) for n in topology.switch_nics],
        unplaced_nics=[_nic(n, node.net) for n in topology.unplaced_nics],
        interfaces=[
            fill(host_doc.InterfaceDoc, i, ipv4_prefix_lengths=_prefix_lengths(i))
            for i in (node.net.interfaces if known(node.net.interfaces) else ())
        ],
        numa_nodes=[fill(host_doc.NumaNodeDoc, n) for n in (node.numa.nodes if known(node.numa.nodes) else ())],
        pci=[_pci(d, topology) for d in devices],
        paths=[_path(p) for p in paths],
        nearest_nics={n.gpu: list(n.nics) for n in topology.nearest_nics},
        gpudirect=doc.GpuDirectDoc(
            p2p=[_p2p(v) for v in p2p],
            rdma=[_rdma(v) for v in rdma],
        ),
        nccl=fill(
            doc.NcclDoc,
            report.nccl,
            settings=settings(report.nccl.settings),
            pairs=[_nccl_pair(p) for p in nccl_pairs],
            bounds=[_bound(b) for b in report.nccl.bounds],
        ),
        backends=[doc.BackendDoc(name=b.name, fits=b.fits, reason=b.reason) for b in report.backends],
        related_settings=settings(node.settings.related),
        limits=fill(doc.LimitsDoc, node.limits),
        software=dict(sorted(node.software.versions.items())),
        findings=[finding(f) for f in report.findings],
        missing={name: str(why) for name, why in _untold(report).items()},
        probes=[doc.ProbeDoc(name=p.name, state=p.state, ms=p.ms, detail=p.detail) for p in node.probes],
    )


def _untold(report: Report) -> dict[str, Missing]:
    why = report.topology.nics_untold
    return report.untold if why is None else {**report.untold, "nics": why}


def _host(report: Report) -> host_doc.HostDoc:
    node, topology = report.node, report.topology
    system = node.system
    files: object = system.nvidia_files
    if isinstance(files, tuple):
        files = {f.path: f.opens if isinstance(f.opens, bool) else None for f in files}
    return fill(
        host_doc.HostDoc,
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
    rows = Counter((s.from_address, s.read, s.write, s.nvlink, s.atomics, s.pcie) for s in statuses)
    for (address, *row), number in rows.items():  # of many pairs nearly all have the same row
        for kind, word in zip(("read", "write", "nvlink", "atomics", "pcie"), row, strict=True):
            if known(word):
                found[address][f"{kind} {word}"] += number
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


def _gpu(gpu: Gpu, statuses: dict[str, dict[str, int]]) -> host_doc.GpuDoc:
    nvml = gpu.nvml
    processes = nvml.processes if nvml is not None else None
    return fill(
        host_doc.GpuDoc,
        gpu,
        nvml,
        gpu.cuda,
        p2p_status=statuses.get(gpu.address, {}),
        nvlinks=[fill(host_doc.NvLinkDoc, link) for link in nvml.nvlinks] if nvml else [],
        processes=len(processes) if isinstance(processes, tuple) else processes,
    )


def _nic(nic: Nic, net: NetFacts) -> host_doc.NicDoc:
    ports = nic.rdma.ports if nic.rdma is not None else ()
    verbs = nic.rdma.verbs if nic.rdma is not None else ABSENT
    opens = verbs if isinstance(verbs, Missing) else net.verbs_opens.get(verbs, ABSENT)
    return fill(host_doc.NicDoc, nic, nic.rdma, opens=opens, ports=[_port(p) for p in ports])


def _port(port: Any) -> host_doc.PortDoc:
    gids = [fill(host_doc.GidDoc, g) for g in port.gids] if known(port.gids) else port.gids
    return fill(host_doc.PortDoc, port, gids=gids)


def _pci(device: Any, topology: Topology) -> host_doc.PciDoc:
    node = topology.tree.get(device.address)
    return fill(
        host_doc.PciDoc,
        device,
        parent=node.parent if node else None,
        role=node.role if node else "",
        link_gb_s=node.link_gb_s if node else None,
    )


def _path(path: Path) -> doc.PathDoc:
    # Spelled out where `fill` would do: there are as many as pairs.
    missing: dict[str, str] = {}
    untold = path.nvlinks_untold if not path.nvlinks else None
    return doc.PathDoc(
        missing=missing,
        from_=path.from_,
        to=path.to,
        from_label=path.from_label,
        to_label=path.to_label,
        class_=_or_none("class", path.class_, missing),
        pcie_class=_or_none("pcie_class", path.pcie_class, missing),
        nvlinks=_or_none("nvlinks", path.nvlinks if untold is None else untold, missing),
        theoretical_gb_s=_or_none("theoretical_gb_s", path.theoretical_gb_s, missing),
        upper_bound=path.upper_bound,
        narrowest=None if path.narrowest is None else _hop(path.narrowest),
    )


def _hop(hop: Hop) -> doc.HopDoc:
    missing: dict[str, str] = {}
    return doc.HopDoc(
        missing=missing,
        kind=hop.kind,
        address=hop.address,
        upstream=hop.upstream,
        gb_s=_or_none("gb_s", hop.gb_s, missing),
        attainable_gb_s=_or_none("attainable_gb_s", hop.attainable_gb_s, missing),
        text=hop.text,
    )


def _or_none(name: str, value: T | Missing, missing: dict[str, str]) -> T | None:
    """Return a value that is known, or None with its reason put under its name."""
    if isinstance(value, Missing):
        missing[name] = str(value)
        return None
    return value


_Reasons = Callable[[tuple[ReasonStep, ...]], list[doc.ReasonDoc]]


def _p2p(v: P2pVerdict, said: _Reasons = reasons) -> doc.VerdictDoc:
    return doc.VerdictDoc(
        from_=v.from_,
        to=v.to,
        from_label=v.from_label,
        to_label=v.to_label,
        verdict=v.verdict.value,
        link=v.link,
        reasons=said(v.reasons),
    )


def _rdma(v: RdmaVerdict, said: _Reasons = reasons) -> doc.VerdictDoc:
    return doc.VerdictDoc(
        from_=v.from_,
        to=v.to,
        from_label=v.from_label,
        to_label=v.to_label,
        verdict=v.verdict.value,
        peermem=v.peermem.value,
        dma_buf=v.dma_buf.value,
        reasons=said(v.reasons),
    )


def _nccl_pair(p: NcclPair, said: _Reasons = reasons) -> doc.NcclPairDoc:
    missing: dict[str, str] = {}
    return doc.NcclPairDoc(
        missing=missing,
        from_=p.from_,
        to=p.to,
        from_label=p.from_label,
        to_label=p.to_label,
        nccl_class=_or_none("nccl_class", p.nccl_class, missing),
        transport=_or_none("transport", p.transport, missing),
        reasons=said(p.reasons),
    )


def _bound(b: Bound) -> doc.BoundDoc:
    return doc.BoundDoc(
        algorithm=b.algorithm, busbw_gb_s=round(b.busbw_gb_s, 3), limited_by=b.limited_by, formula=b.formula
    )


encode = json_text
"""Return a document as indented JSON text with a final newline."""
