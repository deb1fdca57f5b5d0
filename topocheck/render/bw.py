"""What was measured, for a person: matrices, tables, a small plot per sweep, what it amounts to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from topocheck.model.base import State
from topocheck.model.measurement import unsteady
from topocheck.model.units import size_text
from topocheck.render.bw_curves import UNSTEADY_TEXT, collectives, fit_lines, sweeps
from topocheck.render.page import Page, Span, Style, clean
from topocheck.render.words import STATE_MARKS, STATE_STYLES, plural

if TYPE_CHECKING:
    from topocheck.model.measurement import Assessment, BandwidthReport, BaselineComparison, DeviceState, Measurement


def bw_text(report: BandwidthReport, style: Style, *, verbose: bool = False) -> str:
    """Return the report of `topocheck bw` as text."""
    page = Page(style)
    by_id = {a.measurement: a for a in report.assessments}
    run = report.run
    page.heading("Measured")
    facts = {**run.machine, **run.software}
    if facts:
        page.text(clean(", ".join(f"{k} {v}" for k, v in facts.items() if k != "nccl_settings")), style="dim")
    if "nccl_settings" in run.machine:
        page.text(clean(f"NCCL settings: {run.machine['nccl_settings']}"), style="dim")
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
    for fit in report.fits:
        fit_lines(page, fit)
    for line in report.advice:
        page.text(clean(line), hang=2)
    _verdicts(page, report, verbose=verbose)
    return page.render()


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
        words.append("NVML said nothing" if not d.samples else "nothing of note")
    return clean(", ".join(words) + f" ({d.samples} looks during the run)")


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
            suffix = m.id.rpartition(":")[2]
            how = m.engine + (", pageable" if suffix == "pageable" else f", {suffix}" if "node" in suffix else "")
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
        page.text(f"host pages: {clean(place)}", style="dim")


def _matrices(page: Page, rows: tuple[Measurement, ...], by_id: dict[str, Assessment]) -> None:
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
                _matrix(page, f"GPU to GPU, {title}, {size_text(size)}, {engine}, GB/s", chosen, size, by_id)
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


def _matrix(page: Page, title: str, rows: list[Measurement], size: int, by_id: dict[str, Assessment]) -> None:
    cells = {(m.from_label, m.to_label): m for m in rows if m.size_bytes == size}
    sources = list(dict.fromkeys(a for a, _ in cells))
    targets = list(dict.fromkeys([*sources, *(b for _, b in cells)]))
    page.heading(title)
    page.table(("from \\ to", *targets), [(a, *(_cell(cells.get((a, b)), by_id) for b in targets)) for a in sources])


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


def _verdicts(page: Page, report: BandwidthReport, *, verbose: bool) -> None:
    worst = [f for f in report.findings if verbose or f.state is not State.NOTE]
    notes = [f for f in report.findings if not verbose and f.state is State.NOTE]
    if verbose:
        names = {m.id: f"{m.kind} {m.from_label} {m.to_label}".strip() for m in report.run.measurements}
        rated = [a for a in report.assessments if a.theoretical_gb_s is not None]
        if rated:
            page.heading("Beside what the road can carry")
        for a in rated:
            page.text(clean(f"{names.get(a.measurement, a.measurement)}: {a.text}"), hang=4)
    if worst:
        page.heading("Findings")
    for f in worst:
        page.text(f"{STATE_MARKS[f.state]} {f.id}: {clean(f.title)}", style=STATE_STYLES[f.state], hang=4)
        if f.fix:
            page.text(f"fix: {clean(f.fix)}", indent=6, hang=2)
    if notes:
        page.heading("Notes")
        for f in notes:
            page.text(clean(f.title), hang=2, style="dim")
    if not report.run.measurements:
        return
    page.blank()
    if report.baseline is not None:
        page.text(_baseline_text(report.baseline), indent=0)
    if not worst and any(a.state is State.OK for a in report.assessments):
        page.text("Nothing that could be judged is below what it should be.", indent=0)
    elif not worst and report.baseline is None:
        page.text("Nothing here has a theory or a baseline to be judged by.", indent=0)


def _baseline_text(b: BaselineComparison) -> str:
    """Return how many rows were compared and what came of it: also of those that could not be judged."""
    compared = b.kept + b.slower + b.not_judged
    words = [f"{b.kept} no more than {100 * b.tolerance:.3g} % slower"]
    words += [f"{b.slower} slower"] if b.slower else []
    words += [f"{b.not_judged} not judged"] if b.not_judged else []
    text = f"Beside the baseline of {clean(b.taken_at)}: {plural(compared, 'row')} compared"
    text += f": {', '.join(words)}." if compared else "."
    if b.new:
        text += f" {plural(b.new, 'row')} of this run it does not hold."
    if b.absent:
        text += f" {plural(b.absent, 'row')} of it this run did not measure."
    return text
