"""`--curve FILE` of `scale` and `lab`: which names it takes, and the writing of the picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Optional

import typer

from topocheck.cli import common
from topocheck.host.output import write_file
from topocheck.model.base import InputError

Curve = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--curve", metavar="FILE", help="Draw the curves: .svg or .png."),
]


def check_files(output: Path | None, path: Path | None) -> None:
    """Refuse `--output` and `--curve` that could not be written after the run.

    Raises:
        InputError: another ending, no matplotlib for a PNG, or a path that cannot be written to.
    """
    from importlib.util import find_spec

    if output is not None:
        common.check_writable(output, "--output")
    if path is None:
        return
    common.check_writable(path, "--curve")
    if path.suffix not in (".svg", ".png"):
        raise InputError(f"--curve {path}: expected a name that ends in .svg or .png")
    if path.suffix == ".png" and find_spec("matplotlib") is None:
        raise InputError(f"--curve {path}: a PNG needs matplotlib: pip install matplotlib, or ask for .svg")


def draw(path: Path, svg: Callable[[], str], png: Callable[[], bytes]) -> None:
    """Write the picture in the form of the file's ending."""
    if path.suffix == ".svg":
        common.emit(svg(), path)
        return
    try:
        picture = png()
    except ImportError as e:
        raise InputError(f"--curve {path}: matplotlib cannot be loaded ({e}); ask for .svg") from None
    write_file(path, picture)
