"""All nodes of a job in one report: what they have in common, who is odd, who runs where, who did not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from topocheck.compare.types import Fleet
from topocheck.model.version import SCHEMA_VERSION
from topocheck.placement.ranks import Problem, RankPlace
from topocheck.render.fabric import joined_tree
from topocheck.render.fleet import fleet_text
from topocheck.render.page import Page, Style
from topocheck.render.quoting import json_text, markdown_bold, markdown_code, markdown_item, markdown_row, markdown_text
from topocheck.render.words import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topocheck.checks.fabric.run import JudgedFabric

MAX_RANKS = 64
"""Ranks listed in the text; the JSON holds all of them."""


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a job's nodes; `topocheck report --cluster --format json` prints it.

    Attributes:
        ranks_authenticated_by: munge, or where else the secret of the job came from; `none` where nothing shows that
            the ranks belong to it.
        ranks: how many answered.
        fleet: the nodes beside each other.
        places: where each rank runs; problems what is wrong in it.
        differing_settings: NCCL settings that differ between ranks: (name, `value: ranks`...).
        unresponsive: node or rank that did not answer -> what it did last.
    """

    schema_version: str = SCHEMA_VERSION
    topocheck_version: str = ""
    launcher: str = ""
    ranks_authenticated_by: str = ""
    ranks: int = 0
    fleet: Fleet
    places: tuple[RankPlace, ...] = ()
    problems: tuple[Problem, ...] = ()
    differing_settings: tuple[tuple[str, tuple[str, ...]], ...] = ()
    unresponsive: dict[str, str] = {}


def cluster_text(report: ClusterReport, style: Style, fabric: JudgedFabric | None = None) -> str:
    """Return the report for a person, with the fabric between the nodes where a dump of it was given."""
    page = Page(style)
    if report.unresponsive:
        page.heading("Did not answer")
        for who, what in report.unresponsive.items():
            page.text(f"{who}: {what}", style="bold red", hang=4)
    page.heading("Where the ranks run")
    page.table(
        ("rank", "local", "node", "GPU", "its NUMA", "CPUs allowed", "NUMA", "NIC"),
        [
            (
                _n(p.rank), _n(p.local_rank), p.node, p.gpu_label or "-", _n(p.gpu_node), p.cpus or "?",
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
        page.text(f"{mark}  rank {who}: {p.text}", style="yellow" if p.state == "warn" else "cyan", hang=6)
        if p.fix:
            page.text(f"fix: {p.fix}", indent=8, style="dim", hang=2)
    if report.problems:
        page.text("topocheck placement suggests an order and a binding", style="dim")
    if report.differing_settings:
        page.heading("NCCL settings that differ between ranks")
        for name, values in report.differing_settings:
            page.text(f"{name}  {'; '.join(values)}", style="yellow", hang=4)
    return fleet_text(report.fleet, style, unresponsive=len(report.unresponsive), fabric=fabric) + "\n" + page.render()


def _n(value: int | None) -> str:
    return "-" if value is None else str(value)


def cluster_json(report: ClusterReport, fabric: JudgedFabric | None = None) -> str:
    """Return the report as JSON."""
    if fabric is None:
        return json_text(report)
    return json_text({**msgspec.to_builtins(report), "fabric": joined_tree(fabric)})


def cluster_markdown(report: ClusterReport, fabric: JudgedFabric | None = None) -> str:
    """Return the report in Markdown: groups, odd nodes, findings, ranks."""
    f = report.fleet
    text = markdown_text
    lines = [f"## {plural(f.nodes, 'node')}, {plural(report.ranks, 'rank')} ({text(report.launcher)})", ""]
    lines += [f"- {markdown_bold(who)} did not answer: {text(what)}" for who, what in report.unresponsive.items()]
    for kind in f.hardware_types:
        groups = "; ".join(f"{g.fingerprint[:8]} {_some(g.nodes)}" for g in kind.groups)
        lines.append(markdown_item(f"{kind.name}: {groups}"))
    for o in f.outliers:
        lines += ["", f"### {text(o.name)}", ""]
        told = [f"{d.section} {d.device}: {d.field} {d.value}, usual is {d.majority}" for d in o.differences]
        lines += [markdown_item(x) for x in told]
    if f.job:
        lines += ["", "### In a job over these nodes", ""]
        lines += [f"- {markdown_bold(p.state)} {text(f'{p.title}: {p.consequence} (fix: {p.fix})')}" for p in f.job]
    if f.findings:
        lines += ["", "### Findings", ""]
        lines += [
            f"- {markdown_bold(x.state)} {markdown_code(x.id)} {text(f'{x.title} ({_some(x.nodes)})')}"
            for x in f.findings
            if x.state != "note"
        ]
    if fabric is not None:
        lines += ["", "### Fabric", ""]
        lines += [
            f"- {markdown_bold(x.state)} {markdown_code(x.id)} {text(f'{x.subject}: {x.title}')}"
            for x in fabric.result.findings
        ]
    lines += ["", "### Ranks", "", "| rank | node | GPU | CPUs | NIC |", "| --- | --- | --- | --- | --- |"]
    lines += [markdown_row((_n(p.rank), p.node, p.gpu_label, p.cpus, ", ".join(p.nics))) for p in report.places]
    more = [f"{p.state}: ranks {', '.join(map(str, p.ranks))}: {p.text}" for p in report.problems]
    more += [f"{name} differs: {'; '.join(values)}" for name, values in report.differing_settings]
    lines += ["", *(markdown_item(x) for x in more)] if more else []
    return "\n".join(lines) + "\n"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
