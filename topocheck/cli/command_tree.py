"""All commands with their options, as `--help` has them: the man page and the reference are made from it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from typer.core import TyperGroup


class Parameter(msgspec.Struct, frozen=True):
    """An argument (its `names` is the metavar) or an option (`--output, -o FILE`), and what it does."""

    names: str
    text: str
    is_option: bool


class Command(msgspec.Struct, frozen=True):
    """One command. `name` is the whole of it (`nccl predict`), `usage` what follows the program's name.

    Attributes:
        line: what the list of commands says of it; `text` is its own help, in paragraphs.
        is_group: it has commands of its own, which follow it.
    """

    name: str
    usage: str
    line: str
    text: str
    parameters: tuple[Parameter, ...]
    is_group: bool


def commands() -> Iterator[Command]:
    """Yield every command in the order of `--help`; all of them are loaded for this."""
    from typer._click import Context
    from typer.main import get_command

    from topocheck.cli.main import COMMANDS, make_app

    for name, (_, line) in COMMANDS.items():
        root: Any = get_command(make_app(name))
        context = Context(root, info_name="topocheck")
        yield from _below(root.commands[name], name, line, context)


def _below(command: Any, name: str, line: str, parent: Any) -> Iterator[Command]:
    from typer._click import Context

    context = Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    members: dict[str, TyperGroup] = getattr(command, "commands", {})
    yield Command(
        name=name,
        usage=" ".join(command.collect_usage_pieces(context)),
        line=line or command.get_short_help_str(limit=100),
        text=inspect.cleandoc(command.help or line),
        parameters=tuple(_parameters(command, context)),
        is_group=bool(members),
    )
    for member, below in members.items():
        yield from _below(below, f"{name} {member}", "", context)


def _parameters(command: Any, context: Any) -> Iterator[Parameter]:
    for p in command.get_params(context):
        record = p.get_help_record(context)
        is_option = p.param_type_name == "option"
        if record is None or p.name == "help":
            continue
        names, text = record
        yield Parameter(" ".join(names.split()), " ".join(text.split()), is_option)
