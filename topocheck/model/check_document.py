"""The JSON of `topocheck check` as other programs read it; for its names holds what holds for the report's."""

from __future__ import annotations

from typing import Any

import msgspec

from topocheck.model.document import FindingDoc


class CheckDoc(msgspec.Struct, kw_only=True):
    """How one check went."""

    id: str
    scope: str
    state: str
    subjects: list[str] = []
    detail: str = ""


class CheckRunDoc(msgspec.Struct, kw_only=True):
    """The document of `topocheck check` and `topocheck watch`."""

    schema_version: str
    topocheck_version: str
    hostname: str | None = None
    source: str
    taken_at: str
    policy: dict[str, Any]
    state: str
    exit_code: int
    findings: list[FindingDoc]
    checks: list[CheckDoc]
