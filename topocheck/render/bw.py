"""What was measured, for a person: matrices, tables, a small plot per sweep, what it amounts to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from topocheck.model.base import State
from topocheck.model.measurement import unsteady
from topocheck.model.units import size_text
from topocheck.render.bw_curves import UNSTEADY_TEXT, collectives, fit_lines, sweeps
from topocheck.render.bw_result import result
from topocheck.render.page import Page, Span, Style
from topocheck.render.words import STATE_MARKS, STATE_STYLES, plural

if TYPE_CHECKING:
    from topocheck.model.measurement import Assessment, BandwidthReport, DeviceState, Measurement


def bw_text(report: BandwidthReport, style: Style, *, verbose: bool = False, advice: bool = False) -> str:
    """Return the report of `topocheck bw` as text.

    Args:
        report: what was measured, and what it amounts to.
        style: the layout.
        verbose: also the theory of each row, the cost models and notes.
        advice: also advice on fusion buffers, which somebody asked for.
    """
    page = Page(style)
    paint(report, page, verbose=verbose, advice=advice)
    return page.render()


def paint(report: BandwidthReport, page: Page, *, verbose: bool = False, advice: bool = False) -> None:
    """Add what was measured to a page: the result and its findings first, then how it was measured, then tables."""
    by_id = {a.measurement: a for a in report.assessments}
    run = report.run
    result(page, report, by_id)
    _findings(page, report, verbose=verbose)
    page.heading("Run")
    facts = {**run.machine, **run.software}
    if facts:
        page.text(", ".join(f"{k} {v}" for k, v in facts.items() if k != "nccl_settings"), style="dim")
    if "nccl_settings" in run.machine:
        page.text(f"NCCL settings: {run.machine['nccl_settings']}", style="dim")
    page.text(
        f"{plural(len(run.measurements), 'row')} in {run.wall_s:.1f} s; GB/s are 10^9 bytes per second", style="dim"
    )
    for d in run.device_states:
        page.text(_state_text(d, report), style="dim")
    if run.interrupted:
        page.text("Interrupted: what was measured until then is below.", style="yellow")
    _host(page, run.measurements, by_id)
    _matrices(page, run.measurements, by_id)
    _others(page, run.measurements)
    sweeps(page, run.measurements)
    collectives(page, run.measurements)
    if any(unsteady(m) for m in run.measurements):
        page.text(UNSTEADY_TEXT, style="dim")
    for fit in report.fits if verbose else ():
        fit_lines(page, fit)
    if report.advice and (verbose or advice):
        page.heading("Fusion buffers")
        for line in report.advice:
            page.text(line, hang=2)
    _rest(page, report, verbose=verbose)


def _state_text(d: DeviceState, report: BandwidthReport) -> str:
    """Return what NVML saw of a GPU during the run."""
    names = {m.from_: m.from_label for m in report.run.measurements} | {
        m.to: m.to_label for m in report.run.measurements
    }
    words = [names.get(d.address) or d.address]
    if d.clock_sm_max_mhz is not None:
        words.append(f"SM clock {d.clock_sm_min_mhz} to {d.clock_sm_max_mhz} MHz")
    if d.pcie_gen is not None:
        words.append(f"PCIe gen {d.pcie_gen} x{d.pcie_width}")
    if d.temperature_max_c is not None:
        words.append(f"up to {d.temperature_max_c} C")
    if d.replays:
        words.append(f"{d.replays} PCIe replays")
    words += d.event_reasons
    if len(words) == 1:
        words.append("no answer from NVML" if not d.samples else "nothing of note")
    return ", ".join(words) + f" (sampled {d.samples} times)"


def _cell(m: Measurement | None, by_id: dict[str, Assessment]) -> Span:
    """Return a rate, coloured by what it amounts to."""
    if m is None:
        return ("–", "dim")
    text = f"{m.median:.1f}"
    if m.verified is False:
        return (text + " WRONG", "bold red")
    a = by_id.get(m.id)
    mark = "*" if unsteady(m) else ""
    if a is None or a.percent_of_theoretical is None:
        return (text + mark, "")
    style = STATE_STYLES.get(a.state, "") if a.state is not State.NOT_APPLICABLE else ""
    return (f"{text} {a.percent_of_theoretical:.0f}%{mark}", style)


def _host(page: Page, rows: Iterable[Measurement], by_id: dict[str, Assessment]) -> None:
    found: dict[tuple[str, str, int], dict[str, Measurement]] = {}
    for m in rows:
        if m.kind in ("h2d", "d2h", "host_both"):
            gpu = m.to_label if m.from_ == "host" else m.from_label
            far = "" if m.far_node is None else f", NUMA node {m.far_node}"
            how = m.engine + (", pageable" if m.pageable else far)
            found.setdefault((gpu, how, m.size_bytes), {})[m.kind] = m
    found = {k: c for k, c in found.items() if len(c) > 1 or k[2] == max(x[2] for x in found if x[:2] == k[:2])}
    if not found:
        return
    page.heading("Host and GPU, GB/s (share of the link)")
    page.table(
        ("", "size", "engine", "host to GPU", "GPU to host", "both at once"),
        [
            (gpu, size_text(size), how, *(_cell(c.get(k), by_id) for k in ("h2d", "d2h", "host_both")))
            for (gpu, how, size), c in found.items()
        ],
    )
    for place in dict.fromkeys(m.placement for c in found.values() for m in c.values() if m.placement):
        page.text(f"host pages: {place}", style="dim")


class PairMatrix(msgspec.Struct, frozen=True):
    """The rates of all pairs of GPUs that were measured in one way, by the labels of both."""

    title: str
    cells: dict[tuple[str, str], Measurement]

    @property
    def sources(self) -> list[str]:
        """The rows."""
        return list(dict.fromkeys(a for a, _ in self.cells))

    @property
    def targets(self) -> list[str]:
        """The columns."""
        return list(dict.fromkeys([*self.sources, *(b for _, b in self.cells)]))


def pair_matrices(rows: Sequence[Measurement]) -> Iterator[PairMatrix]:
    """Yield the matrices of pairs, each at the size that most pairs were measured at."""
    wanted: list[tuple[str, Callable[[Measurement], bool]]] = [
        ("push (the source copies)", lambda m: m.kind == "p2p" and m.issuer == "source" and m.peer_access is not False),
        ("pull (the destination copies)", lambda m: m.kind == "p2p" and m.issuer == "destination"),
        ("both directions, sum", lambda m: m.kind == "p2p_both"),
        ("staged through the host, no peer access", lambda m: m.kind == "p2p" and m.peer_access is False),
    ]
    for title, fits in wanted:
        for engine in ("driver", "torch"):
            chosen = [m for m in rows if fits(m) and m.engine == engine]
            # The size that most pairs were measured at, the largest of these; the others are a sweep.
            sizes = [m.size_bytes for m in chosen]
            size = max(sizes, default=0, key=lambda s: (sizes.count(s), s))
            if size:
                cells = {(m.from_label, m.to_label): m for m in chosen if m.size_bytes == size}
                yield PairMatrix(f"GPU to GPU, {title}, {size_text(size)}, {engine}, GB/s", cells)


def _matrices(page: Page, rows: tuple[Measurement, ...], by_id: dict[str, Assessment]) -> None:
    for m in pair_matrices(rows):
        page.heading(m.title)
        lines: list[tuple[Span | str, ...]] = [
            (a, *(_cell(m.cells.get((a, b)), by_id) for b in m.targets)) for a in m.sources
        ]
        page.table(("from \\ to", *m.targets), lines)
    gains = _gains(rows)
    if gains:
        page.text(f"gain of peer access: {gains}")
    latency = [m for m in rows if m.kind in ("latency", "latency_host")]
    if latency:
        page.heading("Latency of a 16-byte copy, us")
        page.table(
            ("from", "to", "peer access", "seen by", "median", "least"),
            [
                (
                    m.from_label,
                    m.to_label,
                    {True: "yes", False: "no", None: ""}[m.peer_access],
                    "device" if m.kind == "latency" else "program",
                    f"{m.median:.2f}{'*' if unsteady(m) else ''}",
                    f"{m.min:.2f}",
                )
                for m in latency
            ],
        )


def _gains(rows: Iterable[Measurement]) -> str:
    rows = list(rows)
    staged = {(m.from_, m.to, m.size_bytes): m for m in rows if m.kind == "p2p" and m.peer_access is False}
    out = []
    for m in rows:
        other = staged.get((m.from_, m.to, m.size_bytes))
        if m.kind == "p2p" and m.peer_access and m.issuer == "source" and m.engine == "driver" and other:
            out.append(
                f"{m.from_label} to {m.to_label} {m.median / other.median:.1f} times ({m.median:.0f} against "
                f"{other.median:.0f} GB/s)"
            )
    return ", ".join(out)


def _others(page: Page, rows: Iterable[Measurement]) -> None:
    names = {
        "local": "within a GPU (bytes moved once)",
        "host_memory": "within the host's memory",
        "h2d_all": "host to all GPUs at once, sum",
        "d2h_all": "all GPUs to host at once, sum",
        "p2p_round": "all pairs of a round at once, sum",
    }
    chosen = [m for m in rows if m.kind in names]
    if chosen:
        page.heading("Other copies, GB/s")
        page.table(
            ("what", "where", "size", "median", "least", "most"),
            [
                (
                    names[m.kind],
                    m.from_label,
                    size_text(m.size_bytes),
                    f"{m.median:.1f}{'*' if unsteady(m) else ''}",
                    f"{m.min:.1f}",
                    f"{m.max:.1f}",
                )
                for m in chosen
            ],
        )


def _findings(page: Page, report: BandwidthReport, *, verbose: bool) -> None:
    worst = [f for f in report.findings if verbose or f.state is not State.NOTE]
    if worst:
        page.heading("Findings")
    for f in worst:
        page.text(f"{STATE_MARKS[f.state]} {f.id}: {f.title}", style=STATE_STYLES[f.state], hang=4)
        if f.fix:
            page.text(f"fix: {f.fix}", indent=6, hang=2)


def _rest(page: Page, report: BandwidthReport, *, verbose: bool) -> None:
    """Add the theory of each row where it was asked for, and the notes."""
    notes = [f for f in report.findings if not verbose and f.state is State.NOTE]
    if verbose:
        names = {m.id: f"{m.kind} {m.from_label} {m.to_label}".strip() for m in report.run.measurements}
        rated = [a for a in report.assessments if a.theoretical_gb_s is not None]
        if rated:
            page.heading("Measured vs. theoretical")
        for a in rated:
            page.text(f"{names.get(a.measurement, a.measurement)}: {a.text}", hang=4)
    if notes:
        page.heading("Notes")
        for f in notes:
            page.text(f.title, hang=2, style="dim")
