"""The formats of `topocheck check`, each with the convention of its reader.

A format is a file of this folder with `render(outcome, report) -> str` and a row in FORMATS that says how it maps
states to exit codes. `topocheck explain formats` prints that table.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from topocheck.checks.result import Outcome
    from topocheck.pipeline import Report
    from topocheck.render.page import Style


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """How one reader is served.

    Attributes:
        codes: exit code for (healthy, failed, could not tell); None for topocheck's own 0, 1, 3.
        node_only: the process that runs it is not the job, so process checks do not apply.
        prolog: a scheduler acts on any non-zero exit, so that could-not-tell passes unless `--on-unknown fail`.
        unattended: nobody reads an error message, so that a policy that cannot be read is replaced by the built-in
            one and the run told to be unknown, instead of giving no result at all.
        text: the convention in one sentence.
    """

    codes: tuple[int, int, int] | None = None
    node_only: bool = False
    prolog: bool = False
    unattended: bool = False
    text: str


FORMATS: dict[str, Format] = {
    "text": Format(text="for a person"),
    "json": Format(text="docs/schema/check.schema.json"),
    "junit": Format(text="one test case per check and subject; fail is a failure, unknown an error, n/a skipped"),
    "sarif": Format(text="SARIF 2.1.0; fail is error, warn and unknown are warning, note is note"),
    "nagios": Format(
        codes=(0, 2, 3), node_only=True, text="one line; a warning exits 1; wrong usage exits 3, since 2 is CRITICAL"
    ),
    "npd": Format(
        codes=(0, 1, 2), node_only=True, text="node-problem-detector: one line of at most 80 bytes; 2 reads as Unknown"
    ),
    "nhc": Format(
        codes=(0, 1, 0), node_only=True, prolog=True, unattended=True, text="Node Health Check: one line for die()"
    ),
    "slurm-prolog": Format(
        codes=(0, 1, 0),
        node_only=True,
        prolog=True,
        unattended=True,
        text="one line of reason; any non-zero drains the node",
    ),
    "prometheus": Format(
        node_only=True, unattended=True, text="classic text format for node_exporter's textfile collector"
    ),
    "nfd": Format(
        codes=(0, 0, 0), node_only=True, unattended=True, text="labels for Kubernetes node-feature-discovery"
    ),
}
NAMES = tuple(FORMATS)
NODE_ONLY = frozenset(n for n, f in FORMATS.items() if f.node_only)


def exit_code(name: str, outcome: Outcome, *, unknown_fails: bool) -> int:
    """Return the exit code of an outcome in a format's convention."""
    codes = FORMATS[name].codes
    if codes is None:
        return outcome.exit_code
    healthy, failed, unknown = codes
    if outcome.exit_code == 3:
        return failed if unknown_fails else unknown
    if outcome.exit_code == 0 and name == "nagios" and outcome.state == "warn":
        return 1
    return failed if outcome.exit_code else healthy


def render(
    name: str,
    outcome: Outcome,
    report: Report,
    style: Style,
    *,
    verbose: bool,
    unknown_fails: bool,
    notes: bool = False,
) -> tuple[str, int]:
    """Return the text of an outcome in a format, and the exit code that goes with it."""
    code = exit_code(name, outcome, unknown_fails=unknown_fails)
    if name == "text":
        from topocheck.render.checks import check_text

        return check_text(outcome, style, notes=notes, verbose=verbose), code
    if name == "json":
        from topocheck.render.check_json import check_json

        return check_json(outcome), code
    module = importlib.import_module(f"topocheck.render.formats.{name.replace('-', '_')}")
    text: str = module.render(outcome, report)
    return text, code


def conventions() -> str:
    """Return the table of formats with their exit codes."""
    lines = [f"{'format':<14}{'healthy':>8}{'failed':>8}{'unknown':>8}  convention"]
    for name, f in FORMATS.items():
        healthy, failed, unknown = f.codes or (0, 1, 3)
        note = " (1 with --on-unknown fail)" if f.prolog else ""
        lines.append(f"{name:<14}{healthy:>8}{failed:>8}{unknown:>8}  {f.text}{note}")
    lines.append("Wrong usage and unreadable input exit 2, but 3 with --format nagios.")
    return "\n".join(lines) + "\n"
