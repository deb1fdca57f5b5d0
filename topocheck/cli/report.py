"""`topocheck report`: how this node is wired, what each wire can carry, and what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from topocheck.cli import common
from topocheck.model.base import InputError

FORMATS = ("text", "json", "markdown")
SECTIONS = (
    "summary", "record", "tree", "matrix", "pcie", "nvlink", "numa", "nics", "nccl", "p2p", "rdma", "limits",
    "software", "probes",
)  # fmt: skip


def report(
    from_: common.From = None,
    smi_topo: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--smi-topo", metavar="FILE", help="Read a pasted `nvidia-smi topo` matrix; - for standard input."
        ),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="text, json or markdown.")] = "text",
    output: common.Output = None,
    section: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--section", help=f"Only this section; may be repeated: {', '.join(SECTIONS)}."),
    ] = None,
    cross_check: Annotated[
        bool, typer.Option("--cross-check", help="Also ask nvidia-smi and compare its matrix with ours.")
    ] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="One report of all nodes of a job, under srun, torchrun or mpirun.")
    ] = False,
    deadline: Annotated[
        float, typer.Option("--deadline", help="With --cluster: seconds to wait for the other nodes.")
    ] = 60.0,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Show how this node is wired, what each wire can carry, and what is wrong with it.

    Needs no root and no GPU; what root would add is said. Exits 0 once it has printed a report.
    """
    common.choose(format_, FORMATS, "--format")
    for s in section or ():
        common.choose(s, SECTIONS, "--section")
    if not deadline > 0:
        raise InputError(f"--deadline {deadline:g}: expected seconds above 0")
    if smi_topo is not None and (from_ is not None or section or cluster or cross_check):
        raise InputError(
            "--smi-topo reads a pasted matrix and nothing else: leave out --from, --section, --cluster "
            "and --cross-check"
        )
    if cluster:
        from topocheck.cli.cluster import cluster_report

        code = cluster_report(
            from_=from_, format_=format_, output=output, deadline_s=deadline, no_color=no_color, width=width
        )
        raise typer.Exit(code)
    if smi_topo is not None:
        from topocheck.cli.smi import smi_report

        common.emit(smi_report(smi_topo, format_, common.style(output, no_color, width)), output)
        return
    host = common.open_host(from_, cross_check=cross_check)
    from topocheck.pipeline import build_report

    result = build_report(host)
    if format_ == "json":
        import topocheck
        from topocheck.render import document

        common.emit(document.encode(document.report_document(result, topocheck.__version__)), output)
        return
    if format_ == "markdown":
        from topocheck.render.markdown import report_markdown

        common.emit(report_markdown(result, section), output)
        return
    from topocheck.render.text import report_text

    common.emit(report_text(result, section, common.style(output, no_color, width)), output)
