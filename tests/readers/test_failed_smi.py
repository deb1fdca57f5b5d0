"""Texts of a machine in trouble: nvidia-smi that fails, a kernel log without its start, P2P tables with a list."""

from __future__ import annotations

import pytest

from topocheck.host.base import Host, RecordedBackend
from topocheck.model.base import Finding
from topocheck.pipeline import build_report
from topocheck.readers.files import read_data

NO_DRIVER = """\
NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver \
is installed and running.
"""
MISMATCH = """\
Failed to initialize NVML: Driver/library version mismatch
NVML library version: 535.161
"""
LIST = "GPU 0: NVIDIA A100 80GB PCIe (UUID: GPU-aaaaaaaa-1111-2222-3333-444444444444)\n"
TABLE = (
    "$ nvidia-smi topo -p2p {}\n\tGPU0\tGPU1\nGPU0\tX\t{}\nGPU1\t{}\tX\n\n"
    "Legend:\n\n  X    = Self\n  OK   = Status Ok\n"
)


def _findings(text: str) -> dict[str, list[Finding]]:
    read = read_data("a.txt", text.encode())
    out: dict[str, list[Finding]] = {}
    for f in build_report(Host(RecordedBackend(read.answers), "a.txt")).findings:
        out.setdefault(f.id, []).append(f)
    return out


@pytest.mark.parametrize(
    ("text", "check", "state", "place"),
    [
        (NO_DRIVER, "driver.not-loaded", "fail", "a.txt:1"),
        ("Failed to initialize NVML: Driver Not Loaded\n", "driver.not-loaded", "fail", "a.txt:1"),
        ("$ nvidia-smi\n" + NO_DRIVER, "driver.not-loaded", "fail", "a.txt:2"),
        (MISMATCH, "driver.versions-differ", "fail", "a.txt:1"),
        ("No devices were found\n", "driver.no-gpu", "note", "a.txt:1"),
        ("Failed to initialize NVML: Unknown Error\n", "driver.not-answering", "fail", "a.txt:1"),
        (
            "Failed to initialize NVML: GPU access blocked by the operating system\n",
            "driver.not-answering",
            "fail",
            "a.txt:1",
        ),
    ],
)
def test_what_nvidia_smi_fails_with_is_the_finding_of_a_live_machine(
    text: str, check: str, state: str, place: str
) -> None:
    (found,) = _findings(text)[check]
    assert found.state.value == state
    assert any(e.source.startswith(place) for e in found.evidence)


def test_the_version_of_the_library_is_taken_from_the_line_below() -> None:
    (found,) = _findings(MISMATCH)["driver.versions-differ"]
    assert "the library is 535.161" in found.title
    assert ("a.txt:2 (NVML SystemGetNVMLVersion)", "535.161") in [(e.source, e.raw) for e in found.evidence]


@pytest.mark.parametrize(
    ("text", "subject", "place"),
    [
        (
            "Unable to determine the device handle for GPU 0000:5D:00.0: GPU is lost.  Reboot the system to recover "
            "this GPU\n",
            "0000:5d:00.0 GPU0",
            "a.txt:1",
        ),
        (
            "Unable to determine the device handle for GPU0000:1A:00.0: Unknown Error\n",
            "0000:1a:00.0 GPU0",
            "a.txt:1",
        ),
        (
            "Unable to determine the device handle for GPU1: 0000:65:00.0: Unknown Error\n",
            "0000:65:00.0 GPU1",
            "a.txt:1",
        ),
        (
            LIST + "Unable to determine the device handle for gpu 0000:65:00.0: Unknown Error\n",
            "0000:65:00.0 GPU1",
            "a.txt:2",
        ),
    ],
)
def test_a_gpu_without_a_handle_is_lost(text: str, subject: str, place: str) -> None:
    (found,) = _findings(text)["pcie.device-lost"]
    assert (found.state.value, found.subject) == ("fail", subject)
    assert found.evidence[0].source.startswith(place)


def test_a_kernel_log_without_its_start_is_judged_by_the_addresses_in_it() -> None:
    found = _findings(
        "[ 5001.1] NVRM: Xid (PCI:0000:47:00): 79, GPU has fallen off the bus.\n"
        "[ 5004.0] mlx5_core 0000:12:00.0: Port module event[error]: module 0, Cable error, Power budget exceeded\n"
    )["driver.kernel-log-errors"]
    assert {f.subject for f in found} == {"0000:47:00", "0000:12:00.0"}


@pytest.mark.parametrize("tables", [[("r", "CNS")], [("r", "OK"), ("w", "CNS")]])
def test_p2p_tables_are_judged_where_a_list_of_gpus_follows(tables: list[tuple[str, str]]) -> None:
    text = "".join(TABLE.format(letter, code, code) for letter, code in tables)
    more = LIST.replace("GPU 0", "GPU 1").replace("aaaaaaaa", "bbbbbbbb")
    (found,) = _findings(f"{text}$ nvidia-smi -L\n{LIST}{more}")["p2p.refused"]
    assert "CNS" in found.title


FIRST = "[    1.046099] NVRM: The NVIDIA GPU 0000:af:00.0 (PCI ID: 10de:1db5)\n"


@pytest.mark.parametrize(
    ("text", "words", "fix"),
    [
        (
            FIRST + "               NVRM: installed in this system is not supported by open\n"
            "               NVRM: nvidia.ko because it does not include the required GPU\n"
            "               NVRM: System Processor (GSP).\n",
            "not supported by the open kernel module",
            "proprietary kernel module",
        ),
        (
            FIRST + "               installed in this system requires use of the NVIDIA open kernel modules.\n",
            "supported by the open kernel module only",
            "open kernel modules in place",
        ),
        (
            "May 12 09:30:01 n1 kernel: NVRM: The NVIDIA GPU 0000:af:00.0 (PCI ID: 10de:1db5)\n"
            "May 12 09:30:01 n1 kernel: NVRM: installed in this system is not supported by the\n"
            "May 12 09:30:01 n1 kernel: NVRM: NVIDIA 590.44.01 driver release.\n",
            "release 590.44.01 of the driver",
            "supported products",
        ),
    ],
)
def test_a_message_of_several_lines_in_a_kernel_log(text: str, words: str, fix: str) -> None:
    """dmesg indents further lines, with or without NVRM; syslog gives each a stamp."""
    (found,) = _findings(text)["driver.kernel-log-errors"]
    assert (found.state.value, found.subject) == ("warn", "0000:af:00.0")
    assert words in found.title
    assert fix in (found.fix or "")
