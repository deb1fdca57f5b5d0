"""The outcome of `topocheck check` as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from topocheck.model.check_document import CheckDoc, CheckRunDoc
from topocheck.model.version import SCHEMA_VERSION, __version__
from topocheck.render.report_json import encode
from topocheck.render.report_json import finding as finding_doc

if TYPE_CHECKING:
    from topocheck.checks.result import Outcome


def check_json(outcome: Outcome) -> str:
    """Return the outcome as JSON."""
    return encode(
        CheckRunDoc(
            schema_version=SCHEMA_VERSION,
            topocheck_version=__version__,
            hostname=outcome.hostname or None,
            source=outcome.source,
            taken_at=outcome.taken_at,
            policy=msgspec.to_builtins(outcome.policy),
            state=outcome.state.value,
            exit_code=outcome.exit_code,
            findings=[finding_doc(f) for f in outcome.findings],
            checks=[
                CheckDoc(id=r.id, scope=r.scope, state=r.state.value, subjects=list(r.subjects), detail=r.detail)
                for r in outcome.results
            ],
        )
    )
