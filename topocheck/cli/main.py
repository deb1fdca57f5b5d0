"""The command line. Each command is one thin file; heavy imports happen inside them."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps, which takes milliseconds to load
import atexit
import errno
import gc
import importlib
import os
import sys

from topocheck import collect as asking
from topocheck.cli import streams
from topocheck.model.version import __version__

TYPE_CHECKING = False  # not from typing: loading it costs milliseconds before the driver is asked
if TYPE_CHECKING:
    from typing import Any

    import typer

COMMANDS = {
    "report": ("report:report", "Show this node's problems, topology and link bandwidths."),
    "check": ("check:check:CheckCommand", "Check this node: may a job start here, and if not, why."),
    "watch": ("watch:watch", "Sample links, counters and clocks over time, and judge what grew."),
    "explain": ("check:explain", "Explain what a check evaluates, why it matters and how to fix it."),
    "bw": ("bw:bw", "Measure copies and collectives, and say what limits them."),
    "network": ("network:app", "Measure the network between the nodes of a job."),
    "nccl": ("nccl:app", "What NCCL reads, what it sees, and what it will do."),
    "fleet": ("fleet:fleet", "Compare any number of nodes: findings, equal nodes, outliers."),
    "scale": ("scale:scale", "Scaling of collectives and training over ranks and nodes."),
    "lab": ("lab:lab", "Experiments on distributed training: record, tables, predictions."),
    "diff": ("diff:diff", "Show the differences between two nodes."),
    "placement": ("placement:placement", "Show which rank runs where, and how to bind it better."),
    "emit": ("emit:emit", "Write configuration: gres.conf, topology files, rankfile, ..."),
    "snapshot": ("snapshot:app", "Record this machine to one file, and inspect such a file."),
    "pcie": ("pcie:pcie", "Compute what a PCIe link carries: GT/s x encoding x lanes."),
    "schema": ("schema:schema", "Print the JSON Schema of a document."),
    "integrations": ("integrations:integrations", "List or print the files for schedulers, monitors and Kubernetes."),
    "completion": ("completion:completion", "Print the completion script of a shell."),
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
        help="Finds out why GPU, NVLink, PCIe and RDMA links on a node are slower than they should be.",
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
        print(f"topocheck {__version__}", flush=True)
        raise typer.Exit


_ASK_THE_MACHINE = ("report", "check", "watch")
_NOT_THE_MACHINE = frozenset({"--from", "--smi-topo", "--cluster", "--help", "-h"})


def _asks_the_machine(argv: list[str]) -> bool:
    """Tell whether this command line is going to ask this machine, as far as a glance tells."""
    return bool(argv) and argv[0] in _ASK_THE_MACHINE and not any(a.split("=")[0] in _NOT_THE_MACHINE for a in argv)


def _rename(argv: list[str]) -> None:
    """Put today's names of commands and options in place of old ones, and say so."""
    from topocheck.cli.old_names import current, spelled_out

    argv[1:], renamed = current(spelled_out(argv[1:]))
    for old, new in renamed:
        from topocheck.model.old_names import notice

        _warn(notice(old, new))


COMPLETE = "_TOPOCHECK_COMPLETE"
"""Set by a shell that wants to know how a command line goes on (cli/completion.py)."""


def _completed_command() -> str:
    """Return the command in a line that a shell completes; the empty text where no shell asks, or it has none yet."""
    if COMPLETE not in os.environ:
        return ""
    from typer._completion_classes import completion_init

    completion_init()
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return next((word for word in line.split()[1:] if not word.startswith("-")), "")


def _completing(app: typer.Typer) -> object:
    """Answer a shell that completes a line."""
    from typer.main import get_command

    from topocheck.cli.completed_values import attach

    command = get_command(app)
    attach(command)
    return command(standalone_mode=False)


def _warn(message: str, prefix: str = "topocheck: ") -> None:
    from topocheck.cli.common import warn

    warn(message, prefix)


def main() -> None:
    """Run the command line; every error a user can cause ends in one line and exit code 2."""
    asking.leave_current_folder()
    # A command lives for a moment and makes few cycles; looking for them costs a tenth of a report.
    gc.disable()
    streams.guard()
    try:
        _rename(sys.argv)
        if _asks_the_machine(sys.argv[1:]):
            # The driver takes as long to answer as everything here to load: it is asked first.
            asking.begin(cross_check="--cross-check" in sys.argv)
        _run(_completed_command() or (sys.argv[1] if len(sys.argv) > 1 else ""))
    except KeyboardInterrupt:
        from topocheck.cli.signals import exit_code

        raise SystemExit(exit_code()) from None
    finally:
        # Nothing is left to clear away, and Python's own end prints an interrupt.
        for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
            if callable(_signal.getsignal(number)):
                _signal.signal(number, _signal.SIG_DFL)
        asking.abandon()
        # Python looks for cycles once more before it ends, in everything it ever loaded: spare it that.
        gc.freeze()


def run() -> None:
    """Run the command line as a program, which ends here: what `topocheck` and `python -m topocheck` start."""
    try:
        main()
    except SystemExit as e:
        if isinstance(e.code, int) and _nothing_left():
            os._exit(e.code)
        raise


def _nothing_left() -> bool:
    """Do what Python does at its end, but for taking apart all that was loaded, which takes longer than a tree of PCI.

    Returns:
        Whether that is all: no other thread runs, no library that has an end of its own was loaded, and all is written.
    """
    threading = sys.modules.get("threading")
    if "torch" in sys.modules or (threading is not None and threading.active_count() > 1):
        return False
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return False
    return True


_OF_A_WRITE = frozenset(
    getattr(errno, n) for n in ("ENOSPC", "EDQUOT", "EIO", "EFBIG", "EROFS", "EBADF", "EAGAIN", "ESTALE", "ENXIO")
)
"""What write(2) says of a full, broken, lost or closed place; Python names no file for it."""


_INTERRUPTED = 130
"""What typer makes of every KeyboardInterrupt, whichever signal it comes from."""


def _run(first: str) -> None:
    from topocheck.model.base import InputError

    try:
        try:
            app = make_app(first if first in COMMANDS else None)
            code = _completing(app) if COMPLETE in os.environ else app(standalone_mode=False)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here an error becomes one line; at the end of Python a traceback
        if code == _INTERRUPTED:
            from topocheck.cli.signals import exit_code

            code = exit_code()
        raise SystemExit(code if isinstance(code, int) else 0)
    except InputError as e:
        _warn(str(e))
        for line in e.excerpt:
            _warn(line, prefix="")
        raise SystemExit(e.exit_code) from None
    except OSError as e:
        if e.filename is None and e.errno not in _OF_A_WRITE:
            raise
        what = "standard output cannot be written" if e.filename is None else str(e.filename)
        _warn(f"{what}: {e.strerror or e}")
        raise SystemExit(2) from None
    except Exception as e:
        if not hasattr(e, "show"):
            raise
        _show_usage(e)
        raise SystemExit(getattr(e, "exit_code", 2)) from None


def _show_usage(error: Any) -> None:
    """Print what typer says of a wrong command line, in one line as all errors, and which help has the right one."""
    from typer._click.exceptions import NoArgsIsHelpError

    said = error.format_message()
    if isinstance(error, NoArgsIsHelpError):
        for line in said.splitlines():
            _warn(line, prefix="")
        return
    # typer writes the nearest names in two ways of its own; here they read as in every other error.
    said, _, nearest = said.partition(". Did you mean ")
    near = nearest.rstrip("?").replace("'", "")
    if possible := getattr(error, "possibilities", None):
        said, near = error.message, " or ".join(sorted(possible))
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else " ".join(["topocheck", *_begun()])
    hint = f"; did you mean {near}?" if near else ";"
    _warn(f"{said[:1].lower()}{said[1:].rstrip('.')}{hint} see {command} --help")


def _begun() -> list[str]:
    """Return the command that the command line begins with; nothing where there is none."""
    return [a for a in sys.argv[1:2] if a in COMMANDS]
