"""The NVML probe in its child process, with a driver that hangs, crashes, or has lost a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.stubs.build import build_library, run_python
from topocheck.model.base import Missing, Reason
from topocheck.model.gpu import NvmlFacts, NvmlGpu

NAME = "libnvidia-ml.so.1"

_GATHER = """
import sys
import msgspec
from topocheck.host.gather.gather import gather, replay, status
from topocheck.probes.registry import Probe

probe = Probe(name="nvml", function="nvml:read", group="nvml", deadline_s={deadline_s})
answers = gather([probe], budget_s=600.0)
out = {{"facts": replay(probe, answers), "status": status("nvml", answers)}}
sys.stdout.buffer.write(msgspec.json.encode(out))
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library("nvml_stub.c", tmp_path_factory.mktemp("nvml"), NAME)


def gathered(libraries: Path, deadline_s: float = 120.0, **variables: str) -> tuple[NvmlFacts, dict[str, Any]]:
    """Return (facts, status) of a run; it ends by itself, or `run_python` raises.

    Where something hangs, `deadline_s` is a time that is waited out, and in which all the rest has to be answered.
    """
    done = run_python(_GATHER.format(deadline_s=deadline_s), libraries=libraries, **variables)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    return msgspec.convert(out["facts"], NvmlFacts), out["status"]


def gpus_of(facts: NvmlFacts) -> tuple[NvmlGpu, ...]:
    assert not isinstance(facts.gpus, Missing), facts.gpus
    return facts.gpus


def assert_whole(gpu: NvmlGpu) -> None:
    assert not gpu.lost
    assert gpu.error == ""
    assert gpu.name == "NVIDIA H100 80GB HBM3"
    assert len(gpu.nvlinks) == 18
    assert gpu.processes
    assert gpu.fabric_state == "Completed"


def test_healthy_eight(stub: Path) -> None:
    facts, status = gathered(stub, NVML_STUB_GPUS="8")
    assert status["state"] == "ok"
    assert len(gpus_of(facts)) == 8
    for gpu in gpus_of(facts):
        assert_whole(gpu)
    assert len(facts.p2p) == 8 * 7
    assert {(p.read, p.pcie, p.ancestor) for p in facts.p2p} == {("OK", "NS", "PHB")}


@pytest.mark.slow
def test_hanging_call_is_named_and_costs_one_field(stub: Path) -> None:
    facts, status = gathered(stub, 5.0, NVML_STUB_GPUS="4", NVML_STUB_SLEEP="nvmlDeviceGetSerial:1")
    assert status["state"] == "timed_out"
    assert "DeviceGetSerial|1" in status["detail"]
    gpus = gpus_of(facts)
    assert isinstance(gpus[1].serial, Missing)
    assert gpus[1].serial.reason is Reason.TIMED_OUT
    assert len(facts.p2p) == 4 * 3
    for gpu in gpus:
        assert_whole(gpu)


@pytest.mark.slow
def test_gpu_whose_handle_hangs_costs_itself(stub: Path) -> None:
    facts, status = gathered(stub, 5.0, NVML_STUB_GPUS="3", NVML_STUB_SLEEP="nvmlDeviceGetHandleByIndex_v2:1")
    first, second, third = gpus_of(facts)
    assert status["state"] == "timed_out"
    assert isinstance(second.uuid, Missing)
    assert second.uuid.reason is Reason.TIMED_OUT
    assert not second.lost
    assert second.error.startswith("timed_out")
    assert_whole(first)
    assert_whole(third)


@pytest.mark.slow
def test_hang_at_the_start_leaves_nothing_but_its_name(stub: Path) -> None:
    facts, status = gathered(stub, 5.0, NVML_STUB_SLEEP="nvmlInitWithFlags")
    assert isinstance(facts.gpus, Missing)
    assert facts.gpus.reason is Reason.TIMED_OUT
    assert "DeviceGetCount" in status["detail"]


def test_crash_is_named_and_costs_one_field(stub: Path) -> None:
    facts, _ = gathered(stub, NVML_STUB_GPUS="4", NVML_STUB_CRASH="nvmlDeviceGetVbiosVersion:2")
    gpus = gpus_of(facts)
    assert isinstance(gpus[2].vbios, Missing)
    assert "signal 11" in gpus[2].vbios.detail
    for gpu in gpus:
        assert_whole(gpu)


def test_lost_gpu_among_four(stub: Path) -> None:
    facts, status = gathered(stub, NVML_STUB_GPUS="4", NVML_STUB_LOST="2")
    assert status["state"] == "ok"
    gpus = gpus_of(facts)
    assert [g.lost for g in gpus] == [False, False, True, False]
    assert gpus[2].error == "NVMLError_GpuIsLost"
    for gpu in (gpus[0], gpus[1], gpus[3]):
        assert_whole(gpu)


def test_gpu_that_falls_off_while_it_is_asked(stub: Path) -> None:
    facts, _ = gathered(stub, NVML_STUB_GPUS="3", NVML_STUB_FELL="1")
    first, second, third = gpus_of(facts)
    assert second.lost
    assert second.address == "0000:1b:00.0"
    assert second.name == "NVIDIA H100 80GB HBM3"
    assert_whole(first)
    assert_whole(third)
    # 0000:1b:00.0 stands in four of the six ordered pairs.
    assert sum(isinstance(p.read, Missing) for p in facts.p2p) == 4


def test_old_driver(tmp_path: Path) -> None:
    old = build_library("nvml_stub.c", tmp_path, NAME, "-DOLD_DRIVER")
    facts, status = gathered(old)
    assert status["state"] == "ok"
    first, _ = gpus_of(facts)
    assert first.error == ""
    assert isinstance(first.fabric_state, Missing)
    assert len(first.nvlinks) == 18
    assert [link.speed_mb_s for link in first.nvlinks[:6]] == [26562] * 6
    assert isinstance(first.nvlinks[12].speed_mb_s, Missing)
    assert first.memory_used_bytes == 503316480


def test_no_library(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("not a library")
    facts, _ = gathered(tmp_path)
    assert facts.gpus == Missing(Reason.ABSENT, "libnvidia-ml.so.1 not found")
    assert "not on this machine" in facts.error
