"""`topocheck diff`: in what two nodes, or two looks at one node, differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import common
from topocheck.model.exit_codes import EXIT_FAILED, EXIT_UNKNOWN

if TYPE_CHECKING:
    from topocheck.compare.types import NodeFacts

FORMATS = ("text", "json", "html")


def diff(
    first: Annotated[
        Path,
        typer.Argument(
            metavar="A", help="Report, snapshot, or a file, folder or archive that --from takes: the baseline."
        ),
    ],
    second: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
        typer.Argument(metavar="[B]", help="Report or snapshot; default: this machine."),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="text, json (--json) or html.")] = "text",
    output: common.Output = None,
    same_node: Annotated[
        bool,
        typer.Option(
            "--same-node",
            help="Both are reports of one node: a replaced GPU or NIC and a port's other address are reported too.",
        ),
    ] = False,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Show the differences between A and B: hardware, topology, firmware, driver, software, settings.

    What would hurt a job over both of them is said with its consequence: MTU, usable RDMA devices, link layer, IMEX,
    NCCL's version and settings. What differs between healthy nodes of one kind (identifiers, clocks, idle link speeds,
    counters) is left out.
    Exits 0 where nothing differs, 1 where something does, 2 where a file cannot be read, 3 where nothing is seen to
    differ and one of the two does not hold all that the other does (one read without root, the other with it).
    """
    from topocheck.cli.fleet_files import read_facts
    from topocheck.compare.changes import diff as differences_of
    from topocheck.compare.changes import new_findings
    from topocheck.compare.job import job_problems
    from topocheck.model.version import SCHEMA_VERSION
    from topocheck.render.fleet import diff_text
    from topocheck.render.quoting import json_text

    common.choose(format_, FORMATS, "--format")
    a = read_facts(str(first))
    b = _here() if second is None else read_facts(str(second))
    one_node = same_node or (a.name == b.name and second is None)
    job = () if one_node else job_problems(((a.name, a.job), (b.name if b.name != a.name else f"{b.name} (B)", b.job)))
    found = differences_of(b, a, identifiers=one_node)
    worse = new_findings(b, a)
    if format_ == "json":
        document = {
            "schema_version": SCHEMA_VERSION,
            "first": a.name,
            "second": b.name,
            "findings": worse,
            "differences": found,
            "job": job,
        }
        text = json_text(document)
    names = (b.name, a.name) if a.name != b.name else (str(second or "this machine"), str(first))
    if format_ == "html":
        from topocheck.render.html.results import diff_html

        text = diff_html(found, *names, job, worse)
    elif format_ == "text":
        text = diff_text(found, *names, common.style(output, no_color, width), job, worse)
    common.emit(text, output)
    if job or any(d.comparable for d in found):
        raise typer.Exit(EXIT_FAILED)
    if found:
        raise typer.Exit(EXIT_UNKNOWN)


def _here() -> NodeFacts:
    from topocheck.compare.decode import from_document
    from topocheck.compare.facts import node_facts
    from topocheck.model.version import __version__
    from topocheck.pipeline import build_report
    from topocheck.render.report_json import report_document

    report = build_report(common.open_host(None))
    return node_facts(from_document(report_document(report, __version__)))
