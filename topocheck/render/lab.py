"""Tables of labs, as text, Markdown, CSV and JSON: one painter for all of them and for the page."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from topocheck.model.lab import Column, JobRecord, LabLine, LabReport, LabTable, NodeRecord, Value
from topocheck.model.units import size_text, time_text
from topocheck.render.markdown import MarkdownPage
from topocheck.render.page import Page, Style
from topocheck.render.quoting import csv_text, json_text
from topocheck.render.words import not_measured_lines, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topocheck.model.lab import Lab

RECORD = (
    ("server", "server"), ("cpu", "CPU"), ("cpus", "CPUs allowed"), ("gpus", "GPUs"),
    ("gpu_connection", "GPU connection"), ("nics", "NICs"), ("os", "OS"), ("kernel", "kernel"), ("driver", "driver"),
    ("cuda", "CUDA"), ("nccl", "NCCL"), ("framework", "framework"), ("mpi", "MPI"), ("python", "Python"),
    ("settings", "NCCL settings"),
)  # fmt: skip
"""(field of NodeRecord, what it is called)."""
NONE = "none found"


def cell(value: Value, column: Column) -> str:
    """Return one cell as a person reads it; `-` for nothing."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if column.unit == "us":
        return time_text(value)
    if column.unit == "s":
        return time_text(value * 1e6)
    if column.unit == "B":
        return _size(value)
    if column.unit == "share":
        return f"{100 * value:.1f} %"
    if column.unit == "ratio":
        return f"{value:.2f}"
    if column.unit == "relative":
        return f"{value:.1e}" if value else "0"
    return str(value) if isinstance(value, int) else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _size(value: float) -> str:
    """Return a size with three digits."""
    number, _, unit = size_text(value).partition(" ")
    return f"{float(number):.3g} {unit}" if float(number) < 1000 else f"{number} {unit}"


def _head(column: Column) -> str:
    """Return a column's heading, with the unit where cells do not show it."""
    shown = column.unit in ("", "us", "s", "B", "share", "ratio", "relative")
    return column.title if shown else f"{column.title} ({column.unit})"


def _numbers(table: LabTable) -> frozenset[int]:
    """Return the columns without words, which are aligned to the right."""
    return frozenset(
        i
        for i in range(len(table.spec.columns))
        if any(r.values[i] is not None for r in table.rows)
        and not any(isinstance(r.values[i], str) for r in table.rows)
    )


def _groups(table: LabTable) -> list[tuple[str, LabTable]]:
    """Return the rows with numbers of each backend as a table of its own, without what is the same in all of them.

    Each has a line: the backend, and what all its rows have in common. Tables without backends stay whole.
    """
    import msgspec

    columns = table.spec.columns
    by_backend = bool(columns) and columns[0].key == "backend"
    groups: dict[object, list[LabLine]] = {}
    for r in table.rows:
        if not _bare(r, columns):
            groups.setdefault(r.values[0] if by_backend else None, []).append(r)
    ranks = next((i for i, c in enumerate(columns) if c.key == "ranks"), None)
    if by_backend and ranks is not None:
        groups = _by_ranks(groups, ranks)
    out = []
    for rows in groups.values():
        same = {i for i in range(len(columns)) if len({r.values[i] for r in rows}) == 1} if len(rows) > 1 else set()
        same = {i for i in same if columns[i].title not in ("from", "to")}
        if by_backend:
            same |= set(_about_backend(columns))
        empty = {i for i in range(len(columns)) if all(r.values[i] is None for r in rows)}
        # An interval without an upper end keeps both of its columns.
        empty -= {i for i in empty if columns[i].title == "to" and i - 1 not in empty}
        words = [_constant(rows[0].values[i], columns[i]) for i in sorted(same - empty)]
        rest = [i for i in range(len(columns)) if i not in same and i not in empty]
        spec = msgspec.structs.replace(table.spec, columns=tuple(columns[i] for i in rest))
        kept = tuple(msgspec.structs.replace(r, values=tuple(r.values[i] for i in rest)) for r in rows)
        out.append((", ".join(words), msgspec.structs.replace(table, spec=spec, rows=kept)))
    return out


def _bare(row: LabLine, columns: Sequence[Column]) -> bool:
    """Tell whether a row has names and a reason, and no numbers."""
    return bool(row.reason) and all(v is None or _names(v, c) for v, c in zip(row.values, columns, strict=True))


def _about_backend(columns: Sequence[Column]) -> list[int]:
    """Return the columns that the backend decides."""
    return [i for i, c in enumerate(columns) if c.key in ("backend", "memory")]


def _constant(value: Value, column: Column) -> str:
    text = cell(value, column)
    return text if column.key in ("backend", "memory", "pair") else f"{column.title} {text}"


def paint(report: LabReport, page: Page) -> None:
    """Add a lab to a page: its record, its tables, how they are read."""
    page.heading(f"Lab {report.lab}: {report.question}")
    _record(page, report.record)
    for table in report.tables:
        page.heading(table.spec.title)
        for i, (same, part) in enumerate(_groups(table)):
            columns = part.spec.columns
            if i:
                page.blank()
            if same:
                page.text(f"{same}:", style="bold")
            rows = [[cell(v, c) for v, c in zip(r.values, columns, strict=True)] for r in part.rows]
            page.table(*_with_intervals([_head(c) for c in columns], rows, _numbers(part)))
            for line in dict.fromkeys(_reason(part, i) for i, r in enumerate(part.rows) if r.reason):
                page.text(line, hang=2)
        for r in table.rows:
            if _bare(r, table.spec.columns):
                words = [_constant(v, c) for v, c in zip(r.values, table.spec.columns, strict=True) if v is not None]
                page.text(f"{', '.join(words)}: {r.reason}", hang=2)
        page.blank()
        for note in table.notes:
            page.text(note, hang=2, style="dim")
    _columns(page, report.tables)
    if report.not_measured:
        page.heading("Not measured")
        for line in not_measured_lines(report.not_measured):
            page.text(line, hang=2, style="magenta")
    page.blank()
    for text in (report.reading, report.method, *report.notes, report.source and f"Source: {report.source}"):
        if text:
            page.text(text, style="dim")


def _columns(page: Page, tables: Sequence[LabTable]) -> None:
    """Add what the columns that have values hold; one that several tables share is explained once."""
    said: dict[str, list[str]] = {}
    for table in tables:
        for i, column in enumerate(table.spec.columns):
            if column.about and column.title != "from" and any(r.values[i] is not None for r in table.rows):
                about = said.setdefault(_head(column), [])
                about += [column.about] if column.about not in about else []
    if said:
        page.heading("Columns")
    wide = max(map(len, said), default=0) + 3
    for title, about in said.items():
        page.pair(title, "; ".join(about), column=wide)


def _with_intervals(
    head: list[str], rows: list[list[str]], right: frozenset[int]
) -> tuple[list[str], list[list[str]], int, frozenset[int]]:
    """Return the arguments of a table in which the two ends of an interval, `from` and `to`, are one column."""
    i = 0
    while i < len(head) - 1:
        if head[i].startswith("from") and head[i + 1].startswith("to"):
            head[i : i + 2] = ["95 %"]
            for r in rows:
                r[i : i + 2] = [f"{r[i]} to {r[i + 1]}" if r[i] != "-" else "-"]
            right = frozenset(x if x <= i else x - 1 for x in right)
        i += 1
    return head, rows, 2, right


def _by_ranks(groups: dict[object, list[LabLine]], ranks: int) -> dict[object, list[LabLine]]:
    """Return the groups, those split by the number of ranks of which each part has three rows or more."""
    out: dict[object, list[LabLine]] = {}
    for backend, rows in groups.items():
        parts: dict[object, list[LabLine]] = {}
        for r in rows:
            parts.setdefault((backend, r.values[ranks]), []).append(r)
        out |= parts if min(map(len, parts.values())) >= 3 else {backend: rows}
    return out


def _reason(table: LabTable, at: int) -> str:
    """Return why a row has no numbers: of which row, by its words, and the reason."""
    row = table.rows[at]
    # Words and counts before the first quantity: of `p 2, m 1, 1F1B, time` the first three.
    leading = itertools.takewhile(lambda x: not x[1].unit, zip(row.values, table.spec.columns, strict=True))
    names = [cell(v, c) if isinstance(v, str) else f"{c.title} {cell(v, c)}" for v, c in leading if v is not None]
    return f"{', '.join(names)}: {row.reason}" if names else row.reason


def _names(value: Value, column: Column) -> bool:
    return value is not None and not column.unit and (isinstance(value, str) or column.key in ("ranks", "servers"))


def _record(page: Page, record: JobRecord) -> None:
    """Add the experiment record; equal nodes are one entry."""
    page.heading("Experiment record")
    by = record.launcher or "topocheck"
    page.pair("job", f"{plural(record.ranks, 'rank')} on {plural(record.servers, 'server')}, started by {by}")
    for kind, names in _kinds(record.nodes):
        page.pair("node" if len(names) == 1 else f"{len(names)} nodes", ", ".join(names))
        for field, title in RECORD:
            value = str(getattr(kind, field) or "")
            page.pair(title, value or NONE)
    for who, why in record.missing.items():
        page.pair(who, why)


def _kinds(nodes: Sequence[NodeRecord]) -> list[tuple[NodeRecord, list[str]]]:
    """Return each kind of node with the names of its nodes."""
    import msgspec

    kinds: dict[NodeRecord, list[str]] = {}
    for n in nodes:
        kinds.setdefault(msgspec.structs.replace(n, node=""), []).append(n.node)
    return list(kinds.items())


def lab_text(report: LabReport, style: Style) -> str:
    """Return a lab as text."""
    page = Page(style)
    paint(report, page)
    return page.render()


def lab_markdown(report: LabReport) -> str:
    """Return a lab in Markdown."""
    page = MarkdownPage()
    paint(report, page)
    return page.render()


def lab_json(report: LabReport) -> str:
    """Return a lab as JSON."""
    return json_text(report)


def lab_csv(report: LabReport) -> str:
    """Return all tables, one after the other: each has a line of its own before its head; of `record` the nodes."""
    if not report.tables:
        names = ("node", *(field for field, _ in RECORD))
        return csv_text(names, ([getattr(n, f) for f in names] for n in report.record.nodes))
    parts = []
    for table in report.tables:
        names = ("table", *(c.key for c in table.spec.columns), "reason")
        parts.append(csv_text(names, ((table.spec.name, *r.values, r.reason) for r in table.rows)))
    return "\n".join(parts)


def list_text(labs: Sequence[Lab], style: Style) -> str:
    """Return all labs: name, question, what they run over."""
    page = Page(style)
    page.table(
        ("lab", "question", "runs over"),
        [(x.name, x.question, ", ".join(x.backends) or "calculated") for x in labs],
    )
    page.blank()
    page.text("topocheck lab NAME runs one; --ranks, --backend, --sizes, --quick and --format serve all of them.")
    return page.render()


def list_json(labs: Sequence[Lab], style: Style) -> str:
    """Return all labs as a JSON list; `backends` is empty for one that is calculated. The style has no say."""
    return json_text([{"name": x.name, "question": x.question, "backends": list(x.backends)} for x in labs])
