"""`topocheck schema`: the JSON Schema of what `--format json` prints."""

from __future__ import annotations

from typing import Annotated

import typer

from topocheck.cli import common


def schema(name: Annotated[str, typer.Argument(metavar="NAME", help="report or check")]) -> None:
    """Print the JSON Schema of a document, for programs that read `--format json`."""
    from topocheck.render.schema import DOCUMENTS
    from topocheck.render.schema import schema as text

    common.choose(name, tuple(DOCUMENTS), "NAME")
    common.emit(text(name))
