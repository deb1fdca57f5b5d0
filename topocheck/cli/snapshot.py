"""`topocheck snapshot`: record a machine to one file, and look into such a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from topocheck.api import answers_of
from topocheck.cli import common
from topocheck.probes.registry import PROBE_SET_VERSION

app = typer.Typer(
    help="Record this machine to one file that every command reads with --from.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("save")
def save(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    keep_identifiers: Annotated[
        bool,
        typer.Option(
            "--keep-identifiers",
            help="Keep serial numbers, UUIDs, GUIDs, MAC and IP addresses and host names; they are replaced otherwise.",
        ),
    ] = False,
    cross_check: Annotated[bool, typer.Option("--cross-check", help="Also record what nvidia-smi prints.")] = False,
    from_: common.From = None,
) -> None:
    """Record everything the probes ask of this machine, compressed, in one file to send or keep."""
    from topocheck.host.live.filters import kept
    from topocheck.host.recording import snapshot

    identifiers = "kept" if keep_identifiers else "replaced"
    if not from_:
        answers = answers_of(None, cross_check=cross_check)
    else:
        from topocheck.readers.files import read_files

        read = read_files(from_)
        answers = read.answers
        if read.header is not None and read.header.identifiers == "replaced":
            identifiers = "replaced"
    if keep_identifiers:
        # What this machine says was filtered on its way in; an older version filtered less.
        answers = {q: kept(q, a) for q, a in answers.items()}
    else:
        from topocheck.host.recording.anonymize import anonymize
        from topocheck.probes.kept.table import table

        answers = anonymize(answers, table())
    size = snapshot.save(str(file), answers, probe_set=PROBE_SET_VERSION, identifiers=identifiers)
    common.wrote(f"{file}: {len(answers)} answers, {size} bytes, identifiers {identifiers}", file)


@app.command("show")
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A snapshot.")],
    question: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--grep", metavar="TEXT", help="Only questions that contain TEXT, with their answers."),
    ] = None,
    tree: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--tree", metavar="DIR", help="Write the recorded files below DIR, for lspci -O sysfs.path= and lstopo."
        ),
    ] = None,
) -> None:
    """Show what a snapshot holds: when, by which version, and every question with its answer."""
    from topocheck.host.recording import snapshot
    from topocheck.render.snapshot import show_text

    header, answers = snapshot.load(str(file))
    if tree is not None:
        from topocheck.host.recording.export import export_tree

        n = export_tree(answers, str(tree))
        common.wrote(f"{n} files and links below {tree}", tree)
        return
    common.emit(show_text(header, answers, question))
