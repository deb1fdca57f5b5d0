"""The committed schemas are those of the code, and what is printed follows them."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import topocheck
from tests.machines.builder import machine
from tests.support.renew import RENEW
from topocheck.checks.result import conclude
from topocheck.pipeline import build_report
from topocheck.policy.types import Policy
from topocheck.render.check_json import check_json
from topocheck.render.report_json import encode, report_document
from topocheck.render.schema import DOCUMENTS, schema

COMMITTED = Path(__file__).parents[2] / "docs" / "schema"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_committed_schema_is_what_the_code_makes(name: str) -> None:
    path = COMMITTED / f"{name}.schema.json"
    assert path.read_text() == schema(name), f"renew it: {RENEW}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(schema(name)))


@pytest.mark.parametrize("name", ["hgx_h100_cx7", "laptop", "gpu_lost", "azure_ndv4_vm", "no_pci", "mi300x_x8"])
def test_output_follows_the_schema(name: str) -> None:
    report = build_report(machine(name).host())
    document = json.loads(encode(report_document(report, topocheck.__version__)))
    jsonschema.Draft202012Validator(json.loads(schema("report"))).validate(document)
    outcome = conclude(report.node, report.findings, report.results, Policy())
    jsonschema.Draft202012Validator(json.loads(schema("check"))).validate(json.loads(check_json(outcome)))


def test_schema_refuses_what_lacks_a_field() -> None:
    report = build_report(machine("laptop").host())
    document = json.loads(encode(report_document(report, topocheck.__version__)))
    del document["paths"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(json.loads(schema("report"))).validate(document)
