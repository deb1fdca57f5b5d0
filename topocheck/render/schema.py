"""JSON Schemas of topocheck's documents, made from the structs that write them (model/document.py).

`python -m topocheck.render.schema report > docs/schema/report.schema.json` renews the committed ones.
"""

from __future__ import annotations

import sys
from inspect import cleandoc
from typing import Any

import msgspec

from topocheck.model import document as doc
from topocheck.model.check_document import CheckRunDoc
from topocheck.model.version import SCHEMA_VERSION

DOCUMENTS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "report": (doc.ReportDoc, "topocheck report --format json"),
    "check": (CheckRunDoc, "topocheck check --format json"),
}
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(name: str) -> str:
    """Return the JSON Schema (draft 2020-12) of a document as indented text with a final newline.

    Args:
        name: a key of DOCUMENTS.

    Raises:
        KeyError: there is no such document.
    """
    kind, command = DOCUMENTS[name]
    made = _clean(msgspec.json.schema(kind))
    text = {
        "$schema": DIALECT,
        "title": command,
        "description": f"Schema version {SCHEMA_VERSION}. Fields may be added within a major version; "
        "none is renamed or removed. A field that could not be known is null, with its reason under its name in "
        "the sibling `missing`.",
        **made,
    }
    return msgspec.json.format(msgspec.json.encode(text, order="deterministic"), indent=2).decode() + "\n"


def _clean(part: Any) -> Any:
    """Return a schema whose descriptions are docstrings without their indents: not every msgspec takes them away."""
    if isinstance(part, dict):
        return {k: cleandoc(v) if k == "description" and isinstance(v, str) else _clean(v) for k, v in part.items()}
    return [_clean(p) for p in part] if isinstance(part, list) else part


if __name__ == "__main__":
    sys.stdout.write(schema(sys.argv[1]))
