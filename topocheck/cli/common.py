"""What all commands share: where the machine comes from, where the text goes, and how an error is told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, NoReturn, Optional

import typer

from topocheck.host.base import Answer, Host, RecordedBackend
from topocheck.host.plain import plain_text
from topocheck.model.base import InputError

if TYPE_CHECKING:
    from topocheck.policy.types import Policy
    from topocheck.render.page import Style

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_UNKNOWN = 0, 1, 2, 3

From = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--from", metavar="FILE", help="Read a recording (topocheck snapshot save) instead of this machine."),
]
Output = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--output", "-o", metavar="FILE", help="Write to FILE instead of standard output."),
]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colour, whatever the terminal (also: NO_COLOR=1).")]
Width = Annotated[int, typer.Option("--width", min=0, help="Columns of the text; 0 takes the terminal's, or 80.")]


class OutputError(InputError):
    """The result is there but could not be written."""


def read_answers(recording: Path | None, *, cross_check: bool = False, budget_s: float = 20.0) -> dict[str, Answer]:
    """Return every question with its answer, from a recording or from this machine.

    Raises:
        InputError: the recording cannot be read.
    """
    if recording is None:
        from topocheck.asking import ask_machine

        return ask_machine(cross_check=cross_check, budget_s=budget_s)
    from topocheck.host.snapshot import load

    return load(str(recording))[1]


def open_host(recording: Path | None, *, cross_check: bool = False, budget_s: float = 20.0) -> Host:
    """Return the recording as a host, or this machine.

    Raises:
        InputError: the recording cannot be read.
    """
    answers = read_answers(recording, cross_check=cross_check, budget_s=budget_s)
    return host_of(answers, recording)


def host_of(answers: dict[str, Answer], recording: Path | None) -> Host:
    """Return a host that gives these answers, called after the recording they are from."""
    return Host(RecordedBackend(answers), "live" if recording is None else plain_text(recording.name))


def load_policy(path: Path) -> Policy:
    """Return the policy in a file, its names held against all checks, thresholds and probes there are.

    Raises:
        PolicyError: it cannot be used.
    """
    from topocheck.checks import threshold_names
    from topocheck.policy.load import load
    from topocheck.probes.registry import PROBE_NAMES

    return load(path, threshold_names(), PROBE_NAMES)


def standard_input() -> BinaryIO:
    """Return standard input, as bytes.

    Raises:
        InputError: it is closed.
    """
    if sys.stdin is None:
        raise InputError("standard input is closed; expected a text there, or give a file")
    return sys.stdin.buffer


def emit(text: str, output: Path | None = None) -> None:
    """Write text to a file or to standard output; characters the output cannot show are replaced, never fatal.

    Raises:
        OutputError: the file or standard output cannot be written.
    """
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as e:
            raise OutputError(f"{output}: cannot be written: {e.strerror}") from e
        return
    if sys.stdout is None:
        return  # closed by whoever started us, who wants no more than the exit code
    encoding = sys.stdout.encoding or "ascii"
    if "utf" not in encoding.lower():
        from topocheck.render.page import narrow

        text = narrow(text)
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as e:
        silence()
        raise OutputError(f"standard output cannot be written: {e.strerror}") from e


def check_writable(path: Path) -> None:
    """Look whether a file can be written, without writing: for a command that takes minutes before it does.

    Raises:
        OutputError: it cannot, as far as can be seen now.
    """
    import errno
    import os

    code = 0
    if path.is_dir():
        code = errno.EISDIR
    elif path.exists():
        code = 0 if os.access(path, os.W_OK) else errno.EACCES
    elif not path.parent.is_dir():
        code = errno.ENOTDIR if path.parent.exists() else errno.ENOENT
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        code = errno.EROFS if os.statvfs(path.parent).f_flag & os.ST_RDONLY else errno.EACCES
    if code:
        raise OutputError(f"{path}: cannot be written: {os.strerror(code)}")


def silence() -> None:
    """Turn standard output to nowhere, so that what Python still holds for it is no second error at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str, code: int = EXIT_USAGE) -> NoReturn:
    """Print one line of error to standard error and exit."""
    print(f"topocheck: {message}", file=sys.stderr)
    raise typer.Exit(code)


def choose(value: str, allowed: tuple[str, ...], option: str) -> str:
    """Return `value` if it is one of `allowed`.

    Raises:
        InputError: it is not; names what is.
    """
    if value not in allowed:
        raise InputError(f"{option} {value!r}: expected one of {', '.join(allowed)}")
    return value


def style(output: Path | None, no_color: bool, width: int) -> Style:
    """Return the layout for a page: the terminal's width or 80, colours only on a terminal that wants them."""
    import os
    import shutil

    from topocheck.render.page import Style

    terminal = output is None and sys.stdout is not None and sys.stdout.isatty()
    colour = terminal and not no_color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    columns = width or (shutil.get_terminal_size((80, 24)).columns if terminal else 80)
    return Style(max(columns, 40), colour)


def replace_file(path: Path, text: str) -> None:
    """Write a file whole or not at all, so that a reader never sees half of it.

    Raises:
        InputError: it cannot be written.
    """
    import tempfile

    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as f:
            f.write(text)
        Path(f.name).chmod(0o644)
        Path(f.name).replace(path)
    except OSError as e:
        raise OutputError(f"{path}: cannot be written: {e.strerror}") from e
