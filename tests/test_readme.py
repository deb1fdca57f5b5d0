"""What the README and docs/ show as printed is what is printed."""

from __future__ import annotations

import pytest

from tests.support.printed import BLOCK, REPOSITORY, pages, printed, renewed, shown
from tests.support.renew import RENEW
from topocheck.cli.command_tree import commands

SHOWN = [(p.name, *m.groups()) for p in pages() for m in BLOCK.finditer(p.read_text(encoding="utf-8"))]

_OF_NO_MACHINE = ("explain ", "pcie ", "lab list", "integrations", "schema ")
_NOT_SHOWN = {
    "network bw": "measures between the nodes of a job",
    "snapshot save": "records this machine",
    "completion": "prints a script of a shell",
}


def test_every_command_has_a_printed_example() -> None:
    shown_ = [arguments for _, arguments, _ in SHOWN]
    leaves = [c.name for c in commands() if not c.is_group]
    without = {c for c in leaves if not any(a == c or a.startswith(f"{c} ") for a in shown_)}
    assert without == set(_NOT_SHOWN)


def test_the_first_screen_shows_what_the_tool_prints() -> None:
    assert [s[0] for s in SHOWN].count("README.md") == 2


@pytest.mark.parametrize(("file", "arguments", "output"), SHOWN, ids=[f"{s[0]}: {s[1]}" for s in SHOWN])
def test_it_is_printed(file: str, arguments: str, output: str) -> None:
    assert "--from" in arguments or "docs/" in arguments or arguments.startswith(_OF_NO_MACHINE), (
        f"{file} shows the output of a machine that nobody else has"
    )
    assert shown(arguments, output) == output, f"renew it: {RENEW}"


def test_the_picture_is_the_one_that_is_drawn() -> None:
    drawn = printed("report --from docs/examples/half_width.snap --format svg")
    assert (REPOSITORY / "docs/examples/half_width.svg").read_text(encoding="utf-8") == drawn, f"renew it: {RENEW}"
    assert "(docs/examples/half_width.svg)" in (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_a_page_is_renewed() -> None:
    page = "before\n```console\n$ topocheck pcie 4 16\nold\n```\nafter\n"
    said = printed("pcie 4 16")
    assert said.strip()
    assert renewed(page) == page.replace("old\n", said)


def test_a_block_that_ends_with_dots_shows_the_beginning() -> None:
    page = "```console\n$ topocheck pcie 4 16\nold\n...\n```\n"
    first = printed("pcie 4 16").splitlines()[0]
    assert renewed(page) == f"```console\n$ topocheck pcie 4 16\n{first}\n...\n```\n"
