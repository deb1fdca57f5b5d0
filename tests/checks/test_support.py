"""What is reused of a machine as it stands does not change what a variant of it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checks.support import context, facts, variant
from tests.machines.builder import machine

HGX = "hgx_h100_cx7"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (HGX, {}),
        (HGX, {"environment": {"NCCL_P2P_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "3,1"}}),
        (HGX, {"files": {"/sys/class/infiniband": {"remove": True}}}),
        (HGX, {"files": {"/proc/modules": {"error": "EACCES"}}}),
        (HGX, {"nvml": {"DeviceGetP2PStatus|0|1|0": 1, "DeviceGetTemperature*": {"error": "Unknown"}}}),
        (HGX, {"patch": {"GPU3": {"now": "5x8"}}}),
        (HGX, {"cuda": {"order": [1, 0, 2, 3, 4, 5, 6, 7]}}),
        (HGX, {"process": {"uid": 1000}, "system": {"root": False}}),
        ("h03_nvml_crashes", {"environment": {"NCCL_DEBUG": "INFO"}}),
        ("h41_nvml_hangs", {"environment": {"NCCL_DEBUG": "INFO"}}),
    ],
)
def test_a_variant_is_what_it_is_when_read_whole(name: str, change: dict[str, Any]) -> None:
    whole = context(facts(machine(name, **change)))
    assert variant(name, **change) == whole
