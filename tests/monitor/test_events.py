"""Events of NVML's event set, through the child that samples GPUs, on the stand-in for the driver."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cli.test_watch import start
from tests.overtime import planting as p
from tests.stubs.build import build_library
from tests.support.waiting import PATIENCE_S
from topocheck.checks.watch.run import judge_watch
from topocheck.host.base import Answer, Host, HostError
from topocheck.model.base import DENIED, Missing, Reason, State
from topocheck.monitor.events import MASK, Events
from topocheck.monitor.plan import Plan, PlannedGpu
from topocheck.overtime.history import History
from topocheck.overtime.types import GpuEvent

A, B = "0000:1a:00.0", "0000:1b:00.0"
PLAN = Plan(gpus=(PlannedGpu(index=0, address=A), PlannedGpu(index=1, address=B)))


class Driver:
    """A backend that answers calls to NVML by a function."""

    def __init__(self, answer: Callable[..., Answer]) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self._answer = answer

    def ask(self, kind: str, *args: str | int) -> Answer:
        self.asked.append(args)
        return self._answer(*args)


def test_a_suspended_gpu_is_registered_once_it_is_awake() -> None:
    driver = Driver(lambda call, *args: 8 if call == "EventSetRegister" else [])
    events, host = Events(PLAN), Host(driver)
    events.register(host, frozenset({A}))
    events.register(host, frozenset({A, B}))
    assert driver.asked == [("EventSetRegister", 0, MASK), ("EventSetRegister", 1, MASK)]
    assert events.take(host) == ()
    assert driver.asked[-1] == ("EventSetWait", 0)  # asked for what is there, without waiting


def test_a_refusal_is_a_reason_and_nothing_is_waited_for() -> None:
    def refuse(*args: str | int) -> Answer:
        raise HostError(Reason.DENIED, "NVMLError_NoPermission")

    driver = Driver(refuse)
    events, host = Events(PLAN), Host(driver)
    events.register(host, frozenset({A, B}))
    assert events.refused == dict.fromkeys((A, B), Missing(Reason.DENIED, "NVMLError_NoPermission"))
    assert events.take(host) == ()
    assert len(driver.asked) == 2


def test_events_of_mig_devices_and_of_unknown_gpus() -> None:
    answers: list[Answer] = [[[0, 8, 94, 3, 1], [7, 8, 79, None, None], [1, 8, 79, None, None], ["x"], 5]]
    driver = Driver(lambda call, *args: 8 if call == "EventSetRegister" else answers.pop())
    events, host = Events(PLAN), Host(driver)
    events.register(host, frozenset({A, B}))
    assert events.take(host) == (
        GpuEvent(address=A, type=8, data=94, gpu_instance=3, compute_instance=1),
        GpuEvent(address=B, type=8, data=79),
    )


@pytest.mark.parametrize(
    ("type_", "data", "state", "title"),
    [
        (8, 79, State.FAIL, "Xid 79: GPU has fallen off the bus"),
        (8, 63, State.WARN, "Xid 63: memory row remapped, or its page retired"),
        (8, 31, State.NOTE, "Xid 31: none of the known hardware errors"),  # a program's wrong address
        (0x2, 0, State.FAIL, "event 0x2: uncorrectable memory error"),
    ],
)
def test_events_are_judged(type_: int, data: int, state: State, title: str) -> None:
    healthy = p.recording(1)
    event = GpuEvent(address=p.GPU, type=type_, data=data)
    samples = (*healthy.samples[:5], replace(healthy.samples[5], events=(event,)), *healthy.samples[6:])
    findings = judge_watch(History(header=healthy.header, samples=samples))[1]
    assert [(f.id, f.state, f.subject, f.title) for f in findings] == [("watch.gpu-events", state, p.GPU_LABEL, title)]


def test_refused_events_are_a_note_with_the_reason_and_not_ok() -> None:
    def plant(readings: p.Readings, n: int, of: int) -> None:
        for i, r in enumerate(readings):
            if isinstance(r, p.GpuReading):
                readings[i] = replace(r, missing={"events": DENIED})

    results, findings = judge_watch(p.recording(1, plant=plant))
    assert {r.id: r.state for r in results}["watch.gpu-events"] is State.NOT_APPLICABLE
    assert {(f.id, f.title) for f in findings} == {("watch.counters-restarted", "events could not be read")}
    assert findings[0].evidence[0].raw == "denied"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library("nvml_stub.c", tmp_path_factory.mktemp("nvml"), "libnvidia-ml.so.1")


def test_the_driver_s_events_reach_the_judgement(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVML_STUB_EVENTS", "1:8:79:4294967295:4294967295,0:8:94:3:0")
    run = start(libraries, "--interval", "0.2", "--for", "0.6s", "-q", "--format", "json")
    out, err = run.communicate(timeout=PATIENCE_S)
    found = {f["subject"]: f["title"] for f in json.loads(out)["findings"] if f["id"] == "watch.gpu-events"}
    assert found == {
        "0000:1b:00.0 GPU1": "Xid 79: GPU has fallen off the bus",
        "0000:1a:00.0 GPU0": "Xid 94: contained memory error (MIG GPU instance 3)",
    }, err
    assert run.returncode == 1


def test_a_driver_that_refuses_is_not_taken_for_quiet(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVML_STUB_EVENTS", "1:8:79:4294967295:4294967295")
    monkeypatch.setenv("NVML_STUB_DENIED", "nvmlDeviceRegisterEvents")
    run = start(libraries, "--interval", "0.2", "--for", "0.6s", "-q", "--format", "json")
    out, err = run.communicate(timeout=PATIENCE_S)
    said = json.loads(out)
    assert {c["id"]: c["state"] for c in said["checks"]}["watch.gpu-events"] == "not_applicable", err
    assert {f["title"] for f in said["findings"]} == {"events could not be read"}
