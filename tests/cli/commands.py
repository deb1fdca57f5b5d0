"""Runs commands in this process, as the command line would."""

from __future__ import annotations

import re
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
        return Ran(result.exception.exit_code, result.output, str(result.exception))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.output)


Topocheck = Callable[..., Ran]
"""Runs a command line, given word by word, through `main` (the fixture `topocheck`)."""


def one_line(ran: Ran) -> bool:
    """Tell whether a command ended with one line of what is wrong and exit code 2."""
    said, *excerpt = ran.error.splitlines() or [""]
    return ran.code == 2 and said.startswith("topocheck: ") and all(re.match(r" +[0-9]* +\| ", x) for x in excerpt)
