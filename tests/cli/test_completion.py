"""Completion by the shells themselves, and the man page by the programs that show it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.commands import Topocheck
from tests.conftest import require_program
from tests.support.printed import REPOSITORY
from tests.support.renew import RENEW
from tests.support.waiting import PATIENCE_S
from topocheck.cli.command_tree import commands
from topocheck.cli.completed_values import VALUES
from topocheck.cli.main import COMMANDS
from topocheck.cli.man_page import man_page

MAN = REPOSITORY / "docs" / "man" / "topocheck.1"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a program `topocheck`, and the script of each shell in `$SCRIPTS/SHELL`."""
    program = tmp_path / "bin" / "topocheck"
    program.parent.mkdir()
    code = 'import sys; sys.argv[0] = "topocheck"; from topocheck.cli.main import main; main()'
    program.write_text(f"#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -c '{code}' \"$@\"\n")
    program.chmod(0o755)
    env = {"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "TERM": "dumb", "SCRIPTS": str(tmp_path)}
    for shell in ("bash", "zsh", "fish"):
        text = subprocess.run([str(program), "completion", shell], env=env, capture_output=True, text=True, check=True)
        (tmp_path / shell).write_text(text.stdout)
    return env


def asked(argv: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["rep"], "report"),
        (["nccl", "pred"], "predict"),
        (["nccl", "predict", "--wh"], "--why"),
        (["report", "--smi"], "--smi-topo"),
        (["no-such-command", "x"], ""),
        ([""], " ".join(COMMANDS)),
        (["explain", "pcie.link-w"], "pcie.link-width"),
        (["report", "--section", "tr"], "tree"),
        (["report", "--section", "tree,nv"], "tree,nvlink"),
        (["nccl", "predict", "--format", ""], "text json html"),
        (["lab", "pa"], "parameter-server"),
        (["emit", "gres"], "gres-conf"),
    ],
)
def test_bash(line: list[str], expected: str, environment: dict[str, str]) -> None:
    words = " ".join(["topocheck", *(w or '""' for w in line)])
    script = (
        f'. "$SCRIPTS/bash"; COMP_WORDS=({words}); COMP_CWORD={len(line)}; '
        'complete -p topocheck >/dev/null && _topocheck_completion topocheck; echo "${COMPREPLY[*]}"'
    )
    assert asked(["bash", "--norc", "-c", script], environment) == f"{expected}\n"


@pytest.mark.service
def test_fish(environment: dict[str, str]) -> None:
    require_program("fish")
    script = 'source $SCRIPTS/fish; complete -C "topocheck rep"; complete -C "topocheck nccl predict --wh"'
    script += '; complete -C "topocheck report --section tr"'
    lines = asked(["fish", "--no-config", "-c", script], environment).splitlines()
    assert [line.split("\t")[0] for line in lines] == ["report", "--why", "tree"]


@pytest.mark.service
def test_zsh(environment: dict[str, str]) -> None:
    """Zsh completes on a terminal only: what it wrote there after a tab is read."""
    require_program("zsh")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve("/usr/bin/zsh", ["zsh", "-f", "-i"], environment)
    try:
        setup = 'autoload -Uz compinit; compinit -u; . "$SCRIPTS/zsh"; echo se""t\n'
        until_seen(terminal, setup, "set\r")
        until_seen(terminal, "topocheck nccl predict --wh\t", "--why")
        until_seen(terminal, "\x15topocheck explain pcie.link-w\t", "pcie.link-width")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def until_seen(terminal: int, typed: str, expected: str) -> None:
    os.write(terminal, typed.encode())
    seen, end = "", time.monotonic() + PATIENCE_S
    while expected not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"expected {expected!r} after {typed!r}: {seen!r}"
        seen += os.read(terminal, 4096).decode()


def test_values_are_of_parameters_that_are_there() -> None:
    """Each has a parameter, gives names, and no `--format` is without."""
    parameters = {(c.name, word) for c in commands() for p in c.parameters for word in p.names.replace(",", "").split()}
    assert set(VALUES) <= parameters
    assert {(c, n) for c, n in parameters if n == "--format"} <= set(VALUES)
    assert all(list(values()) for values in VALUES.values())


@pytest.mark.parametrize("command", sorted({c for c, n in VALUES if n == "--format"}))
def test_formats_that_are_completed_are_those_that_are_taken(command: str, topocheck: Topocheck) -> None:
    """The refusal of a wrong one lists them."""
    argument = {"diff": ["a", "b"], "fleet": ["a"], "lab": ["record"], "network fabric": ["a"], "nccl log": ["a"]}
    done = topocheck(*command.split(), *argument.get(command, []), "--format", "x")
    assert done.code == 2
    assert done.error.rstrip().endswith("expected one of " + ", ".join(VALUES[command, "--format"]()))


def test_an_unknown_shell_is_one_line() -> None:
    argv = [sys.executable, "-m", "topocheck", "completion", "tcsh"]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "topocheck: SHELL 'tcsh': expected one of bash, zsh, fish\n"


def test_the_man_page_is_that_of_the_help() -> None:
    assert MAN.read_text(encoding="utf-8") == man_page(), f"renew it: {RENEW}"


@pytest.mark.service
def test_the_man_page_by_mandoc_and_man() -> None:
    require_program("mandoc", "man")
    lint = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "error", str(MAN)], capture_output=True, text=True, check=False
    )
    assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")
    env = {"PATH": "/usr/bin:/bin", "MANWIDTH": "200", "LC_ALL": "C.UTF-8"}
    shown = subprocess.run(
        ["man", "--warnings", "-l", str(MAN)], env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    for command in commands():
        assert f"topocheck {command.name} {command.usage}".strip() in " ".join(shown.stdout.split())
