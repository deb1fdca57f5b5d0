"""Questions, recordings of them, and what may be looked at at all."""

from __future__ import annotations

import pytest

from tests.support.recorder import Recorder
from topocheck.host.base import Answer, Host, HostError, RecordedBackend, key
from topocheck.host.live.filters import kernel_option_allowed, variable_allowed
from topocheck.model.base import Reason


class Counting:
    """Answers everything, but no file `absent`, and counts."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, kind: str, *args: str | int) -> Answer:
        self.asked.append(key(kind, args))
        if args == ("/absent",):
            raise HostError(Reason.ABSENT, "ENOENT")
        return b"text"


def test_recorder_asks_once_and_keeps_errors() -> None:
    inner = Counting()
    recorder = Recorder(inner)
    host = Host(recorder)
    for _ in range(2):
        assert host.read_text("/a") == "text"
        with pytest.raises(HostError, match="absent: ENOENT"):
            host.read_text("/absent")
    assert inner.asked == ["read:/a", "read:/absent"]


def test_recording_answers_as_the_machine_did() -> None:
    recorder = Recorder(Counting())
    Host(recorder).read_text("/a")
    with pytest.raises(HostError):
        Host(recorder).read_text("/absent")
    replayed = Host(RecordedBackend(recorder.answers), "file")
    assert replayed.read_text("/a") == "text"
    with pytest.raises(HostError) as absent:
        replayed.read_text("/absent")
    assert (absent.value.reason, absent.value.detail) == (Reason.ABSENT, "ENOENT")


def test_what_was_never_asked_is_not_absent() -> None:
    with pytest.raises(HostError) as caught:
        Host(RecordedBackend({})).read_text("/a")
    assert caught.value.reason is Reason.NOT_RECORDED
    with pytest.raises(HostError) as caught:
        Host(RecordedBackend({}, HostError(Reason.TIMED_OUT, "read:/b hung"))).read_text("/a")
    assert (caught.value.reason, caught.value.detail) == (Reason.TIMED_OUT, "read:/b hung")


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("NCCL_DEBUG", True),
        ("TORCH_NCCL_BLOCKING_WAIT", True),
        ("CUDA_VISIBLE_DEVICES", True),
        ("SLURM_JOB_ID", True),
        ("SLURM_JWT", False),
        ("AWS_SECRET_ACCESS_KEY", False),
        ("HOME", False),
        ("PATH", False),
        ("MY_NCCL_TOKEN", False),
        ("", False),
    ],
)
def test_variables(name: str, allowed: bool) -> None:
    assert variable_allowed(name) is allowed


@pytest.mark.parametrize(
    ("option", "allowed"),
    [
        ("iommu=pt", True),
        ("intel_iommu=on,sm_on", True),
        ("pci=disable_acs_redir=0000:3b:00.0", True),
        ("nvidia.NVreg_EnableStreamMemOPs=1", True),
        ("root=UUID=1234", False),
        ("password=x", False),
        ("pcimem=1", False),
        ("", False),
    ],
)
def test_kernel_options(option: str, allowed: bool) -> None:
    assert kernel_option_allowed(option) is allowed
