"""Renew every page and schema that is made from the code: `python -m tests.support.renew`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.support import printed, python_examples, rooms, snapshots_page, validation_page
from topocheck.checks import all_checks
from topocheck.cli.checks_page import checks_page
from topocheck.cli.man_page import man_page
from topocheck.cli.reference import PAGES
from topocheck.render import schema

RENEW = "python -m tests.support.renew"
ROOT = Path(__file__).parents[2]


def made() -> Iterator[tuple[Path, str]]:
    """Yield each file with what it should hold; examples come last, since they run the commands."""
    yield ROOT / "docs" / "checks.md", checks_page(all_checks())
    yield ROOT / "docs" / "man" / "topocheck.1", man_page()
    for name, page in PAGES.items():
        yield ROOT / "docs" / "reference" / f"{name}.md", page()
    for path in sorted((ROOT / "docs" / "schema").glob("*.schema.json")):
        yield path, schema.schema(path.name.removesuffix(".schema.json"))
    for module in (rooms, snapshots_page, validation_page, python_examples):
        yield module.PAGE, module.renewed(module.PAGE.read_text(encoding="utf-8"))
    drawing = "docs/examples/half_width"
    yield ROOT / f"{drawing}.svg", printed.printed(f"report --from {drawing}.snap --format svg")
    for path in printed.pages():
        yield path, printed.renewed(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for path, text in made():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"renewed {path.relative_to(ROOT)}")
