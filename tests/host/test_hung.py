"""A child that does not come back: what the kernel says of it, kept in a snapshot without names."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.host import sick
from tests.host.sick import SickProbe, sick_backend
from tests.support.waiting import PATIENCE_S
from topocheck.host.gather import gpus
from topocheck.host.gather.gather import Gathering, gather, status
from topocheck.host.gather.hung import look_at, process_state, waiting_in
from topocheck.host.recording.anonymize import anonymize
from topocheck.probes.kept.table import table
from topocheck.probes.registry import NVML_PER_GPU_S, PROBES

QUICK_S = 4.0


@pytest.mark.parametrize(
    ("stat", "state"),
    [
        ("4321 (python3) D 1 4321 4321 0", "D"),
        ("4321 (a) R (b) S 1 4321", "S"),  # a name may hold brackets (proc(5))
        ("", ""),
        ("4321 (python3)", ""),
    ],
)
def test_state(stat: str, state: str) -> None:
    assert process_state(stat) == state


@pytest.mark.parametrize(("text", "name"), [("nvidia_open", "nvidia_open"), ("0", ""), ("", ""), ("a b", "")])
def test_waiting_in(text: str, name: str) -> None:
    assert waiting_in(text) == name


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    assert len(process_state(text)) <= 1
    assert " " not in waiting_in(text)


def test_a_process_that_is_there_and_one_that_is_not() -> None:
    found = look_at(os.getpid(), "nvml:DeviceGetCount", 1.26, cut_short=False)
    assert found.state == "R"
    assert found.waited_s == 1.3
    assert look_at(2**22 + 1, "nvml:DeviceGetCount", 1.0, cut_short=True).state == ""


@pytest.mark.slow
def test_a_hang_is_described() -> None:
    probe = SickProbe("letters", "files", QUICK_S, sick.read_letters)
    hung = status("letters", gather([probe], PATIENCE_S, sick_backend(hang=("psutil:a",)))).hung
    assert hung is not None
    assert hung.question == "psutil:a"
    assert hung.pid > 0
    assert hung.waited_s >= QUICK_S / 2
    assert not hung.cut_short


@pytest.mark.slow
def test_a_budget_that_ends_is_told_apart() -> None:
    probe = SickProbe("letters", "files", 1000, sick.read_letters)
    hung = status("letters", gather([probe], QUICK_S, sick_backend(hang=("psutil:a",)))).hung
    assert hung is not None
    assert hung.cut_short


@pytest.mark.slow
def test_a_longer_budget_gives_the_drivers_probes_more() -> None:
    """The deadline of its probe alone would have ended it three times over."""
    probe = SickProbe("letters", "nvml", 1.0, sick.read_letters)
    gathering = Gathering([probe], PATIENCE_S, sick_backend(hang=("psutil:a",)))
    answers = gathering.finish(PATIENCE_S, {"nvml": QUICK_S - 1.0})
    hung = status("letters", answers).hung
    assert hung is not None
    assert hung.waited_s >= QUICK_S / 2


def test_the_deadline_grows_with_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 GPUs without persistence mode took over 25 s to start."""
    nvml = next(p for p in PROBES if p.name == "nvml")
    assert nvml.for_gpus(16).deadline_s == nvml.deadline_s + 16 * NVML_PER_GPU_S > 25
    pci = next(p for p in PROBES if p.name == "pci")
    assert pci.for_gpus(16).deadline_s == pci.deadline_s
    monkeypatch.setattr(os, "listdir", lambda _: ["x"] * 1000)
    assert gpus.count_gpus() == gpus.MOST


def kept(hung: Any) -> Any:
    said = {"state": "timed_out", "ms": 1.0, "detail": "", "hung": hung}
    return anonymize({"probe:nvml": said}, table())["probe:nvml"].get("hung")


def test_a_snapshot_keeps_what_is_of_the_form() -> None:
    hung = {"question": "nvml:DeviceGetCount", "pid": 5, "state": "D", "waits_in": "nvidia_open", "waited_s": 9.5,
            "cut_short": False}  # fmt: skip
    assert kept(hung) == hung
    assert kept({"question": "nvml:DeviceGetCount", "state": "secret", "waits_in": "my host", "x": "y"}) == {
        "question": "nvml:DeviceGetCount"
    }
    assert kept("text") is None
