"""SARIF 2.1.0 (OASIS Static Analysis Results Interchange Format), for code hosts that show such files.

`fail` is level error, `warn` and `unknown` are warning, `note` is note. A location is the file that the evidence
quotes, as a `file:` URI with the node's name; what has no file has a logical location.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from topocheck.model.base import Finding, State
from topocheck.model.version import __version__
from topocheck.render.quoting import json_text

if TYPE_CHECKING:
    from topocheck.checks.result import Outcome
    from topocheck.pipeline import Report

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {State.FAIL: "error", State.WARN: "warning", State.UNKNOWN: "warning", State.NOTE: "note"}


def render(outcome: Outcome, report: Report) -> str:
    """Return the log as indented JSON."""
    ids = sorted({r.id for r in outcome.results} | {f.id for f in outcome.findings})
    known = outcome.checks
    rules = [_rule(i, known[i].title, LEVELS.get(known[i].severity, "none")) for i in ids if i in known]
    index = {rule["id"]: n for n, rule in enumerate(rules)}
    invocation: dict[str, Any] = {"executionSuccessful": not outcome.required_unknown, "exitCode": outcome.exit_code}
    if outcome.taken_at:
        invocation["endTimeUtc"] = outcome.taken_at
    if outcome.hostname:
        invocation["machine"] = outcome.hostname
    notifications = [("warning", n) for n in outcome.notices]
    notifications += [("error", f"required, and could not be determined: {t}") for t in outcome.required_unknown]
    if notifications:
        invocation["toolExecutionNotifications"] = [{"level": v, "message": {"text": t}} for v, t in notifications]
    driver = {"name": "topocheck", "version": __version__, "rules": rules}
    results = [_result(f, index) for f in outcome.findings if f.state in LEVELS]
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json_text(log)


def _rule(id_: str, title: str, level: str) -> dict[str, Any]:
    return {
        "id": id_,
        "shortDescription": {"text": title},
        "help": {"text": f"topocheck explain {id_}"},
        "defaultConfiguration": {"level": level},
    }


def _result(f: Finding, index: dict[str, int]) -> dict[str, Any]:
    sentences = [f.title]
    sentences += [f.consequence] if f.consequence else []
    sentences += [f"fix: {f.fix}"] if f.fix else []
    files = list(dict.fromkeys(e.source for e in f.evidence if e.source.startswith("/")))
    locations: list[dict[str, Any]] = [
        {"physicalLocation": {"artifactLocation": {"uri": "file://" + quote(path, safe="/:")}}} for path in files[:1]
    ]
    logical = [{"fullyQualifiedName": f.subject, "kind": "resource"}]
    locations = [{**locations[0], "logicalLocations": logical}] if locations else [{"logicalLocations": logical}]
    result: dict[str, Any] = {
        "ruleId": f.id,
        "level": LEVELS[f.state],
        "message": {"text": "; ".join(sentences)},
        "locations": locations,
        "relatedLocations": [
            {"id": n, "physicalLocation": {"artifactLocation": {"uri": "file://" + quote(path, safe="/:")}}}
            for n, path in enumerate(files[1:], start=1)
        ],
        "partialFingerprints": {"subject/v1": f"{f.id} {f.subject}"},
        "properties": {
            "state": f.state.value,
            "subject": f.subject,
            "rule": f.rule,
            "evidence": [{"source": e.source, "raw": e.raw} for e in f.evidence],
        },
    }
    if f.id in index:
        result["ruleIndex"] = index[f.id]
    return result
