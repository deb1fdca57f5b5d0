"""Runs commands in this process, as the command line would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import typer
from typer.testing import CliRunner

from topocheck.model.base import InputError


class Ran(msgspec.Struct, frozen=True):
    """What a command did: exit code, standard output, and the error a user would read."""

    code: int
    out: str
    error: str = ""


def run(function: Callable[..., Any], *args: object) -> Ran:
    """Run one command with arguments."""
    app = typer.Typer(rich_markup_mode=None)
    app.command()(function)
    result = CliRunner().invoke(app, [str(a) for a in args])
    if isinstance(result.exception, InputError):
        return Ran(2, result.output, str(result.exception))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.output)
