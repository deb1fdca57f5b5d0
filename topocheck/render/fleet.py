"""What many nodes have in common and in what single ones differ, as text, JSON and CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from topocheck.model.base import State
from topocheck.model.hostlist import compress_hostlist
from topocheck.model.version import SCHEMA_VERSION, __version__
from topocheck.render.differences import fault_line, field_name, field_value, named, not_comparable, related, together
from topocheck.render.fabric import fabric_section, joined_tree
from topocheck.render.page import Page, Style
from topocheck.render.quoting import csv_text, json_text, name_text
from topocheck.render.words import STATE_MARKS, STATE_STYLES, plural

if TYPE_CHECKING:
    from topocheck.checks.fabric.run import JudgedFabric
    from topocheck.compare.types import (
        Change,
        Difference,
        Fleet,
        HardwareType,
        JobProblem,
        NodeFinding,
        NvlinkDomain,
        Outlier,
        SharedFinding,
    )

MAX_NODES = 12
"""Names listed for one finding or group; the JSON holds all of them."""
MAX_LINES = 40
"""Lines of one list; the rest is counted."""


LEFT_OUT = "older reports of the same node"
"""Why a file counts for nothing."""


class FleetDoc(msgspec.Struct, kw_only=True):
    """The document of `topocheck fleet --format json`; `fleet` holds the fields of compare/types.py."""

    schema_version: str
    topocheck_version: str
    fleet: object
    fabric: object | msgspec.UnsetType = msgspec.UNSET


def fleet_json(fleet: Fleet, fabric: JudgedFabric | None = None) -> str:
    """Return the fleet as JSON, and the fabric between its nodes where a dump of it was given."""
    d = FleetDoc(
        schema_version=SCHEMA_VERSION,
        topocheck_version=__version__,
        fleet=fleet,
        fabric=joined_tree(fabric) or msgspec.UNSET,
    )
    return json_text(d)


def fleet_text(
    fleet: Fleet, style: Style, *, all_: bool = False, unresponsive: int = 0, fabric: JudgedFabric | None = None
) -> str:
    """Return the fleet for a person.

    Args:
        fleet: the result.
        style: columns and colours.
        all_: list everything, however long.
        unresponsive: how many nodes or ranks that belong to it did not answer.
        fabric: between the nodes, where a dump of it was given.
    """
    page = Page(style)
    limit = 1 << 30 if all_ else MAX_LINES
    title = f"topocheck {__version__}: {plural(fleet.nodes, 'node')}, {verdict(fleet, unresponsive)}"
    page.text(title, indent=0, style="bold", hang=2)
    if fleet.findings:
        _findings(fleet, page, limit)
    if fleet.job:
        job_section(fleet.job, page, limit)
    odd = {o.name for o in fleet.outliers}
    for kind in fleet.hardware_types[:limit]:
        _kind(kind, odd, page, limit)
    _rest(len(fleet.hardware_types), limit, page)
    if fleet.outliers:
        _odd(fleet, page, limit)
    if fleet.rails:
        _rails(fleet, page)
    if fleet.nvlink_domains:
        _domains(fleet.nvlink_domains, page, limit)
    if fabric is not None:
        fabric_section(fabric, page, limit=limit)
    for title, counts in (("Software", fleet.software), ("NCCL settings", fleet.settings)):
        rows = [(field_name(c.name), (_values(c.values), "yellow" if len(c.values) > 1 else "")) for c in counts]
        if rows:
            page.heading(title)
            page.table((), rows[:limit])
    if fleet.changes is not None:
        changes_section(fleet.changes, page, limit)
    if fleet.unreadable_files:
        page.heading(f"Not read: {plural(len(fleet.unreadable_files), 'file')}")
        for b in fleet.unreadable_files[:limit]:
            page.text(f"{b.file}: {b.reason}", style="magenta", hang=2)
        _rest(len(fleet.unreadable_files), limit, page)
    if fleet.superseded_files:
        page.heading(f"Skipped ({LEFT_OUT}): {plural(len(fleet.superseded_files), 'file')}")
        for file in fleet.superseded_files[:limit]:
            page.text(file, style="dim", hang=2)
        _rest(len(fleet.superseded_files), limit, page)
    return page.render()


def verdict(fleet: Fleet, unresponsive: int = 0) -> str:
    """Return in a few words what the nodes amount to; so many nodes or ranks were `unresponsive`."""
    return ", ".join(text for _, text in verdicts(fleet, unresponsive))


def verdicts(fleet: Fleet, unresponsive: int = 0) -> list[tuple[str, str]]:
    """Return what the nodes amount to as state and words: `dim` for what says neither good nor bad."""
    job = Counter(p.state for p in fleet.job)
    failed = {n for f in fleet.findings if f.state == "fail" for n in f.nodes}
    parts: list[tuple[str, str]] = []
    if unresponsive:
        parts.append(("unknown", f"{unresponsive} did not answer"))
    if len(fleet.hardware_types) > 1:
        parts.append(("dim", f"{len(fleet.hardware_types)} hardware types"))
    if fleet.outliers:
        parts.append(("warn", plural(len(fleet.outliers), "outlier node")))
    mixed = sum(k.nodes for k in fleet.hardware_types if k.no_majority)
    if mixed:
        parts.append(("dim", f"{mixed} in heterogeneous groups" if len(fleet.hardware_types) > 1 else "mixed"))
    if fleet.unreadable_files:
        parts.append(("unknown", plural(len(fleet.unreadable_files), "unreadable file")))
    if not parts and fleet.nodes > 1:
        groups = sum(len(k.groups) for k in fleet.hardware_types)
        parts.append(("ok", "all equal") if groups < 2 else ("dim", f"{groups} groups"))
    if fleet.job:
        states = [f"{job[s]} {s}" for s in ("fail", "warn") if job[s]]
        text = f"differences that matter to a job over them: {', '.join(states)}"
        parts.append(("fail" if job["fail"] else "warn", text))
    parts.append(("fail", f"{len(failed)} with failed checks") if failed else ("ok", "no failed check"))
    return parts


def _kind(kind: HardwareType, odd: set[str], page: Page, limit: int) -> None:
    page.heading(f"{plural(kind.nodes, 'node')}: {kind.name}")
    rows = [(g.fingerprint[:8], plural(len(g.nodes), "node"), _names(g.nodes)) for g in kind.groups[: min(limit, 10)]]
    page.table(("group", "", "nodes"), rows)
    for g in kind.groups[: len(rows)]:
        # The fingerprint leaves out what differs between healthy nodes too: these are odd in such a thing.
        if len(g.nodes) > 1 and (some := [n for n in g.nodes if n in odd]) and len(some) < len(g.nodes):
            page.text(f"of {g.fingerprint[:8]}, different in a rail or a size of memory: {_names(some)}", hang=2)
    if len(kind.groups) > len(rows):
        page.text(f"and {plural(len(kind.groups) - len(rows), 'smaller group')}", style="dim")
    for m in kind.no_majority[:limit]:
        examples = [
            f"{v} on {plural(n, 'node')} ({'such as ' if n > 1 else ''}{e})"
            for (v, n), e in zip(m.values, m.examples, strict=False)
        ]
        page.text(f"mixed: {m.device} {m.field}: {', '.join(examples[:6])}", style="yellow", hang=2)
    _rest(len(kind.no_majority), limit, page)


def _odd(fleet: Fleet, page: Page, limit: int) -> None:
    page.heading("Outlier nodes")
    alike: dict[tuple[tuple[str, ...], ...], list[Outlier]] = {}
    for node in fleet.outliers:
        key = tuple((d.section, d.device, d.field, d.value, d.majority) for d in node.differences)
        alike.setdefault((*key, (node.hardware_type,)), []).append(node)
    shown = 0
    for i, nodes in enumerate(sorted(alike.values(), key=lambda ns: (-len(ns), ns[0].name))):
        node = nodes[0]
        if i == limit:
            page.text(f"and {plural(len(fleet.outliers) - shown, 'more node')} (--all lists them)", style="dim")
            break
        shown += len(nodes)
        if len(nodes) > 1:
            page.text(f"{len(nodes)} nodes: {_names([n.name for n in nodes])}", style="bold", hang=2)
        else:
            page.text(f"{node.name}" + (f"  {node.file}" if node.file else ""), style="bold")
        lines = together(node.differences)
        for fault in lines[:limit]:
            fault_line(fault, page)
        _rest(len(lines), limit, page, indent=4)


def _rails(fleet: Fleet, page: Page) -> None:
    page.heading("Rails")
    page.table(
        ("rail", "NIC", "network", "nodes"),
        [(str(i), f"{r.label} ({r.nic})", r.network, str(r.nodes)) for i, r in enumerate(fleet.rails)],
    )
    page.text(
        "NICs whose networks differ by position; of NICs in one network a fabric dump names the leaf (--fabric FILE)",
        style="dim",
        hang=2,
    )


def _values(values: Sequence[tuple[str, int]]) -> str:
    listed = ", ".join(f"{v} ({n})" for v, n in values[:6])
    return listed if len(values) <= 6 else f"{listed} and {len(values) - 6} more"


def job_section(problems: Sequence[JobProblem], page: Page, limit: int) -> None:
    """Add what differs between the nodes and would hurt a job over them."""
    page.heading("In a job over these nodes")
    for p in problems[:limit]:
        state = State(p.state)
        page.text(f"{STATE_MARKS[state]}  {p.subject}", style=STATE_STYLES[state], hang=6)
        page.text(p.title, indent=8)
        page.text(p.consequence, indent=8)
        page.text(f"fix: {p.fix}", indent=8, style="green", hang=2)
    _rest(len(problems), limit, page)


def _domains(domains: Sequence[NvlinkDomain], page: Page, limit: int) -> None:
    page.heading("NVLink domains")
    rows = [
        (
            d.cluster_uuid or "none",
            "-" if d.clique is None else str(d.clique),
            str(len(d.nodes)),
            "-" if d.clique is None else f"{d.imex} of {len(d.nodes)}",
            compress_hostlist(d.nodes),
        )
        for d in domains
    ]
    page.table(("cluster UUID", "clique", "nodes", "with IMEX", ""), rows[:limit], right=frozenset((1, 2)))
    _rest(len(rows), limit, page)


def _findings(fleet: Fleet, page: Page, limit: int) -> None:
    shown = [f for f in fleet.findings if f.state != "note"]
    notes = len(fleet.findings) - len(shown)
    page.heading("Findings")
    for f in shown[:limit]:
        node_finding(f, page, f"{plural(len(f.nodes), 'node')}: {_names(f.nodes)}")
    _rest(len(shown), limit, page)
    if notes:
        page.text(f"and {plural(notes, 'different note')}: informational, see --json", style="dim")


def node_finding(f: NodeFinding | SharedFinding, page: Page, nodes: str = "") -> None:
    """Add a finding of a node, or of the `nodes` that are named, with its fix."""
    state = State(f.state)
    page.text(f"{STATE_MARKS[state]}  {f.id}  {f.subject}", style=STATE_STYLES[state], hang=6)
    page.text(f.title, indent=8)
    if nodes:
        page.text(nodes, indent=8, style="dim", hang=2)
    if f.fix:
        page.text(f"fix: {f.fix}", indent=8, style="green", hang=2)


_CAME_OR_WENT = {"missing": "is gone", "extra": "is new"}
"""What a device says that only one of two looks has."""


def changes_section(changes: Sequence[Change], page: Page, limit: int) -> None:
    """Add what changed on each node."""
    page.heading("Changed since the baseline")
    if not changes:
        page.text("nothing")
    for c in changes[:limit]:
        page.text(f"{c.name}" + ("" if c.what == "changed" else f": {c.what}"), style="bold")
        for d in c.differences[:limit]:
            how = _CAME_OR_WENT.get(d.value, f"{named(d.field)}was {d.majority}, is {d.value}")
            page.text(f"{d.section}  {d.device}: {how}", indent=4, hang=2)
        _rest(len(c.differences), limit, page, indent=4)
    _rest(len(changes), limit, page)


def diff_text(
    differences: Sequence[Difference],
    mine: str,
    reference: str,
    style: Style,
    job: Sequence[JobProblem] = (),
    worse: Sequence[NodeFinding] = (),
) -> str:
    """Return the differences between two nodes, or two reports of one, for a person.

    Args:
        differences: what differs.
        mine: name of the second.
        reference: name of the first.
        style: columns and colours.
        job: what would hurt a job over both.
        worse: findings that only the second has.
    """
    page = Page(style)
    paint_differences(differences, mine, reference, page, job, worse)
    return page.render()


def paint_differences(
    differences: Sequence[Difference],
    mine: str,
    reference: str,
    page: Page,
    job: Sequence[JobProblem] = (),
    worse: Sequence[NodeFinding] = (),
) -> None:
    """Add the differences between two nodes to a page: what is wrong and how to fix it first."""
    mine, reference = name_text(mine), name_text(reference)
    if not differences:
        page.line(
            f"No difference between {reference} and {mine}: hardware, topology, firmware, driver, software, settings."
        )
        if job:
            job_section(job, page, MAX_LINES)
        return
    real = [d for d in differences if d.comparable]
    number = len(together(real))
    page.line((f"{plural(number, 'difference')} between {reference} (first) and {mine} (second)", "bold"))
    if worse:
        page.heading(f"Findings of {mine} alone")
        for found in worse[:MAX_LINES]:
            node_finding(found, page)
        _rest(len(worse), MAX_LINES, page)
    if job:
        job_section(job, page, MAX_LINES)
    section = ""
    for f in together(real):
        d = f.difference
        if d.section != section:
            section = d.section
            page.heading(section)
        how = _CAME_OR_WENT.get(d.value) or (
            f"{named(d.field)}{field_value(d.field, d.majority)} -> {field_value(d.field, d.value)}"
        )
        page.text(f"{d.device}: {how}{related(f)}", hang=4)
        if d.source:
            page.text(d.source, indent=6, style="dim", hang=2)
    not_comparable([d for d in differences if not d.comparable], mine, reference, page)


def _names(names: Sequence[str]) -> str:
    more = len(names) - MAX_NODES
    return " ".join(names[:MAX_NODES]) + (f" and {more} more" if more > 0 else "")


def _rest(total: int, limit: int, page: Page, indent: int = 2) -> None:
    if total > limit:
        page.text(f"and {total - limit} more (--all lists them)", indent=indent, style="dim")


CSV_COLUMNS = ("node", "what", "state", "section", "subject", "field", "value", "majority", "share", "where", "file")


def fleet_csv(fleet: Fleet) -> str:
    """Return one line for each difference, finding, change and file that was left out.

    A field without a majority (`no_majority`) has a line for each of its values, with one node that has it.

    A text that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    rows: list[tuple[str, ...]] = []
    for o in fleet.outliers:
        rows += [_csv_difference(o.name, "outlier", d, o.file) for d in o.differences]
    for k in fleet.hardware_types:
        for m in k.no_majority:
            rows += [
                (e, "no_majority", "differs", m.section, m.device, m.field, v, "", f"{n / k.nodes:.4f}", "", "")
                for (v, n), e in zip(m.values, m.examples, strict=False)
            ]
    for p in fleet.job:
        rows += [
            (n, f"job {p.what}", p.state, "", p.subject, "", v, "", "", "", "") for v, nodes in p.values for n in nodes
        ]
    for f in fleet.findings:
        rows += [(n, f.id, f.state, "", f.subject, "", f.title, "", "", "", "") for n in f.nodes]
    for c in fleet.changes or ():
        rows += [_csv_difference(c.name, c.what, d, "") for d in c.differences]
        if not c.differences:
            rows.append((c.name, c.what, *[""] * 9))
    rows += [("", "unreadable", "unknown", "", "", "", b.reason, "", "", "", b.file) for b in fleet.unreadable_files]
    rows += [("", "superseded", "", "", "", "", LEFT_OUT, "", "", "", f) for f in fleet.superseded_files]
    return csv_text(CSV_COLUMNS, rows)


def _csv_difference(node: str, what: str, d: Difference, file: str) -> tuple[str, ...]:
    state = "differs" if d.comparable else "unknown"
    return (node, what, state, d.section, d.device, d.field, d.value, d.majority, f"{d.share:.4f}", d.path, file)
