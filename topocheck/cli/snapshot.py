"""`topocheck snapshot`: record a machine to one file, and look into such a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from topocheck.cli import common
from topocheck.probes.registry import PROBE_SET_VERSION

app = typer.Typer(
    help="Record this machine to one file that every command reads with --from.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("save")
def save(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
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
    from topocheck.host import snapshot

    answers = common.read_answers(from_, cross_check=cross_check)
    if not keep_identifiers:
        from topocheck.host.anonymize import anonymize

        answers = anonymize(answers)
    identifiers = "kept" if keep_identifiers else "replaced"
    snapshot.save(str(file), answers, probe_set=PROBE_SET_VERSION, identifiers=identifiers)
    print(f"wrote {file}: {len(answers)} answers, {file.stat().st_size} bytes, identifiers {identifiers}")


@app.command("show")
def show(
    file: Annotated[Path, typer.Argument(help="A recording.")],
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
    """Say what a recording holds: when, by which version, and every question with its answer."""
    from topocheck.host import snapshot
    from topocheck.render.page import clean
    from topocheck.render.snapshot import show_text

    header, answers = snapshot.load(str(file))
    if tree is not None:
        from topocheck.host.tree import export_tree

        n = export_tree(answers, str(tree))
        print(f"wrote {n} files and links below {tree}")
        return
    common.emit(clean(show_text(header, answers, question)))
