"""The command line. Each command is one thin file; heavy imports happen inside them."""

from __future__ import annotations

import errno
import gc
import importlib
import sys

import topocheck
from topocheck import asking

TYPE_CHECKING = False  # not from typing: loading it costs milliseconds before the driver is asked
if TYPE_CHECKING:
    import typer

COMMANDS = {
    "report": ("report:report", "Show how this node is wired, what each wire can carry, what is wrong."),
    "check": ("check:check:CheckCommand", "Judge this node: may a job start here, and why not."),
    "explain": ("check:explain", "Tell what a check looks at, why it matters, how to mend it."),
    "bw": ("bw:bw", "Measure copies and collectives, and say what limits them."),
    "nccl": ("nccl:app", "What NCCL reads, what it sees, and what it will do."),
    "fleet": ("fleet:fleet", "Compare any number of nodes: equal ones, odd ones, findings."),
    "scale": ("scale:scale", "Scaling of collectives and training over ranks and nodes."),
    "diff": ("diff:diff", "Tell in what one node differs from another."),
    "placement": ("placement:placement", "Say which rank runs where, and how to bind it better."),
    "emit": ("emit:emit", "Write configuration: gres.conf, topology files, rankfile, ..."),
    "snapshot": ("snapshot:app", "Record this machine to one file, and look into such a file."),
    "pcie": ("pcie:pcie", "Compute what a PCIe link carries: GT/s x encoding x lanes."),
    "schema": ("schema:schema", "Print the JSON Schema of a document."),
}
"""Command -> where it is below topocheck.cli (`module:function[:class of the command]`) and its line of `--help`.

In the order of `--help`; an `app` is a group of commands.
"""


def make_app(only: str | None = None) -> typer.Typer:
    """Return the command line with all commands, or with the one that is going to run.

    Making typer's parameters of every command takes longer than the rest of the start-up together, so the list of
    commands is printed from COMMANDS, without loading any.
    """
    import typer

    def root(
        version: bool = typer.Option(
            False, "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ) -> None:
        pass

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
    app.callback()(root)
    if only is not None:
        _add(app, only)
        return app
    for name, (_, text) in COMMANDS.items():
        app.command(name, help=text)(_listed)
    return app


def _add(app: typer.Typer, name: str) -> None:
    target, text = COMMANDS[name]
    file, *attributes = target.split(":")
    module = importlib.import_module(f"topocheck.cli.{file}")
    command, *kind = (getattr(module, a) for a in attributes)
    if isinstance(command, type(app)):
        app.add_typer(command, name=name, help=text)
    else:
        app.command(name, cls=kind[0] if kind else None)(command)


def _listed() -> None:
    """Stand for a command in the list of commands; `main` loads the real one before it could run."""


def _print_version(value: bool) -> None:
    import typer

    if value:
        print(f"topocheck {topocheck.__version__}")
        raise typer.Exit


_ASK_THE_MACHINE = ("report", "check")
_NOT_THE_MACHINE = frozenset({"--from", "--smi-topo", "--cluster", "--help", "-h"})


def _asks_the_machine(argv: list[str]) -> bool:
    """Tell whether this command line is going to ask this machine, as far as a glance tells."""
    return bool(argv) and argv[0] in _ASK_THE_MACHINE and not any(a.split("=")[0] in _NOT_THE_MACHINE for a in argv)


def _silence() -> None:
    from topocheck.cli.common import silence

    silence()


def main() -> None:
    """Run the command line; every error a user can cause ends in one line and exit code 2."""
    # A command lives for a moment and makes few cycles; looking for them costs a tenth of a report.
    gc.disable()
    try:
        if _asks_the_machine(sys.argv[1:]):
            # The driver takes as long to answer as everything here to load: it is asked first.
            asking.begin(cross_check="--cross-check" in sys.argv)
        _run(sys.argv[1] if len(sys.argv) > 1 else "")
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        asking.abandon()
        # Python looks for cycles once more before it ends, in everything it ever loaded: spare it that.
        gc.freeze()


def _run(first: str) -> None:
    from topocheck.model.base import InputError

    try:
        make_app(first if first in COMMANDS else None)()
    except InputError as e:
        print(f"topocheck: {e}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        # The reader went away (`topocheck report | head`): not our error; keep Python from complaining at exit.
        _silence()
        raise SystemExit(0) from None
    except OSError as e:
        if e.errno != errno.ENOSPC:
            raise
        _silence()
        print(f"topocheck: standard output cannot be written: {e.strerror}", file=sys.stderr)
        raise SystemExit(2) from None
