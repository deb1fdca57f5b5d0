"""A finding names in `devices` each PCI function that its subject shows to people."""

import re

import pytest

from tests.machines.builder import cached, case_names
from topocheck.pipeline import build_report
from topocheck.policy.types import Policy

ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@pytest.mark.parametrize("name", case_names())
def test_devices_of_findings(name: str) -> None:
    for f in build_report(cached(name).host(), Policy(preview=True)).findings:
        shown = set(ADDRESS.findall(f.subject))
        # A list of many ends with "and 3 more".
        assert shown == set(f.devices) or (" more" in f.subject and shown < set(f.devices)), f.id
