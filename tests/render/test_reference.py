"""The pages of docs/reference/ are those of the code, and say what is so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.printed import REPOSITORY, printed
from tests.support.renew import RENEW
from topocheck.cli.command_tree import commands
from topocheck.cli.main import COMMANDS
from topocheck.cli.reference import HOST_AT, PAGES

DOCS = REPOSITORY / "docs"
SNAP = "docs/examples/half_width.snap"
HOST = "hgx-h100-cx7"
GIVEN = {
    "report": f"report --from {SNAP}",
    "check": f"check --from {SNAP}",
    "bw": f"bw --plan --quick --from {SNAP}",
    "nccl env": f"nccl env --from {SNAP}",
    "nccl predict": f"nccl predict --from {SNAP}",
    "fleet": f"fleet {SNAP} tests/recordings/h100_x2_vm.snap",
    "diff": f"diff {SNAP} tests/recordings/h100_x2_vm.snap",
    "placement": f"placement --from {SNAP}",
}
"""Commands whose JSON can be had from a snapshot; the others measure, and their tests look at their documents."""


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_that_of_the_code(name: str) -> None:
    path = DOCS / "reference" / f"{name}.md"
    assert path.read_text(encoding="utf-8") == PAGES[name](), f"renew it: {RENEW}"


def test_every_command_is_there() -> None:
    names = [c.name for c in commands()]
    assert [n for n in names if " " not in n] == list(COMMANDS)
    assert {"nccl predict", "network bw", "snapshot save"} <= set(names)
    assert set(HOST_AT) - {"report --cluster"} <= set(names)


def found(document: Any, path: str) -> Iterator[Any]:
    """Yield what is at a path such as `.ranks[].host`."""
    head, _, rest = path.lstrip(".").partition(".")
    if not head:
        yield document
    elif head.endswith("[]"):
        for item in document[head[:-2]]:
            yield from found(item, rest)
    else:
        yield from found(document[head], rest)


@pytest.mark.parametrize("command", GIVEN)
def test_documents_begin_with_their_version_and_name_the_host(command: str) -> None:
    text = printed(f"{GIVEN[command]} --format json")
    document = json.loads(text)
    assert next(iter(document)) == "schema_version"
    assert re.fullmatch(r"[0-9]+\.[0-9]+", document["schema_version"])
    assert HOST in found(document, HOST_AT[command])


def test_every_policy_key_is_explained() -> None:
    page = (DOCS / "policy.md").read_text(encoding="utf-8")
    keys = re.findall(r"^\| `([^`]+)`", PAGES["policy_keys"](), re.MULTILINE)
    assert len(keys) >= 20
    explained = {
        k for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for k in re.findall(r"`([a-z0-9_]+)`", row)
    }
    assert {k.rpartition(".")[2] for k in keys} <= explained


def test_links_within_the_pages_lead_somewhere() -> None:
    page = PAGES["json"]()
    headings = {h.lower().replace(":", "").replace(" ", "-") for h in re.findall(r"^### (.*)", page, re.MULTILINE)}
    links = set(re.findall(r"\(#([^)]+)\)", page))
    assert links
    assert links <= headings
