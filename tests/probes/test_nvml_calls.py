"""The calls to NVML themselves, through pynvml and a compiled stand-in for the driver's library."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.stubs.build import ask_all, build_library, run_python
from topocheck.probes.nvml import fields

NAME = "libnvidia-ml.so.1"


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library("nvml_stub.c", tmp_path_factory.mktemp("nvml"), NAME)


@pytest.fixture(scope="module")
def old_stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library("nvml_stub.c", tmp_path_factory.mktemp("old"), NAME, "-DOLD_DRIVER")


def ask(libraries: Path, *questions: tuple[Any, ...], **variables: str) -> list[dict[str, Any]]:
    return ask_all([["nvml", *q] for q in questions], libraries, **variables)


ANSWERS: dict[tuple[Any, ...], Any] = {
    ("SystemGetDriverVersion",): "580.159.04",
    ("SystemGetNVMLVersion",): "13.580.159.04",
    ("SystemGetCudaDriverVersion_v2",): 13000,
    ("DeviceGetCount",): 2,
    ("DeviceGetUUID", 1): "GPU-00000000-0000-4000-8000-000000000002",
    ("DeviceGetName", 0): "NVIDIA H100 80GB HBM3",
    ("DeviceGetMinorNumber", 1): 1,
    ("DeviceGetModuleId", 1): 2,
    ("DeviceGetArchitecture", 0): 9,
    ("DeviceGetCudaComputeCapability", 0): [9, 0],
    ("DeviceGetMemoryInfo", 0): {"total": 85520809984, "free": 85017493504, "used": 0, "reserved": 503316480},
    ("DeviceGetBAR1MemoryInfo", 0): {"bar1Total": 137438953472, "bar1Free": 137437249536, "bar1Used": 1703936},
    ("DeviceGetCurrPcieLinkWidth", 0): 16,
    ("DeviceGetClockInfo", 0, 1): 345,
    ("DeviceGetMaxClockInfo", 0, 1): 1980,
    ("DeviceGetTemperature", 0, 0): 33,
    ("DeviceGetCurrentClocksEventReasons", 0): 1,
    ("DeviceGetUtilizationRates", 0): {"gpu": 0, "memory": 0},
    ("DeviceGetMigMode", 0): [0, 0],
    ("DeviceGetEccMode", 0): [1, 1],
    ("DeviceGetAddressingMode", 0): 0,
    ("DeviceGetC2cModeInfoV", 0): {"isC2cEnabled": 0},
    ("DeviceGetCpuAffinity", 0, 64): [0xFFFF, *[0] * 15, 1],
    ("DeviceGetMemoryAffinity", 0, 16, 0): [1],
    ("DeviceGetNvLinkState", 0, 17): 1,
    ("DeviceGetNvLinkVersion", 0, 17): 6,
    ("DeviceGetNvLinkRemoteDeviceType", 0, 17): 2,
    ("DeviceGetNvLinkCapability", 0, 17, 0): 1,
    ("DeviceGetP2PStatus", 0, 1, 0): 0,
    ("DeviceGetP2PStatus", 0, 1, 4): 5,
    ("DeviceGetTopologyCommonAncestor", 0, 1): 30,
    ("DeviceGetGraphicsRunningProcesses", 0): [],
    ("DeviceGetComputeRunningProcesses", 0): [
        {"pid": 4242, "usedGpuMemory": 1 << 30},
        {"pid": 4243, "usedGpuMemory": None},
    ],
    ("DeviceGetGpuFabricInfoV", 0): {
        "clusterUuid": "00000000-0000-0000-0000-000000000000",
        "status": 0,
        "cliqueId": 0,
        "state": 3,
        "healthMask": 0,
    },
    ("DeviceGetFieldValues", 0, "94:0,164:17,164:18"): [[94, 0, 0, 0], [164, 17, 26562, 0], [164, 18, None, 3]],
}
"""Call and arguments -> what the stub's C source answers."""


def test_every_call_of_a_healthy_driver(stub: Path) -> None:
    for question, found in zip(ANSWERS, ask(stub, *ANSWERS), strict=True):
        assert found == {"answer": ANSWERS[question]}, question


def test_pci_info(stub: Path) -> None:
    own, remote = ask(stub, ("DeviceGetPciInfo", 1), ("DeviceGetNvLinkRemotePciInfo", 1, 0))
    assert own["answer"]["busId"] == "00000000:1B:00.0"
    assert own["answer"]["pciDeviceId"] == 0x233010DE
    assert remote["answer"]["busId"] == "FFFFFFFF:FF:FF.0"


def test_only_calls_that_read_are_known(stub: Path) -> None:
    for found in ask(stub, ("DeviceSetComputeMode", 0, 2), ("DeviceResetNvLinkErrorCounters", 0, 0), ("Shutdown",)):
        assert found["reason"] == "unsupported"
        assert "not among the calls" in found["detail"]


def test_errors_keep_their_name_and_their_device(stub: Path) -> None:
    questions = (("DeviceGetName", 0), ("DeviceGetName", 1), ("DeviceGetNumaNodeId", 0), ("DeviceGetUUID", 0))
    lost = {"reason": "unsupported", "detail": "NVMLError_GpuIsLost"}
    denied = {"reason": "denied", "detail": "NVMLError_NoPermission"}
    unsupported = {"reason": "unsupported", "detail": "NVMLError_NotSupported"}
    found = ask(stub, *questions, NVML_STUB_LOST="1", NVML_STUB_DENIED="nvmlDeviceGetUUID")
    assert found == [{"answer": "NVIDIA H100 80GB HBM3"}, lost, unsupported, denied]


def test_old_driver_lacks_functions_and_structs(old_stub: Path) -> None:
    missing = {"reason": "unsupported", "detail": "NVMLError_FunctionNotFound"}
    gone = ask(
        old_stub,
        ("DeviceGetGpuFabricInfoV", 0),
        ("DeviceGetC2cModeInfoV", 0),
        ("DeviceGetComputeRunningProcesses", 0),
        ("DeviceGetMemoryAffinity", 0, 16, 0),
        ("SystemGetConfComputeState",),
    )
    assert gone == [missing] * 5
    (memory,) = ask(old_stub, ("DeviceGetMemoryInfo", 0))
    assert memory["answer"] == {"total": 85520809984, "free": 85017493504, "used": 503316480}


@pytest.mark.parametrize(
    ("code", "reason", "detail"),
    [
        ("9", "absent", "NVMLError_DriverNotLoaded"),
        ("18", "unsupported", "NVMLError_LibRmVersionMismatch"),
        ("4", "denied", "NVMLError_NoPermission"),
        ("77", "unsupported", "NVMLError_77"),
    ],
)
def test_library_that_will_not_start(stub: Path, code: str, reason: str, detail: str) -> None:
    assert ask(stub, ("DeviceGetCount",), NVML_STUB_INIT=code) == [{"reason": reason, "detail": detail}]


def test_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("not a library")  # hides a real one, should this machine have it
    found = ask(tmp_path, ("DeviceGetCount",), ("DeviceGetName", 0))
    assert found == [{"reason": "absent", "detail": "libnvidia-ml.so.1 not found"}] * 2


def test_arguments_that_the_binding_does_not_take(stub: Path) -> None:
    for found in ask(stub, ("DeviceGetName", 0, 1, 2), ("DeviceGetFieldValues", 0, "x:y"), ("DeviceGetName", "a")):
        assert found["reason"] == "unsupported"


def test_crash_ends_the_process_that_asked(stub: Path) -> None:
    code = "from topocheck.host.live import nvml; nvml.ask('DeviceGetName', 0)"
    done = run_python(code, libraries=stub, NVML_STUB_CRASH="nvmlDeviceGetName")
    assert done.returncode == -signal.SIGSEGV


def test_questions_of_the_probe_are_those_the_library_answers(stub: Path) -> None:
    """The groups of field values as the probe asks them."""
    (own, link) = ask(
        stub,
        ("DeviceGetFieldValues", 0, fields.device_fields()),
        ("DeviceGetFieldValues", 0, fields.link_error_fields(5, fields.NVLINK5_ERRORS)),
    )
    assert [f for f, _, value, code in own["answer"] if code == 0] == [91, 94, 95, 169]
    assert [f for f, scope, value, code in link["answer"] if code == 0 and scope == 5] == [161, 162, 163]
