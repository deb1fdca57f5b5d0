"""Words that no reader meets: in messages, help, docstrings and pages stand the words of the trade."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from topocheck.model import old_names

ROOT = Path(__file__).parents[1]
GONE = re.compile(
    r"\b(?:roads?|mend(?:s|ed|ing)?|wires|for want of|beside what|roll call|is told|are told|be told"
    r"|keeper|without a word|GB/s a direction|where left out|tells? no|takes? care|hardly)\b",
    re.IGNORECASE,
)
"""Foreign idiom: path or link, fix, links, for lack of, against what, reported, administrator, silently, per direction,
default, reports no, caution, barely."""
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if "measurements" not in p.parts),
]


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _found(text: str) -> list[str]:
    return [" ".join(text[max(m.start() - 30, 0) : m.end() + 20].split()) for m in GONE.finditer(text)]


def test_the_rule_finds_what_it_is_about() -> None:
    assert _found("a road that this machine has is not used")
    assert _found("GPUs, NICs and the wires between them")
    assert _found("not judged, for want of an answer")
    assert not _found("broadcast, railroad, amended, wired to switch 3")


@pytest.mark.parametrize("folder", sorted(p.name for p in (ROOT / "topocheck").iterdir() if p.is_dir()))
def test_no_string_of_the_code_has_them(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in sorted((ROOT / "topocheck" / folder).rglob("*.py"))
        for line, text in _strings(ast.parse(path.read_text(encoding="utf-8")))
        for words in _found(text)
        if text not in old_names.CHECKS
    ]
    assert not found, "\n".join(found)


def test_no_table_of_the_code_has_them() -> None:
    paths = sorted((ROOT / "topocheck" / "knowledge" / "data").glob("*.tsv"))
    assert paths
    assert not [f"{p.name}: {w}" for p in paths for w in _found(p.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_page_has_them(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    # The page on moving lists the old names, as code.
    assert not _found(re.sub(r"`[^`]*`", "", text) if path.name == "moving_from_0.1.md" else text)
