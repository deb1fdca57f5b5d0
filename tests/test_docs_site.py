"""The documentation site: it builds without a warning, and the links of all other pages lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from tests.support.printed import REPOSITORY
from tests.support.waiting import PATIENCE_S
from topocheck.cli import old_names as cli_names
from topocheck.model import old_names

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
OUTSIDE = [
    REPOSITORY / n for n in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "integrations/README.md")
]
"""Pages that the site does not have; MkDocs checks those that it has."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    env = dict(os.environ, NO_MKDOCS_2_WARNING="1")
    done = subprocess.run(
        argv, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    # Warnings are on standard error: a link or anchor that leads nowhere, a page that no menu has.
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
def test_it_has_every_page_and_fetches_nothing(site: Path) -> None:
    pages = [p.relative_to(REPOSITORY / "docs") for p in (REPOSITORY / "docs").rglob("*.md")]
    assert len(pages) >= 50
    for page in pages:
        folder = page.parent if page.stem in ("index", "README") else page.with_suffix("")
        html = (site / folder / "index.html").read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=\"?(https?://[^\"\s>]+)", html)
        assert not fetched, page


def anchors(page: Path) -> set[str]:
    """Return the anchors that Markdown renderers give the headings of a page."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        plain = unicodedata.normalize("NFKD", heading.replace("`", "")).lower()
        found.add(re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip()))
    return found


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_links_of_pages_outside_the_site(page: Path) -> None:
    links = [x for x in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in x]
    assert links or page.name == "SECURITY.md"
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


SCHEDULERS = ("slurm", "pbs", "lsf", "kubernetes", "node_problem_detector", "nhc", "prometheus")


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_how_to_says_how_to_install_try_and_watch_it(name: str) -> None:
    page = (REPOSITORY / "docs" / "howto" / f"{name}.md").read_text(encoding="utf-8")
    for words in ("Install it for the whole node", "Try it", "Where failures are visible", "topocheck check"):
        assert words in page or (words, name) == ("topocheck check", "lsf"), words
    named = set(re.findall(r"\$(?:F|\(topocheck integrations --folder\))/([\w./-]+)", page))
    named |= set(re.findall(r"topocheck integrations ([a-z]+/[\w.-]+)", page))
    assert named
    assert all((REPOSITORY / "integrations" / n).is_file() for n in named)


def test_old_names_are_in_the_page_on_moving() -> None:
    page = (REPOSITORY / "docs" / "moving_from_0.1.md").read_text(encoding="utf-8")
    for old, new in old_names.CHECKS.items():
        assert f"| check | `{old}` | `{new}` |" in page
    for renamed in cli_names.OPTIONS.values():
        for old, new in renamed.items():
            assert f"| `{old}` | `{new}` |" in page
