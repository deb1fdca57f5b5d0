"""`topocheck completion`: the script by which a shell completes commands and options."""

from __future__ import annotations

from typing import Annotated

import typer

from topocheck.cli import common

SHELLS = ("bash", "zsh", "fish")


def completion(shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish")]) -> None:
    """Print the completion script of a shell.

    bash: topocheck completion bash > ~/.local/share/bash-completion/completions/topocheck

    zsh: topocheck completion zsh > ~/.zfunc/_topocheck, with `fpath+=~/.zfunc` before compinit in ~/.zshrc

    fish: topocheck completion fish > ~/.config/fish/completions/topocheck.fish
    """
    from typer._completion_shared import get_completion_script

    from topocheck.cli.main import COMPLETE

    common.choose(shell, SHELLS, "SHELL")
    common.emit(get_completion_script(prog_name="topocheck", complete_var=COMPLETE, shell=shell) + "\n")
