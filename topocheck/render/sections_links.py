"""Sections of the text report about links: matrix, PCIe, NVLink, NICs, GPUDirect."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from topocheck.gpudirect.types import P2pVerdict, RdmaVerdict
from topocheck.model.base import Missing, Reason, State, Verdict, known
from topocheck.model.net import RdmaPort
from topocheck.picture.pcie import network_link
from topocheck.picture.scene import nic_product
from topocheck.picture.words import rate
from topocheck.render.page import Page, Span
from topocheck.render.sections_devices import device_marks, drawn, mark
from topocheck.render.sections_host import text_of
from topocheck.render.words import VERDICT_STYLES, evidence_line, follows, plural, ranges
from topocheck.topology.nvlink import link_rate
from topocheck.topology.types import HopKind

if TYPE_CHECKING:
    from topocheck.pipeline import Report
    from topocheck.topology.types import Gpu, Nic

V = TypeVar("V", P2pVerdict, RdmaVerdict)


_CLASSES = {
    "PIX": "same switch",
    "PXB": "several switches",
    "PHB": "same host bridge",
    "NODE": "same NUMA node",
    "SYS": "other NUMA node",
}
"""Meaning of nvidia-smi's words, as its own legend has them."""


def matrix(report: Report, page: Page) -> None:
    """The matrix of `nvidia-smi topo -m`, split into blocks of columns where the page is narrow."""
    _matrix(report, page, in_short=False)


def few_pairs(report: Report, page: Page, *, folded: bool = False) -> None:
    """As `matrix`; where that takes several blocks and all pairs of GPUs are equal, the GPUs' columns are one line.

    Args:
        report: what was found.
        page: where it is added.
        folded: NICs that take a block of their own are left out; the nearest of each GPU are among the devices.
    """
    if len(report.topology.gpus) + len(report.topology.nics) < 2:
        return  # one device has no pair
    _matrix(report, page, in_short=True, folded=folded)


def _matrix(report: Report, page: Page, *, in_short: bool, folded: bool = False) -> None:
    topology = report.topology
    if not topology.gpus:
        return
    marks = device_marks(report, drawn(report))
    cells = {(p.from_, p.to): _class(p.class_) for p in topology.paths}
    # By position, not by address: two RDMA devices may be of one PCI function.
    of_gpus = [(g.address, g.label) for g in topology.gpus]
    columns = of_gpus + [(n.address, f"NIC{i}") for i, n in enumerate(topology.nics)]
    blocks = _blocks(report, columns, cells, page.style.width)
    among = {cells.get((a, b), "?") for a, _ in of_gpus for b, _ in of_gpus if a != b}
    only = next(iter(among)) if in_short and len(blocks) > 1 and topology.nics and len(among) == 1 else ""
    if only:
        blocks = _blocks(report, columns[len(of_gpus) :], cells, page.style.width)
        count = len(of_gpus) * (len(of_gpus) - 1) // 2
        page.heading(f"Matrix (as nvidia-smi topo -m); {only} between all {plural(count, 'pair')} of GPUs")
    else:
        page.heading("Matrix (as nvidia-smi topo -m)")
    if folded and len(blocks) > 1 and topology.nics:
        columns = of_gpus
        blocks = [] if only else _blocks(report, of_gpus, cells, page.style.width)
    names = max(len(g.label) for g in topology.gpus) + 1
    for block in blocks:
        head: list[Span] = [("  " + " " * names, "")]
        for address, label, wide in block:
            sign, style = _sign(marks.get(address))
            head.append((f"{sign + label:>{wide}}", style or "dim"))
        page.line(*head)
        for g in topology.gpus:
            sign, style = _sign(marks.get(g.address))
            row = "".join(
                f"{'X' if g.address == a else cells.get((g.address, a), '?'):>{wide}}" for a, _, wide in block
            )
            page.line((f"  {g.label + sign:<{names}}", style), row)
    shown = {cells.get((g.address, a), "?") for g in topology.gpus for a, _ in columns if a != g.address}
    if columns == of_gpus and topology.nics:
        page.text("--section matrix has the NICs; the nearest of each GPU are below", style="dim", hang=2)
    _matrix_legend(report, shown, page, with_nics=len(columns) > len(of_gpus))
    if not in_short:
        _marked(report, marks, page)


def _marked(report: Report, marks: dict[str, Span], page: Page) -> None:
    """What the signs of a matrix mean; on the first screen the devices below it say it."""
    ends: list[Gpu | Nic] = [*report.topology.gpus, *report.topology.nics]
    marked: dict[str, list[str]] = {}
    for d in ends:
        if m := marks.get(d.address, ("", ""))[0]:
            marked.setdefault(m, []).append(d.label)
    faulty = [f"{ranges(labels)} {m}" for m, labels in marked.items()]
    if faulty:
        more = f"; and {len(faulty) - 8} more" if len(faulty) > 8 else ""
        page.text("; ".join(faulty[:8]) + more, style="yellow", hang=2)


def _blocks(
    report: Report, columns: Sequence[tuple[str, str]], cells: dict[tuple[str, str], str], width: int
) -> list[list[tuple[str, str, int]]]:
    """Return the columns of a matrix as address, label and width, in blocks that fit a page."""
    gpus = report.topology.gpus
    room = width - 2 - max(len(g.label) for g in gpus) - 1
    blocks: list[list[tuple[str, str, int]]] = []
    # One width for columns of equal kind, so that they stay aligned; longer labels (NIC10) take more.
    usual = max((len(cells.get((g.address, a), "?")) for g in gpus for a, _ in columns if a != g.address), default=1)
    for address, label in columns:
        wide = max(usual, len(label)) + 1
        if not blocks or sum(w for *_, w in blocks[-1]) + wide > room:
            blocks.append([])
        blocks[-1].append((address, label, wide))
    return blocks


def _matrix_legend(report: Report, shown: set[str], page: Page, *, with_nics: bool) -> None:
    legend = [f"{c} {words}" for c, words in _CLASSES.items() if c in shown]
    if any(c.startswith("NV") for c in shown):
        legend.insert(0, "NV# NVLinks")
    if "?" in shown:
        legend.append("? not known")
    if with_nics:
        legend.append(_columns(report.topology.nics))
    if legend:
        page.text("; ".join(legend), style="dim", hang=2)


def _sign(mark_: Span | None) -> Span:
    """Return the sign alone of a device's mark; `!` for a finding about it, nothing for what needs no attention."""
    if mark_ is None or not mark_[0] or mark_[0][0] in "–~◌":
        return "", ""
    return (mark_[0][0] if mark_[0][0] in "▼✕?" else "!"), mark_[1]


def _columns(nics: Sequence[Nic]) -> str:
    """Return which NIC is which column: `NIC0-NIC7 mlx5_0-mlx5_7; NIC8 bond0`."""
    runs: list[list[int]] = []
    for i, n in enumerate(nics):
        if runs and follows(nics[runs[-1][-1]].label, n.label):
            runs[-1].append(i)
        else:
            runs.append([i])
    return "; ".join(f"{ranges(f'NIC{i}' for i in run)} {ranges(nics[i].label for i in run)}" for run in runs)


def _class(value: str | Missing) -> str:
    return value if isinstance(value, str) else "?"


def pcie(report: Report, page: Page) -> None:
    """Each GPU's and NIC's driver, and its PCIe link as its own registers have it."""
    topology = report.topology
    devices: list[Gpu | Nic] = [*topology.gpus, *topology.accelerators, *topology.nics]
    if not devices:
        return
    page.heading("PCIe registers (GT/s and lanes of the device's own end)")
    rows: list[Sequence[Span | str]] = []
    for x in devices:
        d = x.pci
        if d is None:
            rows.append((x.label, x.address, "-", "-", "not on the PCI tree"))
            continue
        now = _link(d.current_speed_gt_s, d.current_width_lanes)
        most = _link(d.max_speed_gt_s, d.max_width_lanes)
        rows.append((x.label, x.address, now, most, text_of(d.driver)))
    page.table(("", "address", "GT/s now", "GT/s max", "driver"), rows)


def _link(speed_gt_s: float | Missing, width_lanes: int | Missing) -> str:
    """Return `16 x8`, or the one reason why neither is known."""
    if isinstance(speed_gt_s, Missing) and isinstance(width_lanes, Missing):
        return text_of(speed_gt_s)
    return f"{text_of(speed_gt_s)} x{text_of(width_lanes)}"


def nvlink(report: Report, page: Page) -> None:
    """NVLinks and C2C of the GPUs, equal ones in one row."""
    topology = report.topology
    direct = {a: p.hops[0] for a, p in topology.host_paths.items() if p.hops and p.hops[0].kind is not HopKind.PCIE}
    with_links = [g for g in topology.gpus if g.nvml and g.nvml.nvlinks]
    rows: dict[tuple[str, ...], list[str]] = {}
    for g in topology.gpus if with_links else ():
        rows.setdefault(_nvlink_row(g), []).append(g.label)
    c2c: dict[tuple[str, str], list[str]] = {}
    for g in topology.gpus:
        if g.address in direct:
            hop = direct[g.address]
            c2c.setdefault((hop.text, gb_s(hop.gb_s)), []).append(g.label)
    if not rows and not c2c:
        return
    what = "NVLink and C2C" if rows and c2c else "NVLink" if rows else "C2C"
    page.heading(f"{what} (GB/s per direction)")
    head = ("", "links up", "version", "GB/s", "to", "errors", "fabric")
    page.table(head, [(ranges(labels), *row) for row, labels in rows.items()])
    page.table(("", "to the CPU", "GB/s"), [(ranges(labels), *row) for row, labels in c2c.items()])
    kinds = {"mesh": "every pair linked", "partial": "only some pairs linked"}
    for group in topology.nvlink_groups if rows else ():
        if group.kind != "switch":
            names = ranges(g.label for g in topology.gpus if g.address in group.gpus)
            page.text(f"{names}: {kinds[group.kind]}", hang=2)


def _nvlink_row(g: Gpu) -> tuple[str, ...]:
    if g.nvml is None or not g.on_bus:
        return ("off the bus" if not g.on_bus else "not known", "-", "-", "-", "-", "-")
    links = g.nvml.nvlinks
    up = [k for k in links if k.active is True]
    unread = sum(isinstance(k.active, Missing) for k in links)
    errors = sum(sum(k.errors.values()) for k in links)
    return (
        f"{len(up)} of {len(links)}" + (f", {unread} not known" if unread else ""),
        ", ".join(str(v) for v in sorted({k.version for k in up if known(k.version)})) or "-",
        gb_s(link_rate(up)) if up else "-",
        ", ".join(sorted({text_of(k.remote_type) for k in up})) or "-",
        str(errors),
        "-" if _is_unsupported(g.nvml.fabric_state) else text_of(g.nvml.fabric_state),
    )


def _is_unsupported(value: object) -> bool:
    """Tell whether a device has no such thing, as GPUs before Hopper have no state of a fabric."""
    return isinstance(value, Missing) and value.reason is Reason.UNSUPPORTED


def gb_s(value: float | Missing) -> str:
    """Return a rate as `450`, `7.9`; `not known` where it is missing."""
    return "not known" if isinstance(value, Missing) else rate(value).removesuffix(" GB/s")


def nics(report: Report, page: Page) -> None:
    """RDMA devices and ports, equal ones in one row."""
    _nics(report, page, in_short=False)


def few_nics(report: Report, page: Page, *, folded: bool = False) -> None:
    """As `nics`, without the firmware; where `folded`, without the names of network interfaces too."""
    _nics(report, page, in_short=True, folded=folded)


def _nics(report: Report, page: Page, *, in_short: bool, folded: bool = False) -> None:
    topology = report.topology
    if not any((topology.nics, topology.unplaced_nics, topology.software_rdma, topology.switch_functions)):
        return
    page.heading("NICs")
    rows: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    names: dict[str, Span] = {}
    parts = drawn(report)
    bad = [f for f in report.findings if f.state in (State.FAIL, State.WARN)]
    with_findings = {d for f in bad for d in f.devices} if topology.unplaced_nics else set()
    for n in (*topology.nics, *topology.unplaced_nics):
        for port in n.rdma.ports if n.rdma else ():
            assert n.rdma is not None
            if n.address in parts:
                product, link = parts[n.address][0].name, parts[n.address][0].outward
            else:
                product = nic_product(n) or "-"
                link = network_link(n.label, [port], faulty=n.address in with_findings)
            label = n.label if len(n.rdma.ports) == 1 else f"{n.label}/{port.port}"
            key: tuple[str, ...] = (
                product,
                text_of(port.state),
                _rate(port),
                text_of(port.link_layer),
                *(() if in_short else (text_of(n.rdma.firmware),)),
            )
            rows.setdefault(key, []).append((label, " ".join(n.rdma.netdevs)))
            if port.state != "ACTIVE":
                names[label] = mark(link)
    shown: list[Sequence[Span | str]] = []
    for key, ports in rows.items():
        text, style = names.get(ports[0][0], ("", ""))
        state = (f"{text.split()[0]} {key[1]}" if text else key[1], style)
        netdevs = ranges(d for _, d in ports if d) or "-"
        shown.append((ranges(label for label, _ in ports), key[0], state, *key[2:], netdevs))
    firmware = () if in_short else ("firmware",)
    head = ("port", "product", "state", "rate", "layer", *firmware, "netdev")
    page.table(head[:-1] if folded else head, [r[:-1] for r in shown] if folded else shown)
    if topology.unplaced_nics:
        untold = ranges(n.label for n in topology.unplaced_nics)
        page.text(f"PCI address not known, so in no path and no matrix: {untold}", hang=2)
    if topology.switch_functions:
        labels = {n.address: n.label for n in topology.switch_nics}
        listed = ", ".join(labels.get(a, a) for a in topology.switch_functions)
        page.text(f"used to manage the NVSwitches, not for data: {listed}", hang=2)
    if topology.software_rdma:
        page.text(f"software RDMA, no PCI device: {', '.join(topology.software_rdma)}", hang=2)


_RATE = re.compile(r"\(([0-9]+X) (\w+)\)")


def _rate(port: RdmaPort) -> str:
    """Return a port's rate as `400 Gb/s NDR`, with its width where that is not the usual 4X."""
    if isinstance(port.rate_gbit_s, Missing) or isinstance(port.rate_text, Missing):
        return text_of(port.rate_text)
    m = _RATE.search(port.rate_text)
    if m is None or port.link_layer == "Ethernet":
        # The kernel names the rate of each RDMA port as of InfiniBand; EDR and NDR are no words of Ethernet.
        return f"{port.rate_gbit_s:g} Gb/s"
    kind = f" {m[2]}" if m[1] == "4X" else f" {m[1]} {m[2]}"
    return f"{port.rate_gbit_s:g} Gb/s{kind}"


def p2p(report: Report, page: Page) -> None:
    """GPUDirect P2P: pairs grouped by verdict and reasons."""
    if report.gpudirect.p2p:
        page.heading("GPUDirect P2P")
        _grouped(report.gpudirect.p2p, lambda v: f"{v.verdict.value}, {v.link}", page)


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
        steps: tuple[tuple[str, str], ...] = tuple([(r.effect, _general(r.text, v)) for r in v.reasons])
        groups.setdefault((title(v), steps), []).append(v)
    for (name, shown), members in groups.items():
        first = members[0]
        page.text(f"{name}: {_pairs(members)}", style=VERDICT_STYLES[Verdict(first.verdict)], hang=4)
        for r, (_, text) in zip(first.reasons, shown, strict=True):
            page.text(f"- {text if len(members) > 1 else r.text}", indent=4, hang=2)
            for e in r.evidence[:2]:
                page.text(evidence_line(e), indent=8, hang=2, style="dim")
            if r.fix:
                page.text(f"fix: {r.fix}", indent=6, hang=5, style="green")


def _general(text: str, v: V) -> str:
    """Return a reason without the labels of its pair, so that equal reasons of many pairs read once."""
    if v.to_label in text:
        second = "the NIC" if isinstance(v, RdmaVerdict) else "the other GPU"
        text = _word(v.to_label).sub(second, text)
    return _word(v.from_label).sub("the GPU", text) if v.from_label in text else text


@functools.lru_cache(maxsize=1 << 12)
def _word(label: str) -> re.Pattern[str]:
    return re.compile(rf"\b{re.escape(label)}\b")


def _pairs(members: Sequence[V]) -> str:
    """Name pairs: all of them where few, else the first and how many."""
    names, way = [f"{v.from_label}->{v.to_label}" for v in members], ""
    both = {(v.from_label, v.to_label) for v in members}
    if all((b, a) in both for a, b in both):
        names, way = [f"{a}-{b}" for a, b in dict.fromkeys(tuple(sorted(p)) for p in sorted(both))], ", both ways"
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown}, ... ({plural(len(names), 'pair')}{way})"
