"""JUnit, SARIF, node-feature-discovery: the documents, read by somebody else's reader or rule."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

import junitparser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.render.formats.made import NOTE, UNSURE, WARNING, WIDTH, half_report, outcome, report
from topocheck.model.base import Evidence, Finding, State
from topocheck.render.formats import junit, nfd, sarif
from topocheck.render.quoting import kubernetes_label

ALL = (WIDTH, WARNING, UNSURE, NOTE)


def test_junit_by_two_readers() -> None:
    said = junit.render(outcome(*ALL, cannot_tell=["probe nvml: timed out"]), report())
    root = ElementTree.fromstring(said)
    (suite,) = root
    # 4 findings, one check that is well, one that does not apply, one required thing that is unknown.
    assert [suite.get(k) for k in ("tests", "failures", "errors", "skipped")] == ["7", "1", "2", "1"]
    kinds = {
        (case.get("classname"), case.get("name")): [c.tag for c in case if c.tag != "system-out"]
        for case in suite.iter("testcase")
    }
    assert kinds["pcie.link-width", "0000:5c:00.0 GPU3"] == ["failure"]
    assert kinds["p2p.acs-redirect", "GPU0 -> GPU1"] == ["error"]
    assert kinds["numa.node-missing", "node"] == []
    assert kinds["p2p.mig", "node"] == ["skipped"]
    assert kinds["pcie.aer-errors", "node"] == []
    assert kinds[junit.REQUIRED, "probe nvml: timed out"] == ["error"]
    again = junitparser.JUnitXml.fromstring(said.encode())
    assert (again.tests, again.failures, again.errors) == (7, 1, 2)


def test_junit_structure_is_that_of_the_jenkins_schema() -> None:
    root = ElementTree.fromstring(junit.render(outcome(*ALL), report()))
    assert root.tag == "testsuites"
    assert set(root.attrib) <= {"name", "time", "tests", "failures", "errors"}
    for suite in root:
        assert {"name", "tests", "failures", "errors", "time", "timestamp", "hostname"} <= set(suite.attrib)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
        assert next(c.tag for c in suite) == "properties"
        for case in suite.iter("testcase"):
            assert {"classname", "name", "time"} <= set(case.attrib)
            assert {c.tag for c in case} <= {"skipped", "error", "failure", "system-out"}


def test_junit_strict_fails_warnings() -> None:
    root = ElementTree.fromstring(junit.render(outcome(WARNING, strict=True), report()))
    assert root.get("failures") == "1"


def test_junit_names_are_unique() -> None:
    root = ElementTree.fromstring(junit.render(outcome(WIDTH, WIDTH), report()))
    names = [(c.get("classname"), c.get("name")) for c in root.iter("testcase")]
    assert len(names) == len(set(names))


@given(st.text(), st.text(), st.text())
def test_junit_is_xml_whatever_the_machine_says(title: str, subject: str, raw: str) -> None:
    f = Finding(
        id="pcie.link-width", state=State.FAIL, subject=subject, title=title, evidence=(Evidence("/sys/x", raw),)
    )
    ElementTree.fromstring(junit.render(outcome(f), report()).encode("utf-8"))


# What SARIF 2.1.0 requires of the objects used here: section -> (property, type).
def check_sarif(log: dict[str, Any]) -> None:
    assert log["version"] == "2.1.0"  # 3.13.2
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    for run in log["runs"]:
        driver = run["tool"]["driver"]  # 3.18.2
        assert driver["name"]  # 3.19.8
        ids = [rule["id"] for rule in driver["rules"]]  # 3.49.3
        assert len(ids) == len(set(ids))
        for rule in driver["rules"]:
            assert rule["shortDescription"]["text"]  # 3.12.3
            assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
        for invocation in run["invocations"]:
            assert isinstance(invocation["executionSuccessful"], bool)  # 3.20.14
            for n in invocation.get("toolExecutionNotifications", []):
                assert n["message"]["text"]  # 3.58.5
        for result in run["results"]:
            assert result["message"]["text"]  # 3.27.11
            assert result["level"] in ("none", "note", "warning", "error")  # 3.27.10
            if "ruleIndex" in result:
                assert ids[result["ruleIndex"]] == result["ruleId"]  # 3.27.6
            for place in [*result["locations"], *result["relatedLocations"]]:
                if "physicalLocation" in place:
                    uri = place["physicalLocation"]["artifactLocation"]["uri"]
                    assert re.fullmatch(r"file:///[A-Za-z0-9._~%:/!$&'()*+,;=@-]+", uri)  # RFC 3986
            related = [r["id"] for r in result["relatedLocations"]]
            assert len(related) == len(set(related))  # 3.28.2
            assert all(r >= 0 for r in related)


def test_sarif() -> None:
    log = json.loads(sarif.render(outcome(*ALL, cannot_tell=["probe nvml"], notices=["a note"]), report()))
    check_sarif(log)
    (run,) = log["runs"]
    assert [(r["ruleId"], r["level"]) for r in run["results"]] == [
        ("pcie.link-width", "error"),
        ("p2p.acs-redirect", "warning"),
        ("numa.node-missing", "warning"),
        ("numa.nps", "note"),
    ]
    place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert place == "file:///sys/bus/pci/devices/0000:5c:00.0/current_link_width"
    assert run["invocations"][0]["executionSuccessful"] is False
    assert len(run["invocations"][0]["toolExecutionNotifications"]) == 2


@given(st.text(min_size=1), st.text())
def test_sarif_whatever_the_machine_says(title: str, path: str) -> None:
    f = Finding(id="x.y", state=State.WARN, subject="s", title=title, evidence=(Evidence("/sys/" + path, ""),))
    check_sarif(json.loads(sarif.render(outcome(f), report())))


# node-feature-discovery, "Local feature source": namespace/name=value; Kubernetes: label values.
_FEATURE = re.compile(r"topocheck\.io/[a-z][a-z0-9.]*=([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)")


@pytest.mark.parametrize("name", ["hgx_h100_cx7", "laptop", "mi300x_x8", "no_pci", "l40s_x8", "dgx2"])
def test_nfd_lines(name: str) -> None:
    said = nfd.render(outcome(on=report(name)), report(name))
    assert len(said.encode()) < 64_000
    for line in said.splitlines():
        assert _FEATURE.fullmatch(line), line


def test_nfd_values() -> None:
    good = nfd.labels(outcome(), report())
    assert (good["health"], good["pcie"], good["p2p"], good["gpu.count"]) == ("ok", "ok", "full", "8")
    bad = nfd.labels(outcome(WIDTH), half_report())
    assert (bad["health"], bad["pcie"]) == ("failed", "failed")
    assert nfd.labels(outcome(UNSURE), report())["pcie"] == "ok"
    assert nfd.labels(outcome(cannot_tell=["probe pci"]), report())["pcie"] == "unknown"


def test_nfd_fingerprint_is_that_of_the_wiring() -> None:
    assert nfd.fingerprint(report()) == nfd.fingerprint(half_report())
    assert nfd.fingerprint(report()) != nfd.fingerprint(report("dgx_a100"))


@given(st.text())
def test_nfd_value(text: str) -> None:
    assert _FEATURE.fullmatch(f"topocheck.io/x={kubernetes_label(text)}")
