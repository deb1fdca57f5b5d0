"""All nodes of a job in one report: what they have in common, who is odd, who runs where, who did not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from topocheck.compare.types import Fleet
from topocheck.model.document import SCHEMA_VERSION
from topocheck.placement.ranks import Problem, RankPlace
from topocheck.render.fleet import fleet_text
from topocheck.render.page import Page, Style, clean
from topocheck.render.words import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_RANKS = 64
"""Ranks listed in the text; the JSON holds all of them."""


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a job's nodes; `topocheck report --cluster --format json` prints it.

    Attributes:
        ranks: how many answered.
        fleet: the nodes beside each other.
        places: where each rank runs; problems what is wrong in it.
        mixed_settings: NCCL settings that differ between ranks: (name, `value: ranks`...).
        silent: node or rank that did not answer -> what it did last.
    """

    schema_version: str = SCHEMA_VERSION
    topocheck_version: str = ""
    launcher: str = ""
    ranks: int = 0
    fleet: Fleet
    places: tuple[RankPlace, ...] = ()
    problems: tuple[Problem, ...] = ()
    mixed_settings: tuple[tuple[str, tuple[str, ...]], ...] = ()
    silent: dict[str, str] = {}


def cluster_text(report: ClusterReport, style: Style) -> str:
    """Return the report for a person."""
    page = Page(style)
    if report.silent:
        page.heading("Did not answer")
        for who, what in report.silent.items():
            page.text(clean(f"{who}: {what}"), style="bold red", hang=4)
    page.heading("Where the ranks run")
    page.table(
        ("rank", "local", "node", "GPU", "its NUMA", "CPUs allowed", "NUMA", "NIC"),
        [
            (
                _n(p.rank), _n(p.local_rank), clean(p.node), p.gpu_label or "-", _n(p.gpu_node), p.cpus or "?",
                ",".join(map(str, p.numa_nodes)) or "?", ",".join(p.nics) or "-",
            )
            for p in report.places[:MAX_RANKS]
        ],
        right=frozenset((0, 1)),
    )  # fmt: skip
    if len(report.places) > MAX_RANKS:
        page.text(f"and {plural(len(report.places) - MAX_RANKS, 'more rank')} (JSON)", style="dim")
    for p in report.problems:
        who = ", ".join(map(str, p.ranks[:16])) + (f" and {len(p.ranks) - 16} more" if len(p.ranks) > 16 else "")
        mark = "WARN" if p.state == "warn" else p.state
        page.text(clean(f"{mark}  rank {who}: {p.text}"), style="yellow" if p.state == "warn" else "cyan", hang=6)
        if p.fix:
            page.text(clean(f"fix: {p.fix}"), indent=8, style="dim", hang=5)
    if report.problems:
        page.text("topocheck placement suggests an order and a binding", style="dim")
    if report.mixed_settings:
        page.heading("NCCL settings that differ between ranks")
        for name, values in report.mixed_settings:
            page.text(clean(f"{name}  {'; '.join(values)}"), style="yellow", hang=4)
    return fleet_text(report.fleet, style, silent=len(report.silent)) + "\n" + page.render()


def _n(value: int | None) -> str:
    return "-" if value is None else str(value)


def cluster_json(report: ClusterReport) -> str:
    """Return the report as JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def cluster_markdown(report: ClusterReport) -> str:
    """Return the report in Markdown: groups, odd nodes, findings, ranks."""
    f = report.fleet
    lines = [f"## {plural(f.nodes, 'node')}, {plural(report.ranks, 'rank')} ({report.launcher})", ""]
    lines += [f"- **{who}** did not answer: {what}" for who, what in report.silent.items()]
    for kind in f.kinds:
        lines += [f"- {kind.name}: " + "; ".join(f"{g.fingerprint[:8]} {_some(g.nodes)}" for g in kind.groups)]
    for o in f.odd:
        lines += ["", f"### {o.name}", ""]
        lines += [f"- {d.section} {d.device}: {d.field} {d.value}, usual is {d.usual}" for d in o.differences]
    if f.findings:
        lines += ["", "### Findings", ""]
        lines += [f"- **{x.state}** `{x.id}` {x.title} ({_some(x.nodes)})" for x in f.findings if x.state != "note"]
    lines += ["", "### Ranks", "", "| rank | node | GPU | CPUs | NIC |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {_n(p.rank)} | {p.node} | {p.gpu_label} | {p.cpus} | {', '.join(p.nics)} |" for p in report.places]
    lines += [f"- {p.state}: ranks {', '.join(map(str, p.ranks))}: {p.text}" for p in report.problems]
    lines += [f"- {name} differs: {'; '.join(values)}" for name, values in report.mixed_settings]
    return clean("\n".join(lines)) + "\n"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
