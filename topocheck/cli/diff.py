"""`topocheck diff`: in what two nodes, or two looks at one node, differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from topocheck.cli import common

if TYPE_CHECKING:
    from topocheck.compare.types import NodeFacts

FORMATS = ("text", "json")


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="Report or snapshot: the baseline.")],
    second: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
        typer.Argument(metavar="[B]", help="Report or snapshot; this machine where left out."),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    output: common.Output = None,
    same_node: Annotated[
        bool,
        typer.Option(
            "--same-node",
            help="Both are looks at one node: a replaced GPU or NIC and a port's other address are told too.",
        ),
    ] = False,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Tell in what B differs from A: hardware, wiring, firmware, driver, software, settings.

    What differs between healthy nodes of one kind (identifiers, clocks, idle link speeds, counters) is left out.
    Exits 0 where nothing differs, 1 where something does, 2 where a file cannot be read, 3 where nothing is seen to
    differ and one of the two does not tell all that the other does (a look without root beside one with it).
    """
    import msgspec

    from topocheck.cli.fleet_files import read_facts
    from topocheck.compare.changes import diff as differences_of
    from topocheck.render.fleet import diff_text

    common.choose(format_, FORMATS, "--format")
    a = read_facts(str(first))
    b = _here() if second is None else read_facts(str(second))
    found = differences_of(b, a, identifiers=same_node or (a.name == b.name and second is None))
    if format_ == "json":
        document = {"first": a.name, "second": b.name, "differences": found}
        text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    else:
        names = (b.name, a.name) if a.name != b.name else (str(second or "this machine"), str(first))
        text = diff_text(found, *names, common.style(output, no_color, width))
    common.emit(text, output)
    if any(d.told for d in found):
        raise typer.Exit(common.EXIT_FAILED)
    if found:
        raise typer.Exit(common.EXIT_UNKNOWN)


def _here() -> NodeFacts:
    import topocheck
    from topocheck.compare.facts import node_facts
    from topocheck.compare.lean import from_document
    from topocheck.pipeline import build_report
    from topocheck.render.document import report_document

    report = build_report(common.open_host(None))
    return node_facts(from_document(report_document(report, topocheck.__version__)))
