"""What NCCL reads, sees and will do, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from topocheck.render.page import Page, Style, flowing
from topocheck.render.quoting import name_text
from topocheck.render.words import evidence_line, plural

if TYPE_CHECKING:
    from topocheck.knowledge.nccl import NcclSetting
    from topocheck.model.base import ReasonStep
    from topocheck.model.system import Setting
    from topocheck.nccl.logs.compare import LogComparison
    from topocheck.nccl.logs.types import LogCause, NcclLog
    from topocheck.nccl.rules.values import SettingProblem
    from topocheck.nccl.topofile.compare import TopoDifference
    from topocheck.nccl.topofile.xml import Element, Remark

_MARKS = {"yes": "+", "no": "-", "unknown": "?", "info": " ", "degraded": "~"}


def _done(page: Page) -> str:
    return page.render()


def settings_text(
    found: Sequence[tuple[Setting, NcclSetting | None, str | None, Sequence[SettingProblem]]],
    judged: dict[str, str],
    files: dict[str, str],
    style: Style,
) -> str:
    """Return the settings in force or shadowed: (setting, what is known of it, its default, its problems) each.

    `judged` holds nccl_version, version_note and table_version; `files` says why settings files are not read as they
    stand.
    """
    page = Page(style)
    version = judged["nccl_version"]
    if not found:
        none = f"No NCCL setting is in force here: NCCL {version} uses its defaults."
        page.text("No NCCL setting is known: not all could be read." if files else none, indent=0)
    else:
        text = f"NCCL settings here, read as NCCL {version} reads them (table of {judged['table_version']}):"
        page.text(text, indent=0)
    if judged["version_note"]:
        page.text(judged["version_note"], style="dim")
    for path, why in files.items():
        page.pair("settings file", f"{path}: {why}")
    for s, known, default, problems in found:
        page.blank()
        state = "" if s.in_force else "  (not in force)"
        page.line((flowing(f"{s.name}={s.value}"), "bold"), state)
        page.pair("from", s.source)
        if known is not None:
            page.pair("does", known.effect)
            page.pair("default", f"{default or known.default}{'' if known.documented else '  (undocumented)'}")
            if known.debug_section:
                page.pair("note", "the user guide lists it for debugging, not for production")
        _problems(page, problems)
    return _done(page)


def _problems(page: Page, problems: Sequence[SettingProblem]) -> None:
    for p in problems:
        page.pair("problem", p.text)
        if p.fix:
            page.pair("fix", p.fix)


def setting_text(
    s: NcclSetting,
    default: str,
    history: Sequence[tuple[str, str]],
    here: Sequence[tuple[Setting, Sequence[SettingProblem]]],
    judged: dict[str, str],
    files: dict[str, str],
    style: Style,
) -> str:
    """Return all that is known of one setting.

    Args:
        s: the setting.
        default: of the version judged by.
        history: (version, default) where the default changed.
        here: where it is set on this machine, with what is wrong with it.
        judged: nccl_version and version_note.
        files: settings files that NCCL does not read as they stand -> why.
        style: of the page.
    """
    page = Page(style)
    page.line((s.name, "bold"), f"  ({s.category})")
    page.pair("does", s.effect)
    for value, problems in here:
        shadowed = "" if value.in_force else ", not in force"
        page.pair("here", f"{value.value or '(empty: counts as unset)'}  (from {value.source}{shadowed})")
        _problems(page, problems)
    if not here:
        page.pair("here", "not set")
    for path, why in files.items():
        page.pair("settings file", f"{path}: {why}")
    page.pair("judged by", f"NCCL {judged['nccl_version']}")
    if judged["version_note"]:
        page.pair("", judged["version_note"])
    page.pair("takes", s.accepted)
    page.pair("default", default)
    if history:
        page.pair("its history", "; ".join(f"{v}: {d}" for v, d in history))
    page.pair("since", s.since)
    if s.status != "current":
        page.pair("state", f"{s.status} {s.status_version}".strip())
    if s.replaced_by:
        page.pair("use instead", s.replaced_by)
    page.pair("documented", "yes" if s.documented else "no")
    if s.debug_section:
        page.pair("note", "the user guide lists it for debugging, not for production")
    if s.risk:
        page.pair("caution", s.risk)
    page.pair("source", s.source)
    return _done(page)


def table_text(settings: Sequence[NcclSetting], table_version: str, style: Style) -> str:
    """Return all settings by category: name, default and state, and what each does below, no name ever broken."""
    page = Page(style)
    page.text(f"{len(settings)} settings, as of NCCL {table_version}; topocheck nccl env NAME explains one.", indent=0)
    category = ""
    for s in settings:
        if s.category != category:
            category = s.category
            page.heading(category)
        state = "" if s.status == "current" else f"; {s.status} {s.status_version}".rstrip()
        page.text(f"{s.name}  default {s.default}{state}", hang=4)
        page.text(s.effect, indent=4, style="dim")
    return _done(page)


def library_text(found: dict[str, Any], style: Style) -> str:
    """Return how the table of settings and the names in a library differ."""
    page = Page(style)
    page.line(f"{name_text(found['library'])}: NCCL {found['nccl_version']}, {found['names']} names")
    page.pair("not in table", ", ".join(found["unknown_to_table"]) or "none: the table is whole")
    page.pair("not in library", ", ".join(found["absent_from_library"]) or "none")
    return _done(page)


def why_lines(page: Page, steps: Sequence[ReasonStep], indent: int = 4) -> None:
    """Add a chain of reasons, one line a rule, with its evidence and its fix."""
    for step in steps:
        evidence = "; ".join(evidence_line(e) for e in step.evidence)
        text = f"{_MARKS.get(step.effect, ' ')} {step.text}" + (f"  [{evidence}]" if evidence else "")
        page.text(text, indent=indent, hang=2)
        if step.fix:
            page.text(f"fix: {step.fix}", indent=indent + 2, hang=5)


def topology_text(
    root: Element, remarks: Sequence[Remark], differences: Sequence[TopoDifference] | None, name: str, style: Style
) -> str:
    """Return what a topology file holds, where NCCL would stop, and how it differs from the machine."""
    page = Page(style)
    counts: dict[str, int] = {}
    for e in root.walk():
        counts[e.name] = counts.get(e.name, 0) + 1
    held = ", ".join(f"{n} {k}" for k, n in counts.items() if k != "system")
    page.line((name_text(name), "bold"), flowing(f": {held}"))
    for r in remarks:
        what = "NCCL's init ends here" if r.fatal else "NCCL goes on"
        page.text(f"line {r.line}, column {r.column}: {r.text} ({what})", hang=2, style="red" if r.fatal else "")
    if differences is None:
        return _done(page)
    if not differences:
        page.text("Apart from that it agrees with this machine." if remarks else "It agrees with this machine.")
    for d in differences:
        values = f"file {d.file or '-'}, machine {d.machine or '-'}"
        page.text(f"{d.kind}: {d.subject}: {values}: {d.text}", hang=2)
    return _done(page)


def _cause(page: Page, c: LogCause, own_line: int = 0) -> None:
    where = f" (line {c.line}: {c.text})" if c.line and c.line != own_line else ""
    page.text(f"likely: {c.cause}{where}", indent=4, hang=2)
    page.text(f"next: {c.next}", indent=4, hang=2)


def _log_facts(page: Page, log: NcclLog) -> None:
    layout = [plural(log.nranks, "rank") if log.nranks else "", plural(log.nnodes, "node") if log.nnodes else ""]
    page.pair("job", ", ".join(x for x in layout if x) or "not stated")
    for name, items in (
        ("network", log.networks),
        ("bootstrap", log.bootstrap),
        ("HCAs", log.hcas),
        ("interfaces", log.sockets),
        ("topology file", log.topology_file),
        ("search", log.patterns),
    ):
        if items:
            page.pair(name, "; ".join(items[:16]) + (f" and {len(items) - 16} more" if len(items) > 16 else ""))
    if log.settings:
        page.pair("settings", "; ".join(f"{k}={'|'.join(v[:4])}" for k, v in sorted(log.settings.items())))
    if log.gdr_of_hca:
        page.pair("GPUDirect RDMA", "; ".join(f"{k}: {'on' if v else 'off'}" for k, v in log.gdr_of_hca.items()))
    if log.nvls is not None:
        page.pair("NVLS", "available" if log.nvls else "not available")
    if log.channels:
        page.pair("channels", ", ".join(f"{v} {k}" for k, v in log.channels.items()))
    if log.rings:
        first = min(log.rings)
        page.pair("rings", f"{len(log.rings)}; ring {first}: {log.rings[first]}")
    if log.pairs:
        page.heading("Transports")
        kinds: dict[str, list[str]] = {}
        for (a, b), pair in sorted(log.pairs.items()):
            kinds.setdefault(", ".join(sorted(pair.transports)), []).append(f"{a}->{b}")
        for kind, pairs in kinds.items():
            more = f" and {len(pairs) - 12} more" if len(pairs) > 12 else ""
            page.text(f"{kind}: {' '.join(pairs[:12])}{more}", hang=4)
    for t in log.tests[:16]:
        parts = [
            f"peak {t.peak_gb_s:g} GB/s of bus bandwidth at {t.peak_bytes} bytes" if t.rows else "",
            f"average {t.average_gb_s:g} GB/s" if t.average_gb_s is not None else "",
            f"sum {t.sum_gb_s:g} GB/s" if t.sum_gb_s is not None else "",
            f"wrong values in {t.wrong_rows} of {t.rows} rows" if t.wrong_rows else "",
        ]
        page.pair("test", f"{t.program} {t.name}".strip() + ": " + ", ".join(p for p in parts if p))


def _log_failures(page: Page, log: NcclLog) -> None:
    if log.failures:
        page.heading("Failures")
    for f in log.failures:
        where = f" ({f.count}x, first in line {f.line})" if f.line else ""
        code = f.code if f.stated or not f.line else f"{f.code}, by a warning: no line states a code"
        page.text(f"{code}{where}: {f.text}", style="red", hang=2)
        for c in f.causes:
            _cause(page, c, own_line=f.line)


def _log_findings(page: Page, log: NcclLog) -> None:
    if log.findings:
        page.heading("Findings")
    for f in log.findings:
        page.text(f"{f.state.upper()} {f.title}", style="yellow" if f.state == "warn" else "", hang=2)
        page.text(f"evidence: {f'line {f.line}: ' if f.line else ''}{f.evidence}", indent=4, hang=2)
        page.text(f"consequence: {f.consequence}", indent=4, hang=2)
        page.text(f"fix: {f.fix}", indent=4, hang=2)


def _log_warnings(page: Page, log: NcclLog) -> None:
    if log.warnings:
        page.heading("Warnings")
    shown = {f.line for f in log.findings}
    for w in list(log.warnings.values())[:20]:
        page.text(f"{w.count}x line {w.line}: {w.text}", hang=2)
        for c in log.hints:
            if c.line == w.line and c.line not in shown:
                _cause(page, c, own_line=w.line)
    lines = {w.line for w in log.warnings.values()}
    for c in log.hints:
        if c.line not in lines and c.line not in shown:
            page.text(f"line {c.line}: {c.text}", hang=2)
            _cause(page, c, own_line=c.line)


def log_text(log: NcclLog, comparison: LogComparison | None, style: Style) -> str:
    """Return what a log says, its failures with their causes, and where it parts from the prediction."""
    page = Page(style)
    versions = ", ".join(log.versions) or "version not stated"
    lines = f"{log.nccl_lines} of {log.lines} lines from {log.library}"
    page.line((f"{log.library} {name_text(versions)}: {lines}", "bold"))
    _log_facts(page, log)
    _log_failures(page, log)
    _log_findings(page, log)
    _log_warnings(page, log)
    if comparison is not None:
        page.heading("Compared with the prediction")
        page.text(
            f"{comparison.agree} of {comparison.compared} pairs agree"
            if comparison.compared
            else "no pair of ranks is both in the log and in the prediction"
        )
        for d in comparison.differences:
            page.text(f"{d.subject}: the log has {d.logged}, predicted {d.predicted}", hang=2)
            for e in d.explanations:
                page.text(f"possible cause: {e}", indent=4, hang=2)
        for t in comparison.tests:
            page.text(t, hang=2)
    for note in log.notes:
        page.text(f"note: {note}")
    return _done(page)
