"""JUnit XML: one test case per check and subject.

A failure is `failure`, an unknown is `error` (a skipped case would look green), not applicable is `skipped`.
Warnings and notes pass and stand in the case's output; under --strict a warning is a failure.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from topocheck.model.base import Finding, State
from topocheck.render.quoting import xml_text
from topocheck.render.words import evidence_line

if TYPE_CHECKING:
    from topocheck.checks.result import Outcome
    from topocheck.pipeline import Report

REQUIRED = "topocheck.required"
"""Class name of the cases for what the policy requires and nobody could tell."""


def render(outcome: Outcome, report: Report) -> str:
    """Return the document."""
    from xml.etree import ElementTree

    import junitparser as ju

    suite = ju.TestSuite("topocheck")
    if outcome.hostname:
        suite.hostname = xml_text(outcome.hostname)
    if outcome.taken_at:
        suite.timestamp = xml_text(outcome.taken_at.removesuffix("Z"))
    suite.add_property("policy", xml_text(outcome.policy.source))
    suite.add_property("source", xml_text(outcome.source))
    for notice in outcome.notices:
        suite.add_property("notice", xml_text(notice))
    names: Counter[tuple[str, str]] = Counter()
    found = {f.id for f in outcome.findings}
    for f in outcome.findings:
        names[f.id, f.subject] += 1
        n = names[f.id, f.subject]
        case = _case(ju, f.subject if n == 1 else f"{f.subject} ({n})", f.id)
        _judge(ju, case, f, strict=outcome.policy.strict)
        suite.add_testcase(case)
    for r in outcome.results:
        if r.id in found:
            continue
        case = _case(ju, "node", r.id)
        if r.state is State.NOT_APPLICABLE:
            case.result = [ju.Skipped(xml_text(r.detail))]
        elif r.state is State.UNKNOWN:
            case.result = [ju.Error(xml_text(r.detail), "unknown")]
        suite.add_testcase(case)
    for text in outcome.required_unknown:
        case = _case(ju, text, REQUIRED)
        case.result = [ju.Error(xml_text(text), "unknown")]
        suite.add_testcase(case)
    xml = ju.JUnitXml("topocheck")
    xml.add_testsuite(suite)
    xml.update_statistics()
    root = ElementTree.fromstring(xml.tostring())
    root.attrib.pop("skipped", None)  # not among a testsuites' attributes in the schemas that readers follow
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(ju: Any, name: str, check_id: str) -> Any:
    return ju.TestCase(xml_text(name), xml_text(check_id), 0.0)


def _judge(ju: Any, case: Any, f: Finding, *, strict: bool) -> None:
    parts = [
        *([f.consequence] if f.consequence else []),
        *(evidence_line(e) for e in f.evidence),
        *([f"rule: {f.rule}"] if f.rule else []),
        *([f"fix: {f.fix}"] if f.fix else []),
    ]
    if f.state is State.FAIL or (strict and f.state is State.WARN):
        result = ju.Failure(xml_text(f.title), f.state.value)
    elif f.state is State.UNKNOWN:
        result = ju.Error(xml_text(f.title), "unknown")
    else:
        case.system_out = "\n".join(map(xml_text, (f"{f.state.value}: {f.title}", *parts)))
        return
    result.text = "\n".join(map(xml_text, parts))
    case.result = [result]
