"""The report for a person: one screen of summary, then a section for each thing that can be wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import topocheck
from topocheck.model.base import Finding, Missing, Reason, State, known
from topocheck.render import sections_host, sections_links
from topocheck.render.page import Page, Style, clean
from topocheck.render.words import STATE_MARKS, STATE_STYLES, evidence_line, gpu_connection, plural

if TYPE_CHECKING:
    from topocheck.pipeline import Report

MAX_EVIDENCE = 4
"""Pieces of evidence shown for one finding; the JSON holds all of them."""


def report_text(report: Report, sections: Sequence[str] | None, style: Style) -> str:
    """Return the report as text.

    Args:
        report: what was found.
        sections: names of the sections wanted; all where None or empty.
        style: columns and colours.
    """
    page = Page(style)
    add_sections(report, sections, page)
    return clean(page.render()) if not style.colour else page.render()


def add_sections(report: Report, sections: Sequence[str] | None, page: Page) -> None:
    """Add the sections asked for, or all; one that was asked for and has nothing says so."""
    for name in sections or SECTIONS:
        before = page.length()
        SECTIONS[name](report, page)
        if sections and page.length() == before:
            page.blank()
            page.text(f"{name}: this machine showed nothing to list here", style="dim")


def summary(report: Report, page: Page) -> None:
    """What this node is and what is wrong, on one screen."""
    node, topology = report.node, report.topology
    host = _or(node.system.hostname, "this node")
    source = "" if node.source == "live" else f" (recording {node.source})"
    page.line((f"topocheck {topocheck.__version__}: {host}{source}", "bold"))
    page.blank()
    if node.taken_at:
        page.pair("taken", node.taken_at)
    if machine := _machine(report):
        page.pair("machine", machine)
    page.pair("GPUs", _gpus(report))
    if topology.accelerators:
        models = Counter(_of_maker(str(g.vendor), _or(g.name, "accelerator")) for g in topology.accelerators)
        listed = ", ".join(f"{n} x {m}" for m, n in models.items())
        page.pair("accelerators", f"{listed}: reported, not judged")
    page.pair("NICs", _nics(report))
    if len(topology.gpus) > 1:
        page.pair("GPU wiring", gpu_connection(topology))
    if report.gpudirect.p2p:
        page.pair("GPUDirect P2P", _verdicts([v.verdict.value for v in report.gpudirect.p2p], "ordered pair"))
    if report.gpudirect.rdma:
        near = {(n.gpu, nic) for n in topology.nearest_nics for nic in n.nics}
        nearest = Counter(v.verdict.value for v in report.gpudirect.rdma if (v.from_, v.to) in near)
        with_nearest = ", ".join(f"{v} {n}" for v, n in nearest.items()) or "not known"
        page.pair(
            "GPUDirect RDMA",
            f"{_verdicts([v.verdict.value for v in report.gpudirect.rdma])}; nearest NICs: {with_nearest}",
        )
    for b in report.backends:
        if b.fits == "best":
            page.pair("backend", f"{b.name}: {b.why}")
    if report.results:
        findings(report, page)


def findings(report: Report, page: Page) -> None:
    """The findings, worst first; notes in one line each."""
    counts = Counter(f.state for f in report.findings)
    page.blank()
    order = (State.FAIL, State.UNKNOWN, State.WARN, State.NOTE)
    parts = [f"{counts[s]} {STATE_MARKS[s].lower()}" for s in order if counts[s]]
    judged = sum(r.state is not State.NOT_APPLICABLE for r in report.results)
    if not parts:
        page.line(("Nothing wrong found", "bold green"), f" by {plural(judged, 'check')}.")
    else:
        page.line(("Findings", "bold"), f" of {plural(judged, 'check')}: {', '.join(parts)}")
    add_findings([f for f in report.findings if f.state is not State.NOTE], page)
    notes = [f for f in report.findings if f.state is State.NOTE]
    for f in notes:
        page.text(f"note  {f.id}  {f.subject}: {f.title}", style="cyan", hang=6)
    bad = [p for p in report.node.probes if p.state in ("failed", "timed_out")]
    for p in bad:
        page.text(f"probe {p.name} {p.state.replace('_', ' ')}: {p.detail}", style="magenta", hang=2)


def add_findings(findings: Sequence[Finding], page: Page) -> None:
    """Add findings in their order; those that say the same of several subjects as one, with the first's evidence."""
    alike: dict[tuple[State, str, str, str, str], list[Finding]] = {}
    for f in findings:
        alike.setdefault((f.state, f.id, f.title, f.consequence, f.fix or ""), []).append(f)
    for first, *others in alike.values():
        finding(first, [f.subject for f in others], page)


def finding(f: Finding, others: Sequence[str], page: Page) -> None:
    """One finding with its evidence and fix, and the `others` of which it is true too."""
    page.text(f"{STATE_MARKS[f.state]}  {f.id}  {f.subject}", style=STATE_STYLES[f.state], hang=6)
    if others:
        page.text(f"and {len(others)} more: {', '.join(others)}", indent=8, hang=2)
    page.text(f.title, indent=8)
    if f.consequence:
        page.text(f.consequence, indent=8)
    for e in f.evidence[:MAX_EVIDENCE]:
        page.text(evidence_line(e), indent=10, style="dim", hang=2)
    if len(f.evidence) > MAX_EVIDENCE:
        page.text(f"and {len(f.evidence) - MAX_EVIDENCE} more (--format json shows all)", indent=10, style="dim")
    if f.fix:
        page.text(f"fix: {f.fix}", indent=8, style="green", hang=5)


def _machine(report: Report) -> str:
    system, numa = report.node.system, report.node.numa
    nodes = len(numa.nodes) if known(numa.nodes) else 0
    if isinstance(system.kernel_release, Missing) and isinstance(system.cpu_vendor, Missing):
        return ""
    parts = [_or(system.cpu_model_name, _or(system.cpu_vendor, "CPU unknown"))]
    if known(numa.sockets):
        parts.append(plural(numa.sockets, "socket"))
    if nodes:
        parts.append(plural(nodes, "NUMA node"))
    product = _of_maker(_or(system.dmi_vendor, ""), _or(system.dmi_product, ""))
    if product:
        parts.append(product)
    if known(system.hypervisor):
        unnamed = system.hypervisor == "unknown"
        parts.append("guest of an unnamed hypervisor" if unnamed else f"{system.hypervisor} guest")
    elif system.hypervisor.reason is Reason.ABSENT:
        parts.append("no hypervisor seen")
    if known(system.container):
        parts.append(f"in a container ({system.container})")
    return ", ".join(parts)


def _of_maker(maker: str, product: str) -> str:
    """Return `maker product`; the maker once where the product's name begins with it."""
    return product if product.lower().startswith(maker.lower()) and product else f"{maker} {product}".strip()


def _gpus(report: Report) -> str:
    topology, nvml = report.topology, report.node.nvml
    if not topology.gpus:
        why = f" ({nvml.error})" if nvml.error and not topology.accelerators else ""
        return f"none found{why}"
    models = Counter(_or(g.name, _device_name(g.pci)) for g in topology.gpus)
    text = ", ".join(f"{n} x {m}" for m, n in models.items())
    if known(nvml.driver_version):
        flavour = (
            f" {report.node.system.nvidia_module_flavor}" if known(report.node.system.nvidia_module_flavor) else ""
        )
        return f"{text}, driver {nvml.driver_version}{flavour}, CUDA {_or(nvml.cuda_version, 'unknown')}"
    if report.node.probes:
        return f"{text}; NVML not available ({nvml.error or _reason(nvml.driver_version)})"
    return text


def _nics(report: Report) -> str:
    topology = report.topology
    if not topology.nics:
        interfaces = report.node.net.interfaces
        plain = [i for i in interfaces if known(i.address)] if known(interfaces) else []
        names = ", ".join(i.name for i in plain[:6])
        return f"no RDMA NIC; Ethernet: {names}" if plain else "no RDMA NIC"
    kinds: Counter[str] = Counter()
    for n in topology.nics:
        port = n.rdma.ports[0] if n.rdma and n.rdma.ports else None
        if port is not None:
            rate = f"{port.rate_gbit_s:g} Gb/s {_or(port.link_layer, '')}" if known(port.rate_gbit_s) else "? Gb/s"
            kinds[f"{rate} {_or(port.state, 'state unknown')}"] += 1
    listed = ", ".join(f"{n} x {k}" for k, n in kinds.most_common())
    return f"{len(topology.nics)}: {listed}" if listed else str(len(topology.nics))


def _verdicts(verdicts: list[str], one: str = "pair") -> str:
    counts = Counter(verdicts)
    parts = [f"{v} for {counts[v]}" for v in ("yes", "degraded", "no", "unknown") if counts[v]]
    return f"{', '.join(parts)} of {plural(len(verdicts), one)}"


def _device_name(pci: object) -> str:
    name = getattr(pci, "device_name", None)
    return name if isinstance(name, str) else "NVIDIA GPU"


def _or(value: str | Missing, default: str) -> str:
    return value if isinstance(value, str) else default


def _reason(value: object) -> str:
    return str(value) if isinstance(value, Missing) else ""


SECTIONS: dict[str, Callable[[Report, Page], None]] = {
    "summary": summary,
    "record": sections_host.record,
    "tree": sections_links.tree,
    "matrix": sections_links.matrix,
    "pcie": sections_links.pcie,
    "nvlink": sections_links.nvlink,
    "numa": sections_host.numa,
    "nics": sections_links.nics,
    "nccl": sections_host.nccl,
    "p2p": sections_links.p2p,
    "rdma": sections_links.rdma,
    "limits": sections_host.limits,
    "software": sections_host.software,
    "probes": sections_host.probes,
}
