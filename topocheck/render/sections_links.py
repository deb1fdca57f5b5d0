"""Sections of the text report about links: tree, matrix, PCIe, NVLink, NICs, GPUDirect."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from topocheck.gpudirect.types import P2pVerdict, RdmaVerdict
from topocheck.model.base import Missing, Verdict, known
from topocheck.model.net import RdmaPort
from topocheck.render.page import Page, Span
from topocheck.render.sections_host import text_of
from topocheck.render.words import VERDICT_STYLES, evidence_line, plural

if TYPE_CHECKING:
    from topocheck.pipeline import Report
    from topocheck.topology.types import Gpu, Nic

V = TypeVar("V", P2pVerdict, RdmaVerdict)


def tree(report: Report, page: Page) -> None:
    """The PCI tree down to GPUs, accelerators, NICs and NVSwitches; branches without any are left out."""
    topology = report.topology
    page.heading("PCI tree (branches with GPUs and NICs)")
    labels = {g.address: g.label for g in (*topology.gpus, *topology.accelerators)}
    labels |= {n.address: n.label for n in topology.nics}
    devices = report.node.pci.devices
    if isinstance(devices, Missing):
        page.text(f"unknown: {devices}")
        return
    by_address = {d.address: d for d in devices}
    labels |= {d.address: "NVSwitch" for d in devices if d.base_class == 0x0680 and d.vendor_id == 0x10DE}
    wanted: set[str] = set()
    for address in labels:
        step: str | None = address
        while step is not None and step not in wanted and step in topology.tree:
            wanted.add(step)
            step = topology.tree[step].parent
    if not wanted:
        page.text("no GPU and no NIC on the PCI tree")
        return

    def walk(node_id: str, depth: int) -> None:
        node = topology.tree[node_id]
        device = by_address.get(node_id)
        what = labels.get(node_id) or node.role.replace("_", " ")
        link = ""
        if device is not None and known(device.current_speed_gt_s) and known(device.current_width_lanes):
            link = f"  {device.current_speed_gt_s:g} GT/s x{device.current_width_lanes}"
        name = ""
        if node_id in labels and device is not None and known(device.device_name):
            name = f"  {device.device_name}"
        text = f"{'  ' * depth}{node_id}  {what}{link}{name}"
        page.line((text[: page.style.width], "bold" if node_id in labels else ""))
        for child in node.children:
            if child in wanted:
                walk(child, depth + 1)

    for node_id in [i for i in topology.tree if i in wanted and topology.tree[i].parent not in wanted]:
        walk(node_id, 1)


def matrix(report: Report, page: Page) -> None:
    """The matrix of `nvidia-smi topo -m`, split into blocks of columns where the page is narrow."""
    topology = report.topology
    if not topology.gpus:
        return
    page.heading("Matrix (classes as nvidia-smi topo -m names them)")
    cells = {(p.from_, p.to): text_of(p.class_) for p in topology.paths}
    endpoints = [(g.address, g.label) for g in topology.gpus] + [(n.address, n.label) for n in topology.nics]
    aliases = {n.address: f"NIC{i}" for i, n in enumerate(topology.nics)}
    columns = [(a, aliases.get(a, label)) for a, label in endpoints]
    last = [(f"{text_of(g.cpu_affinity)}", f"{text_of(g.cpu_node)}") for g in topology.gpus]
    per_block = max((page.style.width - 8) // 6, 1)
    for start in range(0, len(columns), per_block):
        block = columns[start : start + per_block]
        page.line(("  " + " " * 6 + "".join(f"{c:>6}" for _, c in block), "dim"))
        for g in topology.gpus:
            row = "".join(f"{'X' if g.address == a else _short(cells.get((g.address, a), '?')):>6}" for a, _ in block)
            page.line(f"  {g.label:<6}{row}")
    page.table(
        ("", "CPU affinity", "NUMA"),
        [(g.label, affinity, node) for g, (affinity, node) in zip(topology.gpus, last, strict=True)],
    )
    if aliases:
        page.text("; ".join(f"{alias} {n.label}" for n, alias in zip(topology.nics, aliases.values(), strict=True)))
    for near in topology.nearest_nics if topology.nics else ():
        gpu = next(g for g in topology.gpus if g.address == near.gpu)
        names = ", ".join(n.label for n in topology.nics if n.address in near.nics)
        page.pair(f"nearest {gpu.label}", f"not known: {near.untold}" if near.untold else f"{names} ({near.class_})")
    if topology.flat_tree:
        page.text(
            "This guest's hypervisor shows a flat PCI bus: how near a GPU is to a NIC cannot be told from here.",
            style="cyan",
        )


def _short(text: str) -> str:
    return "?" if text.startswith("?") else text


def pcie(report: Report, page: Page) -> None:
    """Each GPU's and NIC's PCIe link: now, at most, and the narrowest hop above it."""
    topology = report.topology
    devices: list[Gpu | Nic] = [*topology.gpus, *topology.accelerators, *topology.nics]
    if not devices:
        return
    page.heading("PCIe links (GB/s a direction, theory)")
    rows: list[Sequence[Span | str]] = []
    for x in devices:
        d = x.pci
        if d is None:
            rows.append((x.label, x.address, "-", "-", "-", "not on the PCI tree"))
            continue
        node = topology.tree.get(x.address)
        rate = text_of(node.link_gb_s) if node else "-"
        now = _link(d.current_speed_gt_s, d.current_width_lanes)
        most = _link(d.max_speed_gt_s, d.max_width_lanes)
        rows.append((x.label, x.address, now, most, rate, text_of(d.driver)))
    page.table(("", "address", "GT/s now", "GT/s max", "GB/s", "driver"), rows, right=frozenset({4}))


def _link(speed_gt_s: float | Missing, width_lanes: int | Missing) -> str:
    """Return `16 x8`, or the one reason why neither is known."""
    if isinstance(speed_gt_s, Missing) and isinstance(width_lanes, Missing):
        return text_of(speed_gt_s)
    return f"{text_of(speed_gt_s)} x{text_of(width_lanes)}"


def nvlink(report: Report, page: Page) -> None:
    """NVLinks per GPU."""
    topology = report.topology
    if not any(g.nvml and g.nvml.nvlinks for g in topology.gpus):
        return
    page.heading("NVLink")
    rows: list[Sequence[Span | str]] = []
    for g in topology.gpus:
        if g.nvml is None or not g.on_bus:
            rows.append((g.label, "? lost" if not g.on_bus else "? no answer", "-", "-", "-", "-"))
            continue
        links = g.nvml.nvlinks
        up = [k for k in links if k.active is True]
        remote = sorted({text_of(k.remote_type) for k in up})
        version = sorted({k.version for k in up if known(k.version)})
        untold = sum(isinstance(k.active, Missing) for k in links)
        errors = sum(sum(k.errors.values()) for k in links)
        rows.append(
            (
                g.label,
                f"{len(up)} of {len(links)}" + (f", {untold} unknown" if untold else ""),
                ", ".join(map(str, version)) or "-",
                ", ".join(remote) or "-",
                str(errors),
                text_of(g.nvml.fabric_state),
            )
        )
    page.table(("", "links up", "version", "to", "errors", "fabric"), rows)
    for group in topology.nvlink_groups:
        names = [g.label for g in topology.gpus if g.address in group.gpus]
        page.text(f"{', '.join(names)}: {group.kind}", hang=2)


def nics(report: Report, page: Page) -> None:
    """RDMA devices and ports."""
    topology = report.topology
    if not topology.nics and not topology.software_rdma:
        return
    page.heading("NICs")
    rows: list[Sequence[Span | str]] = []
    for n in topology.nics:
        for port in n.rdma.ports if n.rdma else ():
            assert n.rdma is not None
            rows.append(
                (
                    f"{n.label}/{port.port}",
                    n.address,
                    text_of(port.state),
                    _rate(port),
                    text_of(port.link_layer),
                    f"{text_of(n.rdma.firmware)} {' '.join(n.rdma.netdevs)}",
                )
            )
    page.table(("port", "address", "state", "rate", "layer", "firmware, netdev"), rows)
    if topology.software_rdma:
        page.text(f"software RDMA, no PCI device: {', '.join(topology.software_rdma)}", hang=2)


_RATE = re.compile(r"\((\d+X) (\w+)\)")


def _rate(port: RdmaPort) -> str:
    """Return a port's rate as `400 Gb/s NDR`, with its width where that is not the usual 4X."""
    if isinstance(port.rate_gbit_s, Missing) or isinstance(port.rate_text, Missing):
        return text_of(port.rate_text)
    m = _RATE.search(port.rate_text)
    kind = "" if m is None else f" {m[2]}" if m[1] == "4X" else f" {m[1]} {m[2]}"
    return f"{port.rate_gbit_s:g} Gb/s{kind}"


def p2p(report: Report, page: Page) -> None:
    """GPUDirect P2P: pairs grouped by verdict and reasons."""
    if report.gpudirect.p2p:
        page.heading("GPUDirect P2P")
        _grouped(report.gpudirect.p2p, lambda v: f"{v.verdict.value}, {v.road}", page)


def rdma(report: Report, page: Page) -> None:
    """GPUDirect RDMA: pairs grouped by verdict and reasons."""
    if report.gpudirect.rdma:
        page.heading("GPUDirect RDMA")
        _grouped(
            report.gpudirect.rdma,
            lambda v: f"{v.verdict.value} (peer-memory module {v.peermem.value}, DMA-BUF {v.dma_buf.value})",
            page,
        )


def _grouped(verdicts: Sequence[V], title: Callable[[V], str], page: Page) -> None:
    """Add the verdicts, those with the same verdict and the same reasons together; the evidence is the first's."""
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[V]] = {}
    for v in verdicts:
        groups.setdefault((title(v), tuple((r.effect, _general(r.text, v)) for r in v.reasons)), []).append(v)
    for (name, steps), members in groups.items():
        first = members[0]
        page.text(f"{name}: {_pairs(members)}", style=VERDICT_STYLES[Verdict(first.verdict)], hang=4)
        for r, (_, text) in zip(first.reasons, steps, strict=True):
            page.text(f"- {text if len(members) > 1 else r.text}", indent=4, hang=2)
            for e in r.evidence[:2]:
                page.text(evidence_line(e), indent=8, hang=2, style="dim")
            if r.fix:
                page.text(f"fix: {r.fix}", indent=6, hang=5, style="green")


def _general(text: str, v: V) -> str:
    """Return a reason without the labels of its pair, so that equal reasons of many pairs read once."""
    second = "the other GPU" if v.to_label.startswith("GPU") else "the NIC"
    return re.sub(rf"\b{re.escape(v.from_label)}\b", "the GPU", re.sub(rf"\b{re.escape(v.to_label)}\b", second, text))


def _pairs(members: Sequence[V]) -> str:
    """Name pairs: all of them where few, else the first and how many."""
    names, way = [f"{v.from_label}->{v.to_label}" for v in members], ""
    both = {(v.from_label, v.to_label) for v in members}
    if all((b, a) in both for a, b in both):
        names, way = [f"{a}-{b}" for a, b in dict.fromkeys(tuple(sorted(p)) for p in sorted(both))], ", both ways"
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown}, ... ({plural(len(names), 'pair')}{way})"
