"""The page of checks names everything; the policy's page names every setting."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from tests.support.renew import RENEW
from topocheck.checks import all_checks
from topocheck.cli.checks_page import checks_page
from topocheck.policy.load import parse
from topocheck.policy.types import CheckPolicy, Expect, Policy
from topocheck.render.formats import FORMATS

DOCS = Path(__file__).parents[2] / "docs"


def test_names_every_check_with_its_explanation() -> None:
    page = checks_page(all_checks())
    headings = re.findall(r"^### (\S+)$", page, re.M)
    assert headings == sorted(c.id for c in all_checks())
    for c in all_checks():
        assert c.title in page
    for name in FORMATS:
        assert f"| `{name}` |" in page


def test_committed_page_is_what_the_registry_makes() -> None:
    assert (DOCS / "checks.md").read_text() == checks_page(all_checks()), f"renew it: {RENEW}"


def test_names_the_thresholds_of_a_check() -> None:
    page = checks_page(all_checks())
    section = page.split("### limits.nofile\n")[1].split("\n### ")[0]
    assert section.endswith("Thresholds of the policy: `warn_below`, `note_below`\n")


def test_links_of_the_table_lead_to_headings() -> None:
    page = checks_page(all_checks())
    anchors = {h.lower().replace(".", "") for h in re.findall(r"^### (\S+)$", page, re.M)}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) == anchors


@pytest.mark.parametrize("kind", [Policy, CheckPolicy, Expect], ids=lambda k: k.__name__)
def test_policy_page_names_every_setting(kind: type[msgspec.Struct]) -> None:
    page = (DOCS / "policy.md").read_text()
    for name in kind.__struct_fields__:
        if (kind, name) != (Policy, "source"):  # the reader's own mark, not a setting
            assert f"`{name}`" in page, name


def test_examples_of_the_policy_page_are_policies() -> None:
    examples = re.findall(r"```toml\n(.*?)```", (DOCS / "policy.md").read_text(), re.S)
    assert len(examples) >= 3
    ids = [c.id for c in all_checks()]
    said = set()
    for text in examples:
        parse(text.encode(), "docs/policy.md", ids)
        said |= set(tomllib.loads(text).get("expect", {}))
    assert said == set(Expect.__struct_fields__)
