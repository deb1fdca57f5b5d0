"""The pure parsers of the NVML probe, and NVML's numbers in words."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probes.test_nvml import plain
from tests.support.waiting import PATIENCE_S
from topocheck.model.address import parse_cpulist
from topocheck.model.base import Missing, Reason
from topocheck.probes.nvml import enums as words
from topocheck.probes.nvml.fabric import parse_fabric
from topocheck.probes.nvml.fields import parse_field_values
from topocheck.probes.nvml.probe import cuda_version
from topocheck.probes.nvml.queries import parse_bus_id, parse_words
from topocheck.probes.nvml.state import parse_processes


@given(st.frozensets(st.integers(0, 4095), min_size=1))
def test_words_are_the_set_they_stand_for(cpus: frozenset[int]) -> None:
    mask = sum(1 << c for c in cpus)
    answer = [(mask >> (64 * n)) & 0xFFFFFFFFFFFFFFFF for n in range(64)]
    found = parse_words(answer)
    assert not isinstance(found, Missing)
    assert parse_cpulist(found) == cpus


def test_words_beyond_1024_cpus() -> None:
    assert parse_words([0xF, *[0] * 15, 0b110]) == "0-3,1025-1026"  # word 16 begins at CPU 16 x 64 = 1024
    assert parse_words([0, 0]) == Missing(Reason.ABSENT, "empty set")
    assert parse_words([]) == Missing(Reason.ABSENT, "empty set")


@pytest.mark.parametrize("answer", [[-1], [1 << 64], [True], ["1"], "1", None])
def test_what_is_no_set_is_unparsable(answer: Any) -> None:
    found = parse_words(answer)
    assert isinstance(found, Missing)
    assert found.reason is Reason.UNPARSABLE


@given(plain)
def test_parsers_never_raise(answer: Any) -> None:
    parse_words(answer)
    parse_field_values(answer)
    parse_fabric(answer)
    parse_processes(answer, "compute")
    parse_bus_id(answer)
    parse_bus_id({"busId": answer})


def test_bus_ids() -> None:
    assert parse_bus_id({"busId": "00000000:3B:00.0"}) == "0000:3b:00.0"
    assert parse_bus_id({"busId": "0000000F:01:00.0"}) == "000f:01:00.0"
    assert parse_bus_id({"busId": "FFFFFFFF:FF:FF.0"}) == Missing(Reason.NOT_VISIBLE_HERE, "FFFFFFFF:FF:FF.0")
    assert parse_bus_id({"busId": "GPU"}) == Missing(Reason.UNPARSABLE, "GPU")


def test_fabric_that_is_not_registered_has_no_clique() -> None:
    """NVML fills clique and cluster with zeros then, which would read as a registered single node."""
    zero = "00000000-0000-0000-0000-000000000000"
    found = parse_fabric({"clusterUuid": zero, "status": 0, "cliqueId": 0, "state": 1})
    assert found["fabric_state"] == "Not Started"
    assert found["fabric_clique"] == Missing(Reason.ABSENT, "fabric state Not Started")
    assert found["fabric_cluster_uuid"] == Missing(Reason.ABSENT, "fabric state Not Started")
    assert isinstance(found["fabric_health_mask"], Missing)


def test_gpu_of_no_fabric_has_no_status() -> None:
    """As an H100 answers that is alone in its guest; nvidia-smi prints N/A for all of it."""
    zero = "00000000-0000-0000-0000-000000000000"
    found = parse_fabric({"clusterUuid": zero, "status": 0, "cliqueId": 0, "state": 0, "healthMask": 0})
    assert found.pop("fabric_state") == "Not Supported"
    assert set(found.values()) == {Missing(Reason.UNSUPPORTED, "fabric state Not Supported")}


def test_fabric_completed_with_an_error_says_so() -> None:
    found = parse_fabric({"clusterUuid": "a", "status": 999, "cliqueId": 2, "state": 3, "healthMask": 0x55})
    assert (found["fabric_state"], found["fabric_status"], found["fabric_clique"]) == ("Completed", "Unknown Error", 2)
    assert found["fabric_health_mask"] == 0x55


def test_field_values_keep_errors_apart_from_zero() -> None:
    found = parse_field_values([[94, 0, 0, 0], [164, 3, None, 3], [164, 4, None, 77], "odd", [1, 2]])
    assert found == {
        (94, 0): 0,
        (164, 3): Missing(Reason.UNSUPPORTED, "Not Supported"),
        (164, 4): Missing(Reason.UNSUPPORTED, "NVML error 77"),
    }


def test_processes_without_memory() -> None:
    found = parse_processes([{"pid": 7, "usedGpuMemory": None}, {"pid": 8, "usedGpuMemory": 5}, {}], "graphics")
    assert not isinstance(found, Missing)
    assert [(p.pid, p.kind) for p in found] == [(7, "graphics"), (8, "graphics")]
    assert isinstance(found[0].used_memory_bytes, Missing)
    assert found[1].used_memory_bytes == 5


def test_cuda_version_is_thousands_and_tens() -> None:
    assert cuda_version(13000) == "13.0"
    assert cuda_version(12080) == "12.8"
    assert cuda_version(11020) == "11.2"


@pytest.fixture(scope="module")
def binding() -> dict[str, int]:
    """Return the whole numbers that NVIDIA's binding names; read elsewhere, since it must not be loaded here."""
    code = "import json, pynvml; print(json.dumps({n: v for n, v in vars(pynvml).items() if type(v) is int}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    numbers: dict[str, int] = json.loads(done.stdout)
    return numbers


@pytest.mark.parametrize(
    ("table", "prefix", "spelling"),
    [
        (words.COMPUTE_MODES, "NVML_COMPUTEMODE_", {"EXCLUSIVE_PROCESS": "Exclusive_Process"}),
        (words.VIRTUALIZATION_MODES, "NVML_GPU_VIRTUALIZATION_MODE_", {"HOST_VSGA": "HostVSGA"}),
        (words.FABRIC_STATES, "NVML_GPU_FABRIC_STATE_", {"IN_PROGRESS": "In Progress"}),
        (words.ADDRESSING_MODES, "NVML_DEVICE_ADDRESSING_MODE_", {"ATS": "ATS"}),
    ],
)
def test_words_name_every_number_of_the_binding(
    table: dict[int, str], prefix: str, spelling: dict[str, str], binding: dict[str, int]
) -> None:
    """NVIDIA's binding is the other source: each enum value it has must have its word, and the same letters."""
    numbers = {n.removeprefix(prefix): v for n, v in binding.items() if n.startswith(prefix)}
    numbers.pop("COUNT", None)
    for name, number in numbers.items():
        letters = table[number].replace("_", "").replace(" ", "").lower()
        assert letters == name.replace("_", "").lower(), name
    for name, text in spelling.items():
        assert table[numbers[name]] == text


def test_nvlink_generations_agree_with_the_binding(binding: dict[str, int]) -> None:
    prefix = "NVML_NVLINK_VERSION_"
    for name, number in binding.items():
        if name.startswith(prefix) and number:
            assert words.NVLINK_GENERATIONS[number] == int(name.removeprefix(prefix)[0]), name


def test_unnamed_numbers_are_unparsable() -> None:
    assert words.word(words.P2P_STATUSES, 42) == Missing(Reason.UNPARSABLE, "42")
    assert words.lookup(words.NVLINK_GENERATIONS, 0) == Missing(Reason.UNPARSABLE, "0")
