"""What all commands share: where the machine comes from, where the text goes, and how an error is reported."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, Optional, TypeVar

import typer

from topocheck.api import answers_of, host_of, read_policy
from topocheck.model.base import InputError, OutputError
from topocheck.model.exit_codes import EXIT_USAGE

if TYPE_CHECKING:
    from topocheck.host.base import Host
    from topocheck.model.measurement import BandwidthReport
    from topocheck.policy.types import Policy
    from topocheck.render.page import Style

Choice = TypeVar("Choice", bound=str)

From = Annotated[
    Optional[list[Path]],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option(
        "--from",
        metavar="FILE",
        help="Read a snapshot (topocheck snapshot save), or the text of lspci, nvidia-smi, dmesg and others, instead "
        "of this machine; repeat it for several files of one machine.",
    ),
]
Given = Optional[Sequence[Path]]  # noqa: UP045
"""The files of one machine; this machine where there are none."""


def writable(path: Optional[Path]) -> Optional[Path]:  # noqa: UP045
    """Refuse an output file that cannot be written, before the work whose result it is for."""
    if path is not None:
        if str(path) == ".":
            raise InputError("--output: expected the name of a file")
        check_writable(path, "--output")
    return path


_OUTPUT = ("--output", "-o")
_OUTPUT_HELP = "Write to FILE instead of standard output."
Output = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(*_OUTPUT, metavar="FILE", help=_OUTPUT_HELP, callback=writable),
]
UncheckedOutput = Annotated[Optional[Path], typer.Option(*_OUTPUT, metavar="FILE", help=_OUTPUT_HELP)]  # noqa: UP045
"""As Output, for a command whose exit code must be that of its result wherever that cannot be written."""
NoColor = Annotated[bool, typer.Option("--no-color", help="No colour, whatever the terminal (also: NO_COLOR=1).")]
Deadline = Annotated[float, typer.Option("--deadline", help="Under a launcher: seconds to wait for the other ranks.")]
Width = Annotated[int, typer.Option("--width", min=0, help="Columns of text; 0: those of the terminal, or 80.")]


def open_host(recording: Given, *, cross_check: bool = False, budget_s: float | None = None) -> Host:
    """Return the recording as a host, or this machine.

    Raises:
        InputError: the recording cannot be read.
    """
    answers = answers_of(recording, cross_check=cross_check, budget_s=budget_s)
    return host_of(answers, recording)


def load_policy(path: Path) -> Policy:
    """Return the policy in a file, its names held against all checks, thresholds and probes there are.

    Raises:
        PolicyError: it cannot be used.
    """
    return read_policy(path, warn)


def load_run(path: Path) -> BandwidthReport:
    """Return the run that `bw --save` or `bw --format json` wrote to a file.

    Raises:
        InputError: the file cannot be read, or is none.
    """
    from topocheck.bandwidth.baseline import LIMIT, parse
    from topocheck.host.input import read_file
    from topocheck.host.recording.snapshot import is_snapshot

    data = read_file(path, LIMIT, "a file of topocheck bw (--save, or --format json)")
    if is_snapshot(data):
        raise InputError(
            f"{path}: a snapshot of a machine, which holds no measurements; expected a file of topocheck bw --save. "
            "What this machine should reach: topocheck bw --plan --from FILE"
        )
    return parse(data, str(path))


def current_check(check_id: str) -> str:
    """Return the id of a check that a user wrote, and say so where it is an old one."""
    from topocheck.model import old_names

    current = old_names.current(check_id)
    if current != check_id:
        warn(old_names.notice(check_id, current))
    return current


def emit(text: str | Iterable[str], output: Path | None = None) -> None:
    """Write text, or pieces of it, to a file (host/output.py) or to standard output.

    What the output cannot show is replaced.

    Raises:
        OutputError: the file or standard output cannot be written.
    """
    pieces = (text,) if isinstance(text, str) else text
    if output is not None:
        from topocheck.host.output import write_file

        # A reader of a FIFO or stream may leave, as that of standard output may (cli/streams.py).
        with contextlib.suppress(BrokenPipeError):
            write_file(output, b"".join(p.encode("utf-8", "replace") for p in pieces))
        return
    if sys.stdout is None:
        return  # closed by whoever started us, who wants no more than the exit code
    encoding = sys.stdout.encoding or "ascii"
    if "utf" not in encoding.lower():
        from topocheck.render.page import narrow

        pieces = map(narrow, pieces)
    try:
        # Every encoding holds ASCII, and a large text should not lie in memory three times.
        for p in pieces:
            sys.stdout.write(p if p.isascii() else p.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except OSError as e:
        raise OutputError(f"standard output cannot be written: {e.strerror}") from e


def leave(*values: object) -> None:
    """Leave values to the end of the process: taking those of 256 GPUs apart one by one takes a quarter of a second.

    A list that holds itself is never freed by counting references, and `main` has the search for such lists off.
    """
    left: list[object] = [*values]
    left.append(left)


def wrote(what: str, where: Path) -> None:
    """Say that a file was written: on standard output, or on standard error where the file is a stream of ours."""
    from topocheck.host.output import stream_of
    from topocheck.render.quoting import one_line

    if stream_of(str(where)) is not None:
        warn(f"wrote {what}", prefix="")
    else:
        emit(f"wrote {one_line(what)}\n")


def warn(message: str, prefix: str = "topocheck: ") -> None:
    """Print one line to standard error, whatever stands in it; where that is closed or full, nobody reads it."""
    from topocheck.render.quoting import one_line

    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"{prefix}{one_line(message)}", file=sys.stderr, flush=True)


def fail(message: str, code: int = EXIT_USAGE) -> NoReturn:
    """Print one line of error to standard error and exit."""
    warn(message)
    raise typer.Exit(code)


def deadline(seconds: float) -> float:
    """Return the seconds of `--deadline`.

    Raises:
        InputError: it is no time that a job could wait.
    """
    if not 0 < seconds <= 86400:
        raise InputError(f"--deadline {seconds:g}: expected seconds above 0 and up to 86400")
    return seconds


def choose(value: str, allowed: tuple[Choice, ...], option: str) -> Choice:
    """Return the one of `allowed` that `value` is.

    Raises:
        InputError: it is not; names what is, and the nearest of it.
    """
    found = next((a for a in allowed if a == value), None)
    if found is None:
        from difflib import get_close_matches

        near = get_close_matches(value[:100], allowed, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"{option} {value!r:.60}: expected one of {', '.join(allowed)}{hint}")
    return found


def by_comma(values: Sequence[str] | None) -> list[str]:
    """Return the values of an option that may be repeated, where one may also be a list by comma."""
    return [part.strip() for v in values or () for part in v.split(",")]


def on_terminal() -> bool:
    """Tell whether standard output is a terminal that somebody reads."""
    import os

    # Open MPI's mpirun gives its ranks a terminal of its own, wherever what they print goes in the end.
    launched = "OMPI_COMM_WORLD_RANK" in os.environ
    return sys.stdout is not None and sys.stdout.isatty() and not launched


def style(output: Path | None, no_color: bool, width: int) -> Style:
    """Return the layout for a page: the terminal's width or 80, colours only on a terminal that wants them."""
    import os
    import shutil

    from topocheck.render.page import Style

    terminal = output is None and on_terminal()
    colour = terminal and not no_color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    columns = width or (shutil.get_terminal_size((80, 24)).columns if terminal else 80)
    return Style(max(columns, 40), colour)


def check_writable(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, before the work whose result it is for.

    Raises:
        InputError: it cannot; names the option.
    """
    from topocheck.host.output import check_file

    try:
        check_file(path)
    except OutputError as e:
        raise InputError(f"{option} {e}") from None
