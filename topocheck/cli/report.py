"""`topocheck report`: a node's topology, link bandwidths and problems.

Annotations are not postponed: typer would evaluate each from text, twice, which takes as long as reading a recording.
"""

from pathlib import Path
from typing import Annotated, Optional

import typer

from topocheck.cli import common
from topocheck.cli.fabric_join import FabricFiles
from topocheck.cli.report_formats import FORMATS, rendered
from topocheck.model.base import InputError

SECTIONS = (
    "summary", "findings", "notes", "devices", "tree", "matrix", "pcie", "nvlink", "nics", "numa", "nccl", "p2p",
    "rdma", "limits", "software", "system-summary", "probes",
)  # fmt: skip


def report(
    from_: common.From = None,
    smi_topo: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--smi-topo", metavar="FILE", help="Read a pasted `nvidia-smi topo` matrix; - for standard input."
        ),
    ] = None,
    format_: Annotated[
        str,
        typer.Option("--format", help="text, json (--json), markdown, html (with the drawing) or svg (the drawing)."),
    ] = "text",
    output: common.Output = None,
    section: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--section", help=f"Only these sections, by comma or repeated: {', '.join(SECTIONS)}."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every section, not the first screen alone.")] = False,
    cross_check: Annotated[
        bool, typer.Option("--cross-check", help="Also ask nvidia-smi and compare its matrix with ours.")
    ] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="One report of all nodes of a job, under srun, torchrun or mpirun.")
    ] = False,
    deadline: Annotated[
        float, typer.Option("--deadline", help="With --cluster: seconds to wait for the other nodes.")
    ] = 60.0,
    fabric: FabricFiles = None,
    no_color: common.NoColor = False,
    width: common.Width = 0,
) -> None:
    """Show this node's topology, link bandwidths and problems.

    Needs no root and no GPU; names what only root can read. Exits 0 once it has printed a report.
    """
    common.choose(format_, FORMATS, "--format")
    section = common.by_comma(section)
    for s in section:
        common.choose(s, SECTIONS, "--section")
    common.deadline(deadline)
    if section and format_ in ("html", "svg"):
        raise InputError(f"--section goes with --format text and markdown, not with {format_}")
    if section and all_:
        raise InputError("--all prints every section: leave out --section")
    if smi_topo is not None and (from_ or section or cluster or cross_check):
        raise InputError(
            "--smi-topo reads a pasted matrix and nothing else: leave out --from, --section, --cluster "
            "and --cross-check"
        )
    if cluster:
        from topocheck.cli.cluster import cluster_report

        code = cluster_report(
            from_=from_,
            format_=format_,
            output=output,
            deadline_s=deadline,
            fabric=fabric,
            no_color=no_color,
            width=width,
        )
        raise typer.Exit(code)
    if fabric:
        raise InputError(
            "--fabric goes with --cluster; one node's report has no network: topocheck network fabric FILE"
        )
    if smi_topo is not None:
        from topocheck.cli.smi import smi_report

        common.emit(smi_report(smi_topo, format_, common.style(output, no_color, width)), output)
        return
    host = common.open_host(from_, cross_check=cross_check)
    if from_ and len(from_) == 1:
        from topocheck.readers.files import only_a_matrix

        if only_a_matrix(host):
            from topocheck.cli.smi import smi_report

            common.emit(smi_report(from_[0], format_, common.style(output, no_color, width)), output)
            return
    from topocheck.pipeline import build_report

    result = build_report(host)
    common.leave(host, result)
    sections = section or (SECTIONS if all_ and format_ == "text" else None)
    layout = common.style(output, no_color, width)
    common.emit(rendered(result, format_, layout, sections), output)
