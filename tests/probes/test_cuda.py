"""The CUDA driver's attributes: the real calls on a compiled stand-in, and the probe on recorded answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.probes.test_nvml import plain
from tests.stubs.build import ask_all, build_library
from tests.support.waiting import PATIENCE_S
from topocheck.host.base import Answer, Host, HostError, RecordedBackend, key
from topocheck.host.live.cuda import ATTRIBUTES
from topocheck.model.base import Missing, Reason
from topocheck.model.gpu import CudaFacts
from topocheck.probes import cuda

NAME = "libcuda.so.1"
INVALID = HostError(Reason.UNSUPPORTED, "CUDA_ERROR_INVALID_VALUE")


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library("cuda_stub.c", tmp_path_factory.mktemp("cuda"), NAME)


def ask(libraries: Path, *questions: tuple[Any, ...], **variables: str) -> list[dict[str, Any]]:
    return ask_all([["cuda", *q] for q in questions], libraries, **variables)


def test_every_call(stub: Path) -> None:
    expected: dict[tuple[Any, ...], Any] = {
        ("DriverGetVersion",): 13000,
        ("DeviceGetCount",): 2,
        ("DeviceGetPCIBusId", 1): "0000:1B:00.0",
        ("DeviceGetUuid", 1): "GPU-00010203-0405-0607-0809-0a0b0c0d0ef1",
        ("DeviceGetName", 0): "NVIDIA H100 80GB HBM3",
        ("DeviceGetAttribute", 0, "GPU_DIRECT_RDMA_SUPPORTED"): 1,
        ("DeviceGetAttribute", 0, "INTEGRATED"): 0,
        ("DeviceCanAccessPeer", 0, 1): 1,
    }
    assert ask(stub, *expected) == [{"answer": a} for a in expected.values()]


def test_errors_keep_the_driver_s_name(stub: Path) -> None:
    found = ask(
        stub,
        ("DeviceGetAttribute", 0, "MULTICAST_SUPPORTED"),
        ("DeviceGetAttribute", 0, "CLOCK_RATE"),
        ("DeviceGetName", 7),
        ("CtxCreate", 0),
    )
    assert [f["detail"] for f in found[:1] + found[2:3]] == ["CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_DEVICE"]
    assert "not among the attributes" in found[1]["detail"]
    assert "not among the calls" in found[3]["detail"]


@pytest.mark.parametrize(
    ("code", "reason", "detail"),
    [
        ("100", "absent", "CUDA_ERROR_NO_DEVICE"),
        ("802", "unsupported", "CUDA_ERROR_SYSTEM_NOT_READY"),
        ("5555", "unsupported", "CUDA error 5555"),
    ],
)
def test_driver_that_will_not_start(stub: Path, code: str, reason: str, detail: str) -> None:
    version, count = ask(stub, ("DriverGetVersion",), ("DeviceGetCount",), CUDA_STUB_INIT=code)
    assert version == {"answer": 13000}
    assert count == {"reason": reason, "detail": detail}


def test_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("")
    (found,) = ask(tmp_path, ("DriverGetVersion",))
    assert found["reason"] == "absent"
    assert "libcuda.so.1" in found["detail"]


def test_attribute_numbers_agree_with_nvidia_s_binding() -> None:
    pytest.importorskip("cuda.bindings", reason="needs cuda-bindings, not installed here")
    names = sorted(ATTRIBUTES)
    code = (
        "import sys; from cuda.bindings.driver import CUdevice_attribute as A\n"
        "print(*(int(getattr(A, 'CU_DEVICE_ATTRIBUTE_' + n)) for n in sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *names], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert [int(n) for n in done.stdout.split()] == [ATTRIBUTES[n] for n in names]


def machine() -> dict[str, Answer]:
    """Two GPUs of a driver that does not know the fabric and multicast attributes."""
    answers: dict[str, Answer] = {"cuda:DriverGetVersion": 12040, "cuda:DeviceGetCount": 2}
    for i in range(2):
        answers |= {
            key("cuda", ("DeviceGetPCIBusId", i)): f"0000:{0xB3 + i:02X}:00.0",
            key("cuda", ("DeviceGetUuid", i)): f"GPU-00000000-0000-4000-8000-00000000000{i}",
            key("cuda", ("DeviceGetName", i)): "NVIDIA A100-SXM4-80GB",
            key("cuda", ("DeviceCanAccessPeer", i, 1 - i)): i,
        }
        numbers = {"GPU_DIRECT_RDMA_SUPPORTED": 1, "DMA_BUF_SUPPORTED": 0, "INTEGRATED": 0, "COMPUTE_MODE": 3}
        numbers["GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS"] = 1
        answers |= {key("cuda", ("DeviceGetAttribute", i, n)): numbers.get(n, INVALID) for n in ATTRIBUTES}
    return answers


def read(answers: dict[str, Answer]) -> CudaFacts:
    return cuda.read(Host(RecordedBackend(answers), "record"))


def test_facts_of_two_devices() -> None:
    facts = read(machine())
    assert facts.driver_api_version == "12.4"
    assert not isinstance(facts.devices, Missing)
    first, second = facts.devices
    assert (first.address, second.address) == ("0000:b3:00.0", "0000:b4:00.0")
    assert (first.gpudirect_rdma, first.dma_buf, first.integrated) == (True, False, False)
    assert (first.compute_mode, first.flush_writes_options) == ("Exclusive_Process", 1)
    assert first.fabric_handles == Missing(Reason.UNSUPPORTED, "CUDA_ERROR_INVALID_VALUE")
    assert first.evidence("DMA_BUF_SUPPORTED")[0].source == "CUDA device 0000:b3:00.0 DMA_BUF_SUPPORTED"
    assert first.raw["DMA_BUF_SUPPORTED"] == "0"
    assert [(p.from_address, p.to_address, p.can_access) for p in facts.peers] == [
        ("0000:b3:00.0", "0000:b4:00.0", False),
        ("0000:b4:00.0", "0000:b3:00.0", True),
    ]


def test_no_device_is_absent_in_words() -> None:
    facts = read(
        {"cuda:DriverGetVersion": 13000, "cuda:DeviceGetCount": HostError(Reason.ABSENT, "CUDA_ERROR_NO_DEVICE")}
    )
    assert facts.devices == Missing(Reason.ABSENT, "CUDA_ERROR_NO_DEVICE")
    assert facts.driver_api_version == "13.0"
    assert "CUDA_VISIBLE_DEVICES" in facts.error


def test_no_library_is_asked_once() -> None:
    facts = read({"cuda:DriverGetVersion": HostError(Reason.ABSENT, "libcuda.so.1 not found")})
    assert facts.devices == Missing(Reason.ABSENT, "libcuda.so.1 not found")
    assert "not on this machine" in facts.error


def test_mig_instances_of_one_gpu_are_no_pair() -> None:
    answers = machine()
    answers[key("cuda", ("DeviceGetPCIBusId", 1))] = answers[key("cuda", ("DeviceGetPCIBusId", 0))]
    assert read(answers).peers == ()


@settings(max_examples=60)
@given(st.data())
def test_any_answers_give_facts_of_the_right_types(data: st.DataObject) -> None:
    answers = machine()
    for k in data.draw(st.lists(st.sampled_from(sorted(answers)), max_size=8)):
        answers[k] = data.draw(plain)
    facts = read(answers)
    assert msgspec.json.decode(msgspec.json.encode(facts), type=CudaFacts) == facts
