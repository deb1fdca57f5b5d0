"""The command alone, as a program: what the tests start, with and without a GPU."""

from __future__ import annotations

import sys

APP = (
    "import sys, typer\n"
    "from topocheck.cli.bw import bw\n"
    "from topocheck.model.base import InputError\n"
    "app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)\n"
    "app.command()(bw)\n"
    "try:\n"
    "    app()\n"
    "except InputError as e:\n"
    "    print('topocheck:', e, file=sys.stderr)\n"
    "    sys.exit(2)\n"
)
ARGV = [sys.executable, "-c", APP]
