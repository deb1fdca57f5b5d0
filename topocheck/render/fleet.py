"""What many nodes have in common and in what single ones differ, as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

import topocheck
from topocheck.model.base import State
from topocheck.model.document import SCHEMA_VERSION
from topocheck.render.page import Page, Style, clean
from topocheck.render.words import STATE_MARKS, STATE_STYLES, plural

if TYPE_CHECKING:
    from topocheck.compare.types import Change, Difference, Fleet, Kind

MAX_NODES = 12
"""Names listed for one finding or group; the JSON holds all of them."""
MAX_LINES = 40
"""Lines of one list; the rest is counted."""

MANY = 4
"""From this many devices on, equal differences are told in one line."""


LEFT_OUT = "another look at the same node, newer or of the same time, was read"
"""Why a file counts for nothing."""


class FleetDoc(msgspec.Struct, kw_only=True):
    """The document of `topocheck fleet --format json`; `fleet` holds the fields of compare/types.py."""

    schema_version: str
    topocheck_version: str
    fleet: object


def fleet_json(fleet: Fleet) -> str:
    """Return the fleet as JSON."""
    d = FleetDoc(schema_version=SCHEMA_VERSION, topocheck_version=topocheck.__version__, fleet=fleet)
    return msgspec.json.format(msgspec.json.encode(d), indent=2).decode() + "\n"


def fleet_text(fleet: Fleet, style: Style, *, all_: bool = False, silent: int = 0) -> str:
    """Return the fleet for a person.

    Args:
        fleet: the result.
        style: columns and colours.
        all_: list everything, however long.
        silent: how many nodes or ranks that belong to it did not answer.
    """
    page = Page(style)
    limit = 1 << 30 if all_ else MAX_LINES
    page.line(
        (f"topocheck {topocheck.__version__}: {plural(fleet.nodes, 'node')}", "bold"), f", {verdict(fleet, silent)}"
    )
    odd = {o.name for o in fleet.odd}
    for kind in fleet.kinds[:limit]:
        _kind(kind, odd, page, limit)
    _rest(len(fleet.kinds), limit, page)
    if fleet.odd:
        _odd(fleet, page, limit)
    if fleet.rails:
        _rails(fleet, page)
    for title, counts in (("Software", fleet.software), ("NCCL settings", fleet.settings)):
        rows = [(c.name, (_values(c.values), "yellow" if len(c.values) > 1 else "")) for c in counts]
        if rows:
            page.heading(title)
            page.table((), rows[:limit])
    if fleet.findings:
        _findings(fleet, page, limit)
    if fleet.changes is not None:
        changes_section(fleet.changes, page, limit)
    if fleet.bad_files:
        page.heading(f"Not read: {plural(len(fleet.bad_files), 'file')}")
        for b in fleet.bad_files[:limit]:
            page.text(f"{b.file}: {b.why}", style="magenta", hang=2)
        _rest(len(fleet.bad_files), limit, page)
    if fleet.older_files:
        page.heading(f"Left out, {LEFT_OUT}: {plural(len(fleet.older_files), 'file')}")
        for file in fleet.older_files[:limit]:
            page.text(file, style="dim", hang=2)
        _rest(len(fleet.older_files), limit, page)
    return page.render() if style.colour else clean(page.render())


def verdict(fleet: Fleet, silent: int = 0) -> str:
    """Return in a few words what the nodes amount to; `silent` nodes or ranks did not answer."""
    failed = {n for f in fleet.findings if f.state == "fail" for n in f.nodes}
    parts = []
    if silent:
        parts.append(f"{silent} did not answer")
    if len(fleet.kinds) > 1:
        parts.append(f"{len(fleet.kinds)} kinds of node")
    if fleet.odd:
        parts.append(f"{len(fleet.odd)} unlike most of {'its' if len(fleet.odd) == 1 else 'their'} kind")
    mixed = sum(k.nodes for k in fleet.kinds if k.mixed)
    if mixed:
        parts.append(f"{mixed} of mixed kinds" if len(fleet.kinds) > 1 else "mixed")
    if fleet.bad_files:
        parts.append(plural(len(fleet.bad_files), "unreadable file"))
    if not parts and fleet.nodes > 1:
        groups = sum(len(k.groups) for k in fleet.kinds)
        parts.append("all alike" if groups < 2 else f"{groups} groups")
    parts.append(f"{len(failed)} with failed checks" if failed else "no failed check")
    return ", ".join(parts)


def _kind(kind: Kind, odd: set[str], page: Page, limit: int) -> None:
    page.heading(f"{plural(kind.nodes, 'node')}: {kind.name}")
    rows = [(g.fingerprint[:8], plural(len(g.nodes), "node"), _names(g.nodes)) for g in kind.groups[: min(limit, 10)]]
    page.table(("group", "", "nodes"), rows)
    for g in kind.groups[: len(rows)]:
        # The fingerprint leaves out what differs between healthy nodes too: these are odd in such a thing.
        if len(g.nodes) > 1 and (some := [n for n in g.nodes if n in odd]) and len(some) < len(g.nodes):
            page.text(f"of {g.fingerprint[:8]}, odd in a rail or a size of memory: {_names(some)}", hang=2)
    if len(kind.groups) > len(rows):
        page.text(f"and {plural(len(kind.groups) - len(rows), 'smaller group')}", style="dim")
    for m in kind.mixed[:limit]:
        examples = [
            f"{v} on {plural(n, 'node')} ({'such as ' if n > 1 else ''}{e})"
            for (v, n), e in zip(m.values, m.examples, strict=False)
        ]
        page.text(f"mixed: {m.device} {m.field}: {', '.join(examples[:6])}", style="yellow", hang=2)
    _rest(len(kind.mixed), limit, page)


def _odd(fleet: Fleet, page: Page, limit: int) -> None:
    page.heading("Unlike most of their kind")
    for i, node in enumerate(fleet.odd):
        if i == limit:
            page.text(f"and {plural(len(fleet.odd) - limit, 'more node')} (--all lists them)", style="dim")
            break
        page.text(f"{node.name}" + (f"  {node.file}" if node.file else ""), style="bold")
        lines = together(node.differences)
        for d in lines[:limit]:
            difference_line(d, page)
        _rest(len(lines), limit, page, indent=4)


def together(differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences with those of many devices that differ in the same way put into one."""
    alike: dict[tuple[str, str, str, str], list[Difference]] = {}
    for d in differences:
        alike.setdefault((d.section, d.field, d.value, d.usual), []).append(d)
    out = []
    for group in alike.values():
        if len(group) < MANY:
            out += group
            continue
        others = plural(len(group) - 1, "more device")
        out.append(msgspec.structs.replace(group[0], device=f"{group[0].device} and {others}"))
    return out


def difference_line(d: Difference, page: Page) -> None:
    """Add one difference: what, the value, the usual value, and where to look."""
    of = "" if d.share >= 1.0 else f" on {_percent(d.share)}"
    text = f"{d.section}  {d.device}: {d.field} {d.value}, usual is {d.usual}{of}"
    if d.value in ("missing", "extra"):
        text = f"{d.section}  {d.device}: {d.value} on this node; {_percent(d.share)} are otherwise"
    page.text(text, indent=4, style="" if d.told else "magenta", hang=2)
    if d.path:
        page.text(f"{d.path}" + (f"  <- {d.source}" if d.source else ""), indent=8, style="dim", hang=2)


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.2f} %" if 99.5 <= percent < 100 else f"{percent:.0f} %"


def _rails(fleet: Fleet, page: Page) -> None:
    page.heading("Rails")
    page.table(
        ("rail", "NIC", "network", "nodes"),
        [(str(i), f"{r.label} ({r.nic})", r.network, str(r.nodes)) for i, r in enumerate(fleet.rails)],
    )


def _values(values: Sequence[tuple[str, int]]) -> str:
    listed = ", ".join(f"{v} ({n})" for v, n in values[:6])
    return listed if len(values) <= 6 else f"{listed} and {len(values) - 6} more"


def _findings(fleet: Fleet, page: Page, limit: int) -> None:
    told = [f for f in fleet.findings if f.state != "note"]
    notes = len(fleet.findings) - len(told)
    page.heading("Findings of the checks")
    for f in told[:limit]:
        state = State(f.state)
        page.text(f"{STATE_MARKS[state]}  {f.id}  {f.subject}", style=STATE_STYLES[state], hang=6)
        page.text(f"{f.title}", indent=8)
        page.text(f"{plural(len(f.nodes), 'node')}: {_names(f.nodes)}", indent=8, style="dim", hang=2)
    _rest(len(told), limit, page)
    if notes:
        page.text(f"and {plural(notes, 'different note')}, worth knowing and nothing wrong (JSON)", style="dim")


_CAME_OR_WENT = {"missing": "is gone", "extra": "is new"}
"""What a device says that only one of two looks has."""


def changes_section(changes: Sequence[Change], page: Page, limit: int) -> None:
    """Add what changed on each node."""
    page.heading("Changed since then")
    if not changes:
        page.text("nothing")
    for c in changes[:limit]:
        page.text(f"{c.name}" + ("" if c.what == "changed" else f": {c.what}"), style="bold")
        for d in c.differences[:limit]:
            how = _CAME_OR_WENT.get(d.value, f"{d.field} was {d.usual}, is {d.value}")
            page.text(f"{d.section}  {d.device}: {how}", indent=4, hang=2)
        _rest(len(c.differences), limit, page, indent=4)
    _rest(len(changes), limit, page)


def diff_text(differences: Sequence[Difference], mine: str, reference: str, style: Style) -> str:
    """Return the differences between two nodes, or two looks at one, for a person."""
    page = Page(style)
    # A host name is a word; one that holds a line break is a forgery of our own lines.
    mine, reference = (" ".join(clean(n).split()) for n in (mine, reference))
    if not differences:
        page.line(f"{mine} is like {reference}: same hardware, wiring, firmware, driver, software and settings.")
        return page.render()
    real = [d for d in differences if d.told]
    page.line((f"{plural(len(real), 'difference')} between {reference} (first) and {mine} (second)", "bold"))
    section = ""
    for d in (*together(real), *together([d for d in differences if not d.told])):
        heading = d.section if d.told else "could not be compared: one of the two does not tell"
        if heading != section:
            section = heading
            page.heading(section)
        page.text(f"{d.device}: {d.field}", style="" if d.told else "magenta", hang=2)
        page.text(_CAME_OR_WENT.get(d.value, f"{d.usual} -> {d.value}"), indent=6, hang=3)
        if d.path:
            page.text(d.path + (f"  <- {d.source}" if d.source else ""), indent=6, style="dim", hang=2)
    return page.render() if style.colour else clean(page.render())


def _names(names: Sequence[str]) -> str:
    more = len(names) - MAX_NODES
    return " ".join(names[:MAX_NODES]) + (f" and {more} more" if more > 0 else "")


def _rest(total: int, limit: int, page: Page, indent: int = 2) -> None:
    if total > limit:
        page.text(f"and {total - limit} more (--all lists them)", indent=indent, style="dim")


CSV_COLUMNS = ("node", "what", "state", "section", "subject", "field", "value", "usual", "share", "where", "file")


def fleet_csv(fleet: Fleet) -> str:
    """Return one line for each difference, finding, change and file that was left out.

    Where no value of a field is usual (`mixed`), there is a line for each of its values, with one node that has it.

    A text that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    out = io.StringIO()
    w = csv.writer(out, lineterminator="\n")
    w.writerow(CSV_COLUMNS)
    rows: list[tuple[str, ...]] = []
    for o in fleet.odd:
        rows += [_csv_difference(o.name, "odd", d, o.file) for d in o.differences]
    for k in fleet.kinds:
        for m in k.mixed:
            rows += [
                (e, "mixed", "differs", m.section, m.device, m.field, v, "", f"{n / k.nodes:.4f}", "", "")
                for (v, n), e in zip(m.values, m.examples, strict=False)
            ]
    for f in fleet.findings:
        rows += [(n, f.id, f.state, "", f.subject, "", f.title, "", "", "", "") for n in f.nodes]
    for c in fleet.changes or ():
        rows += [_csv_difference(c.name, c.what, d, "") for d in c.differences]
        if not c.differences:
            rows.append((c.name, c.what, *[""] * 9))
    rows += [("", "unreadable", "unknown", "", "", "", b.why, "", "", "", b.file) for b in fleet.bad_files]
    rows += [("", "left out", "", "", "", "", LEFT_OUT, "", "", "", f) for f in fleet.older_files]
    for r in rows:
        w.writerow([_harmless(clean(c)) for c in r])
    return out.getvalue()


def _csv_difference(node: str, what: str, d: Difference, file: str) -> tuple[str, ...]:
    state = "differs" if d.told else "unknown"
    return (node, what, state, d.section, d.device, d.field, d.value, d.usual, f"{d.share:.4f}", d.path, file)


def _harmless(cell: str) -> str:
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@", "\t") else cell
