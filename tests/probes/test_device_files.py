"""The driver's device files, its library, and the kernel's interface for peer memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.probes.answers import host_of
from topocheck.host.base import HostError
from topocheck.model.base import Missing, Reason
from topocheck.probes.device_files import read_device_files
from topocheck.probes.kernel_log import MAX_LINES, read_kernel_log
from topocheck.probes.modules import PEER_MEMORY, peer_memory_symbol
from topocheck.probes.nvml_library import read_libraries

CHAR = {"kind": "char", "size_bytes": 0, "gid": 0, "mtime": 0, "device": 5, "rdev": 1}


def answers(mode: int, opens: bool, *, uid: int = 1000, owner: int = 0) -> dict[str, Any]:
    return {
        "list:/dev": ["nvidia-caps", "nvidia-modeset", "nvidia10", "nvidia2", "nvidiactl", "sda"],
        "process:": {"uid": uid},
        **{f"stat:/dev/{n}": {**CHAR, "uid": owner, "mode": mode} for n in ("nvidia10", "nvidia2", "nvidiactl")},
        **{f"access:/dev/{n}|rw": opens for n in ("nvidia10", "nvidia2", "nvidiactl")},
    }


@pytest.mark.parametrize(
    ("mode", "opens", "uid", "owner", "by_mode"),
    [
        (0o666, True, 1000, 0, False),
        (0o666, False, 1000, 0, False),  # the mode lets anybody in: the device cgroup refuses
        (0o660, False, 1000, 0, True),
        (0o600, False, 1000, 1000, False),
        (0o660, False, 0, 0, False),  # root needs no mode
    ],
)
def test_who_refuses(mode: int, opens: bool, uid: int, owner: int, by_mode: bool) -> None:
    raw: dict[str, str] = {}
    files = read_device_files(host_of(answers(mode, opens, uid=uid, owner=owner)), raw)
    assert isinstance(files, tuple)
    assert [f.path for f in files] == ["/dev/nvidiactl", "/dev/nvidia2", "/dev/nvidia10"]
    assert all(f.refused is (not opens) and f.by_mode is by_mode for f in files)
    assert raw["/dev/nvidia2"].startswith("may be opened" if opens else "may not be opened")


def test_a_file_that_says_nothing_is_no_refusal() -> None:
    said = answers(0o666, True) | {"access:/dev/nvidia2|rw": HostError(Reason.TIMED_OUT, "x")}
    files = read_device_files(host_of(said), {})
    assert isinstance(files, tuple)
    assert not files[1].refused
    assert isinstance(files[1].opens, Missing)


def test_an_old_recording_has_no_device_files() -> None:
    found = read_device_files(host_of({}), {})
    assert isinstance(found, Missing)
    assert found.reason is Reason.NOT_RECORDED


def test_the_library_behind_the_links() -> None:
    path = "/usr/lib64/libnvidia-ml.so.1"
    raw: dict[str, str] = {}
    found = read_libraries(host_of({f"realpath:{path}": "/usr/lib64/libnvidia-ml.so.580.95.05"}), raw)
    assert found == {path: "libnvidia-ml.so.580.95.05"} == raw


@pytest.mark.parametrize(
    ("lines", "found"), [([f"{PEER_MEMORY} ib_core"], True), ([], False), (HostError(Reason.ABSENT, "ENOENT"), None)]
)
def test_the_peer_memory_interface(lines: Any, found: bool | None) -> None:
    """depmod lists every symbol that a module exports, by the module."""
    question = f"lines:/lib/modules/6.8.0-45-generic/modules.symbols|{PEER_MEMORY}"
    said = peer_memory_symbol(host_of({question: lines}), "6.8.0-45-generic", {})
    assert said is found if found is not None else isinstance(said, Missing)


def test_the_newest_of_repeated_lines_is_kept() -> None:
    log = [f"NVRM: Xid (PCI:0000:3b:00): {n}" for n in (31, 79, 31)]
    assert read_kernel_log(host_of({"kernel_log:": log})) == tuple(log[1:])
    many = host_of({"kernel_log:": [f"NVRM: Xid (PCI:0000:3b:00): {n}" for n in range(300)]})
    found = read_kernel_log(many)
    assert isinstance(found, tuple)
    assert len(found) == MAX_LINES
    assert many.left_out


def test_a_log_that_root_alone_may_read() -> None:
    found = read_kernel_log(host_of({"kernel_log:": HostError(Reason.DENIED, "EPERM")}))
    assert isinstance(found, Missing)
    assert found.reason is Reason.DENIED
