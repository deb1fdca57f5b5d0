"""The values that a shell completes: those of arguments and options that are names known beforehand."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Values = Callable[[], Iterable[str]]


def _of(module: str, name: str) -> Values:
    """Return what gives a vocabulary of a module, which is loaded when a shell asks for it."""
    return lambda: tuple(getattr(importlib.import_module(f"topocheck.{module}"), name))


def _check_ids() -> Iterator[str]:
    from topocheck.checks import all_checks

    ids = sorted(c.id for c in all_checks())
    yield from ids
    yield from sorted({f"{i.partition('.')[0]}.*" for i in ids})


def _explained() -> Iterator[str]:
    yield from ("list", "formats", "strategies")
    yield from (i for i in _check_ids() if not i.endswith("*"))


def _labs() -> Iterator[str]:
    from topocheck.bandwidth.lab_catalogue import BY_NAME

    yield "list"
    yield from BY_NAME


def _integrations() -> Iterable[str]:
    from topocheck.cli.integrations import _files

    return sorted(_files())


def _text_json() -> Iterable[str]:
    return "text", "json"


_BACKENDS = _of("bandwidth.collective_plan", "BACKENDS")
_COLLECTIVES = _of("bandwidth.collective_plan", "COLLECTIVES")

VALUES: dict[tuple[str, str], Values] = {
    ("report", "--section"): _of("cli.report", "SECTIONS"),
    ("report", "--format"): _of("cli.report_formats", "FORMATS"),
    ("check", "--only"): _check_ids,
    ("check", "--skip"): _check_ids,
    ("check", "--format"): _of("render.formats", "NAMES"),
    ("check", "--scope"): lambda: ("auto", "all", "node", "process"),
    ("check", "--on-unknown"): lambda: ("pass", "fail"),
    ("watch", "--format"): _of("cli.watch", "FORMATS"),
    ("explain", "ID"): _explained,
    ("bw", "--format"): _of("cli.bw", "FORMATS"),
    ("bw", "--engine"): lambda: ("driver", "torch", "both"),
    ("bw", "--budget"): lambda: ("quick", "standard", "full"),
    ("bw", "--allocator"): lambda: ("torch", "nccl"),
    ("bw", "--dtype"): _of("bandwidth.collective_sizes", "DTYPES"),
    ("bw", "--backend"): _BACKENDS,
    ("bw", "--collective"): _COLLECTIVES,
    ("network bw", "--format"): _of("cli.network", "FORMATS"),
    ("network bw", "--transport"): lambda: ("tcp", *_of("tests_live.nodes.agent", "TRANSPORTS")()),
    ("network fabric", "--format"): _of("cli.fabric", "FORMATS"),
    ("nccl env", "--format"): _text_json,
    ("nccl topo", "--format"): _text_json,
    ("nccl predict", "--format"): lambda: ("text", "json", "html"),
    ("nccl log", "--format"): _text_json,
    ("fleet", "--format"): _of("cli.fleet", "FORMATS"),
    ("scale", "--format"): _of("cli.scale", "FORMATS"),
    ("scale", "--backend"): _BACKENDS,
    ("scale", "--collective"): _COLLECTIVES,
    ("scale", "--hooks"): lambda: ("usual", "all", "none", *_of("tests_live.launch.training_job", "HOOKS")()),
    ("lab", "NAME"): _labs,
    ("lab", "--format"): _of("cli.lab", "FORMATS"),
    ("lab", "--backend"): _BACKENDS,
    ("diff", "--format"): _of("cli.diff", "FORMATS"),
    ("placement", "--format"): _of("cli.placement", "FORMATS"),
    ("placement", "--launcher"): _of("placement.launch", "LAUNCHERS"),
    ("emit", "KIND"): _of("cli.emit", "_KINDS"),
    ("schema", "NAME"): _of("render.schema", "DOCUMENTS"),
    ("integrations", "NAME"): _integrations,
    ("completion", "SHELL"): _of("cli.completion", "SHELLS"),
}
"""(command, option or metavar of an argument) -> its values. Files are completed by the shell itself."""


def attach(command: Any, path: str = "") -> None:
    """Give each parameter of a command, and of those below it, the values that a shell completes.

    Args:
        command: the program's command as typer makes it.
        path: names of the commands above and of itself, without the program's.
    """
    for p in command.params:
        for name in (*p.opts, str(p.metavar or "")):
            if (path, name) in VALUES:
                p._custom_shell_complete = _completer(VALUES[path, name])
    for name, below in getattr(command, "commands", {}).items():
        attach(below, f"{path} {name}".strip())


def _completer(values: Values) -> Callable[[Any, Any, str], list[str]]:
    def complete(context: Any, parameter: Any, incomplete: str) -> list[str]:
        # A list by comma goes on after its last comma.
        before, comma, begun = incomplete.rpartition(",")
        return [before + comma + v for v in values() if v.startswith(begun)]

    return complete
