"""The command line. Each command is one thin file; heavy imports happen inside them."""

from __future__ import annotations

import os
import sys

import typer

import topocheck
from topocheck.cli import bw, check, common, nccl, pcie, report, schema, snapshot
from topocheck.model.base import InputError

app = typer.Typer(
    name="topocheck",
    help="Finds why GPUs, NICs and the wires between them are slower than they should be.",
    no_args_is_help=True,
    add_completion=False,
    # rich is not loaded for help and errors: it would double the start-up of every command.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("report")(report.report)
app.command("check", cls=check.CheckCommand)(check.check)
app.command("explain")(check.explain)
app.command("bw")(bw.bw)
app.add_typer(nccl.app, name="nccl")
app.add_typer(snapshot.app, name="snapshot")
app.command("pcie")(pcie.pcie)
app.command("schema")(schema.schema)


def _print_version(value: bool) -> None:
    if value:
        print(f"topocheck {topocheck.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run the command line; every error a user can cause ends in one line and exit code 2."""
    try:
        app()
    except InputError as e:
        print(f"topocheck: {e}", file=sys.stderr)
        raise SystemExit(common.EXIT_USAGE) from None
    except BrokenPipeError:
        # The reader went away (`topocheck report | head`): not our error; keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(common.EXIT_OK) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
