"""The report for a person: a first screen, and a section for each thing that can be wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from topocheck.model.base import Missing, Reason, State, is_lost, known
from topocheck.model.version import __version__
from topocheck.picture.scene import nic_product
from topocheck.picture.words import rate
from topocheck.render import sections_devices, sections_host, sections_links
from topocheck.render.findings import Detail, add_findings, fit_findings
from topocheck.render.page import Page, Style
from topocheck.render.quoting import name_text
from topocheck.render.words import STATE_MARKS, STATE_STYLES, gpu_connection, plural

if TYPE_CHECKING:
    from topocheck.gpudirect.types import P2pVerdict
    from topocheck.pipeline import Report
    from topocheck.topology.types import Topology

MAX_LINES, MIN_FINDINGS = 70, 16
"""Lines of the first screen, which an 8-GPU node with 10 NICs keeps; and what findings may take of any machine's."""


def report_text(report: Report, sections: Sequence[str] | None, style: Style) -> str:
    """Return the report as text.

    Args:
        report: what was found.
        sections: names of the sections wanted; the first screen where None or empty.
        style: columns and colours.
    """
    page = Page(style)
    if sections:
        add_sections(report, sections, page)
    else:
        first_screen(report, page)
    return page.render()


def first_screen(report: Report, page: Page) -> None:
    """What is wrong and how fast the links are, on a screen and a half.

    Where that would be longer, equal NICs are folded into rows, and findings are shortened.
    """
    _title(report, page)
    facts(report, page)
    for folded in (False, True):
        rest = _below_findings(report, page.style, folded=folded)
        room = MAX_LINES - page.length() - rest.length() - 2  # a blank line before each
        found = Page(page.style)
        whole = not report.results or findings(report, found, max_lines=max(room, MIN_FINDINGS))
        if whole and found.length() <= room:
            break
    for part in (found, rest):
        if part.lines:
            page.blank()
            page.lines += part.lines


def _below_findings(report: Report, style: Style, *, folded: bool) -> Page:
    """Return the tables of the first screen."""
    page = Page(style)
    sections_links.few_pairs(report, page, folded=folded)
    sections_devices.few_devices(report, page, folded=folded)
    sections_links.nvlink(report, page)
    sections_links.few_nics(report, page, folded=folded)
    page.blank()
    page.text(
        f"--all prints all {len(SECTIONS)} sections, --section NAME one of them: tree, numa, nccl, rdma, ...",
        style="dim",
    )
    return page


def add_sections(report: Report, sections: Sequence[str] | None, page: Page) -> None:
    """Add the sections asked for, or all; one that was asked for and has nothing says so."""
    for name in sections or SECTIONS:
        before = page.length()
        SECTIONS[name](report, page)
        if sections and page.length() == before:
            page.blank()
            page.text(f"{name}: nothing to list on this machine", style="dim")


def summary(report: Report, page: Page) -> None:
    """What this node is."""
    _title(report, page)
    facts(report, page)


def all_findings(report: Report, page: Page) -> None:
    """What is wrong, with all that a finding says; the notes have a section of their own."""
    if report.results:
        findings(report, page)


def notes(report: Report, page: Page) -> None:
    """The notes, which need no attention."""
    found = [f for f in report.findings if f.state is State.NOTE]
    if found:
        page.heading("Notes")
        add_findings(found, page, others=Detail(2))


def _title(report: Report, page: Page) -> None:
    page.text(f"topocheck {__version__}: {name_text(host_name(report))}", indent=0, hang=2, style="bold")


def host_name(report: Report) -> str:
    """Return what the node is called, with the snapshot where it is read from one."""
    source = snapshot_name(report)
    return node_name(report) + (f" ({source})" if source else "")


def node_name(report: Report) -> str:
    """Return what the node is called."""
    return _or(report.node.system.hostname, "this node")


def snapshot_name(report: Report) -> str:
    """Return which snapshot a report is of, and when that was taken; the empty text for a live machine."""
    node = report.node
    if node.source == "live" or node.made_from:
        return ""
    return f"snapshot {node.source}" + (f", taken {node.taken_at}" if node.taken_at else "")


def facts(report: Report, page: Page) -> None:
    """What this node is, in a line for each kind of device."""
    node, topology = report.node, report.topology
    made = node.made_from
    if made is not None:
        for f in made.files:
            page.pair("made from", name_text(f"{f.name}: {', '.join(f.formats)}"))
        page.pair("not in it" if len(made.files) == 1 else "not in them", ", ".join(made.unseen) or "nothing large")
    if machine := _machine(report):
        page.pair("machine", machine)
    page.pair("GPUs", _gpus(report))
    if topology.accelerators:
        models = Counter(_of_maker(str(g.vendor), _or(g.name, "accelerator")) for g in topology.accelerators)
        listed = ", ".join(f"{n} x {m}" for m, n in models.items())
        page.pair("accelerators", f"{listed}: reported, not checked")
    page.pair("NICs", _nics(report))
    if len(topology.gpus) > 1:
        page.pair("GPU interconnect", gpu_connection(topology) + _fastest(topology))
    if report.gpudirect.p2p:
        page.pair("GPUDirect P2P", _pairs_judged(report.gpudirect.p2p))
    if report.gpudirect.rdma:
        page.pair("GPUDirect RDMA", _nearest_judged(report))


def findings(report: Report, page: Page, *, max_lines: int | None = None) -> bool:
    """Add the findings, worst first; notes are named in one line. Return whether nothing had to be left out.

    Args:
        report: what was found.
        page: where they are added.
        max_lines: lines that they may take; of more, evidence and consequences are left out. No limit where None.
    """
    start = page.length()
    counts = Counter(f.state for f in report.findings)
    page.blank()
    order = (State.FAIL, State.UNKNOWN, State.WARN, State.NOTE)
    parts = [
        plural(counts[s], "note") if s is State.NOTE else f"{counts[s]} {STATE_MARKS[s].lower()}"
        for s in order
        if counts[s]
    ]
    judged = sum(r.state is not State.NOT_APPLICABLE for r in report.results)
    unusable = no_usable_gpu(report)
    if any(counts[s] for s in order if s is not State.NOTE) or (unusable and parts):
        page.line(("Findings", "bold"), f" of {plural(judged, 'check')}: {', '.join(parts)}")
    elif not unusable:
        page.line(("No problems found", "bold green"), f" by {plural(judged, 'check')}.")
    if unusable:
        page.text(unusable, style="yellow", hang=2)
    # Of files that tell a part, much is unknown: one line for each, so that what was found stands out.
    short = {State.NOTE, State.UNKNOWN} if report.node.made_from else {State.NOTE}
    rest = Page(page.style)
    for f in report.findings:
        if f.state in short - {State.NOTE}:
            rest.text(f"{STATE_MARKS[f.state]}  {f.id}  {f.subject}: {f.title}", style=STATE_STYLES[f.state], hang=6)
    noted = dict.fromkeys(f.id for f in report.findings if f.state is State.NOTE)
    if noted:
        rest.text(f"{plural(counts[State.NOTE], 'note')}: {', '.join(noted)} (--section notes)", style="dim", hang=2)
    bad = [p for p in report.node.probes if p.state in ("failed", "timed_out")]
    for p in bad:
        rest.text(f"probe {p.name} {p.state.replace('_', ' ')}: {p.detail}", style="magenta", hang=2)
    full = [f for f in report.findings if f.state not in short]
    whole = True
    if max_lines is None:
        add_findings(full, page)
    else:
        whole = fit_findings(full, page, max_lines - (page.length() - start) - rest.length())
    page.lines += rest.lines
    return whole


def no_usable_gpu(report: Report) -> str:
    """Return that no NVIDIA GPU can be used, and what to look at first; empty where one can, or nobody can tell."""
    node, topology = report.node, report.topology
    if node.made_from is not None or not node.probes:
        return ""
    if any(g.on_bus and g.nvml is not None for g in topology.gpus) or (
        topology.gpus and isinstance(node.nvml.gpus, Missing) and is_lost(node.nvml.gpus)
    ):
        return ""
    if topology.gpus:
        return "No NVIDIA GPU is usable: what needs one was not checked. First: nvidia-smi, then dmesg | grep -i nvrm"
    if topology.accelerators:
        return f"No NVIDIA GPU: {plural(len(topology.accelerators), 'accelerator')} of another maker, not checked."
    start = "No NVIDIA GPU was found, so nothing about GPUs was checked. If one is expected"
    if known(node.system.container):
        return f"{start}: start the container with GPUs (docker run --gpus all; Kubernetes: nvidia.com/gpu)."
    if known(node.system.hypervisor):
        return f"{start}: is one assigned to this VM (lspci -d 10de:)? Then the driver (nvidia-smi)."
    return f"{start}: lspci -d 10de: (slot, power, firmware setup), then the driver (nvidia-smi)."


_TRADEMARK = re.compile(r"\((?:R|TM)\)", re.IGNORECASE)


def _machine(report: Report) -> str:
    system, numa = report.node.system, report.node.numa
    nodes = len(numa.nodes) if known(numa.nodes) else 0
    if isinstance(system.kernel_release, Missing) and isinstance(system.cpu_vendor, Missing):
        return ""
    parts = [_TRADEMARK.sub("", _or(system.cpu_model_name, _or(system.cpu_vendor, "CPU not known")))]
    if known(numa.sockets):
        parts.append(plural(numa.sockets, "socket"))
    if nodes:
        parts.append(plural(nodes, "NUMA node"))
    product = _of_maker(_or(system.dmi_vendor, ""), _or(system.dmi_product, ""))
    if product:
        parts.append(product)
    if known(system.hypervisor):
        unnamed = system.hypervisor == "unknown"
        parts.append("VM (hypervisor not known)" if unnamed else f"{system.hypervisor} VM")
    elif system.hypervisor.reason is Reason.ABSENT:
        parts.append("bare metal")
    if known(system.container):
        parts.append(f"in a container ({system.container})")
    return ", ".join(parts)


def _of_maker(maker: str, product: str) -> str:
    """Return `maker product`; the maker once where the product's name begins with it."""
    return product if product.lower().startswith(maker.lower()) and product else f"{maker} {product}".strip()


def _gpus(report: Report) -> str:
    topology, nvml = report.topology, report.node.nvml
    if not topology.gpus:
        if report.node.made_from is not None and not (known(report.node.pci.devices) or known(nvml.gpus)):
            return "not recorded in the given files"
        if report.node.made_from is not None and report.node.made_from.selection and not topology.accelerators:
            return "none in the given files"
        why = f" ({nvml.error})" if nvml.error and not topology.accelerators else ""
        return f"no NVIDIA GPU{why}" if topology.accelerators else f"none found{why}"
    models = Counter(_or(g.name, _device_name(g.pci)) for g in topology.gpus)
    text = ", ".join(f"{n} x {m}" for m, n in models.items())
    if known(nvml.driver_version):
        flavour = (
            f" {report.node.system.nvidia_module_flavor}" if known(report.node.system.nvidia_module_flavor) else ""
        )
        return f"{text}, driver {nvml.driver_version}{flavour}, CUDA {_or(nvml.cuda_version, 'not known')}"
    if report.node.probes:
        return f"{text}; NVML not available ({nvml.error or _reason(nvml.driver_version)})"
    return text


def _nics(report: Report) -> str:
    topology = report.topology
    if not topology.nics and topology.nics_untold is not None:
        why = topology.nics_untold.detail or _reason(topology.nics_untold)
        return f"{_functions(topology)}RDMA devices and ports not known ({why})"
    if not topology.nics and not report.node.probes and not topology.devices:
        return "none in this text"
    if not topology.nics:
        if topology.unplaced_nics:
            return f"{plural(len(topology.unplaced_nics), 'RDMA device')}, PCI address not known{_down(topology)}"
        interfaces = report.node.net.interfaces
        if not known(report.node.net.rdma) and is_lost(report.node.net.rdma):
            return f"not known ({_reason(report.node.net.rdma)})"
        plain = [i for i in interfaces if known(i.address)] if known(interfaces) else []
        names = ", ".join(i.name for i in plain[:6])
        found = f"{_functions(topology)}no RDMA device" if topology.rdma_functions else "no RDMA NIC"
        return f"{found}; Ethernet: {names}" if plain else found
    kinds: Counter[str] = Counter()
    for n in topology.nics:
        port = n.rdma.ports[0] if n.rdma and n.rdma.ports else None
        what = nic_product(n) or "NIC"
        if port is not None:
            gbit_s = f"{port.rate_gbit_s:g} Gb/s" if known(port.rate_gbit_s) else "rate not known"
            state = "" if port.state == "ACTIVE" else _or(port.state, "state not known")
            what += f" {gbit_s} {_or(port.link_layer, '')} {state}"
        kinds[" ".join(what.split())] += 1
    return ", ".join(f"{n} x {k}" for k, n in kinds.most_common())


def _down(topology: Topology) -> str:
    """Return how many ports of NICs without a known PCI address are not active, as an ending; empty for none."""
    ports = [p for n in topology.unplaced_nics for p in (n.rdma.ports if n.rdma is not None else ())]
    down = sum(known(p.state) and p.state != "ACTIVE" for p in ports)
    return f"; {down} of {plural(len(ports), 'port')} not active" if down else ""


def _functions(topology: Topology) -> str:
    """Return the NICs on the PCI bus that have no RDMA device, with a semicolon; nothing for none."""
    found = [topology.devices[a] for a in topology.rdma_functions]
    names = [f"{d.address} {d.device_name}" if isinstance(d.device_name, str) else d.address for d in found]
    rest = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{len(names)} on the PCI bus: {', '.join(names[:4])}{rest}; " if names else ""


_WORST_FIRST = ("unknown", "no", "degraded", "yes")


def _counted(verdicts: Sequence[str], one: str, many: str, rest: str = "") -> str:
    """Return `yes for all 28 GPU pairs`, or how many of them have which verdict, worst first."""
    counts = Counter(verdicts)
    words = {"unknown": "not known"}
    if len(counts) == 1:
        verdict = words.get(verdicts[0], verdicts[0])
        return f"{verdict} for {f'all {len(verdicts)} {many}' if len(verdicts) > 1 else f'the {one}'}{rest}"
    parts = [f"{words.get(v, v)} for {counts[v]}" for v in _WORST_FIRST if counts[v]]
    return f"{', '.join(parts)} of {len(verdicts)} {many}{rest}"


def _pairs_judged(verdicts: Sequence[P2pVerdict]) -> str:
    """Return how many pairs of GPUs have peer access; of the two directions the worse counts."""
    pairs: dict[frozenset[str], str] = {}
    for v in verdicts:
        key, value = frozenset((v.from_, v.to)), v.verdict.value
        pairs[key] = min(pairs.get(key, value), value, key=_WORST_FIRST.index)
    return _counted(list(pairs.values()), "GPU pair", "GPU pairs")


def _nearest_judged(report: Report) -> str:
    """Return for how many GPUs GPUDirect RDMA is possible with a nearest NIC: of several the best counts."""
    found = {(v.from_, v.to): v.verdict.value for v in report.gpudirect.rdma}
    best: list[str] = []
    for near in report.topology.nearest_nics:
        own = [found[near.gpu, nic] for nic in near.nics if (near.gpu, nic) in found]
        best.append(max(own, key=_WORST_FIRST.index) if own else "unknown")
    if not best:
        return "not known"
    rest = " with its nearest NIC" if len(best) == 1 else " with their nearest NICs"
    why = "; nearest NICs not known" if all(n.untold for n in report.topology.nearest_nics) else ""
    return _counted(best, "GPU", "GPUs", rest) + why


def _fastest(topology: Topology) -> str:
    """Return the NVLink rate of a pair of GPUs where it is one for all that have NVLink; else nothing."""
    rates = {p.theoretical_gb_s for p in topology.paths if p.nvlinks}
    only = next(iter(rates)) if len(rates) == 1 else None
    return f", {rate(only)} per direction" if isinstance(only, float) else ""


def _device_name(pci: object) -> str:
    name = getattr(pci, "device_name", None)
    return name if isinstance(name, str) else "NVIDIA GPU"


def _or(value: str | Missing, default: str) -> str:
    return value if isinstance(value, str) else default


def _reason(value: object) -> str:
    return str(value) if isinstance(value, Missing) else ""


SECTIONS: dict[str, Callable[[Report, Page], None]] = {
    "summary": summary,
    "findings": all_findings,
    "notes": notes,
    "devices": sections_devices.devices,
    "tree": sections_devices.tree,
    "matrix": sections_links.matrix,
    "pcie": sections_links.pcie,
    "nvlink": sections_links.nvlink,
    "nics": sections_links.nics,
    "numa": sections_host.numa,
    "nccl": sections_host.nccl,
    "p2p": sections_links.p2p,
    "rdma": sections_links.rdma,
    "limits": sections_host.limits,
    "software": sections_host.software,
    "system-summary": sections_host.system_summary,
    "probes": sections_host.probes,
}
