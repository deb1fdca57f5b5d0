"""`topocheck integrations`: the files for schedulers, monitors and Kubernetes that come with topocheck."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from topocheck.cli import common
from topocheck.model.base import InputError

_BESIDE_THE_PACKAGE = ("integrations", "../integrations")
"""From the package's folder: where the wheel has them, and where the checkout has them."""


def integrations(
    name: Annotated[
        Optional[str],  # noqa: UP045 - typer reads the annotation at run time
        typer.Argument(metavar="NAME", help="The file to print (slurm/prolog.sh); default: the list."),
    ] = None,
    folder: Annotated[bool, typer.Option("--folder", help="Print the folder that they are in.")] = False,
    output: common.Output = None,
) -> None:
    """List the files for schedulers, monitors and Kubernetes, or print one of them."""
    files = _files()
    if folder:
        if name is not None:
            raise InputError(f"--folder prints where all files are: leave out {name}")
        common.emit(f"{_folder()}\n", output)
    elif name is None:
        common.emit("".join(f"{n}\n" for n in files), output)
    elif name in files:
        common.emit(files[name].read_text(encoding="utf-8"), output)
    else:
        from difflib import get_close_matches

        near = get_close_matches(name[:100], files, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"no file {name!r:.100}{hint} (topocheck integrations lists all)")


def _folder() -> Path:
    package = Path(__file__).parents[1]
    found = next((f for n in _BESIDE_THE_PACKAGE if (f := (package / n).resolve()).is_dir()), None)
    if found is None:
        raise InputError("the integrations are not part of this installation; they are in the source distribution")
    return found


def _files() -> dict[str, Path]:
    """Return the name of each file (`slurm/prolog.sh`) with its path, in order."""
    folder = _folder()
    return {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != "README.md"}
