"""Limits of a process."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probes.trees import host_of
from topocheck.host.base import Host
from topocheck.host.live.backend import LiveBackend
from topocheck.model.base import Missing, Reason
from topocheck.probes import limits

TABLE = """\
Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max stack size            8388608              unlimited            bytes     
Max processes             1031199              1031199              processes 
Max open files            1024                 1048576              files     
Max locked memory         65536                unlimited            bytes     
Max nice priority         0                    0                    
Max realtime timeout      unlimited            unlimited            us        
"""  # noqa: W291


def test_limits_table() -> None:
    found = limits.parse_limits(TABLE)
    assert found["Max locked memory"] == 65536
    assert found["Max open files"] == 1024
    assert found["Max cpu time"] is None
    assert found["Max nice priority"] == 0
    assert "Limit" not in found


def test_read(tmp_path: Path) -> None:
    tree = {
        "/proc/self/limits": TABLE.rstrip("\n"),
        "/proc/self/status": "CapInh:\t0\nCapEff:\t0000000000804000\nSeccomp:\t2\nSeccomp_filters:\t1",
        "/proc/self/cgroup": "0::/kubepods/pod1/c1",
        "/sys/fs/cgroup/kubepods/pod1/c1/memory.max": "max",
        "/sys/fs/cgroup/kubepods/pod1/memory.max": str(64 << 30),
        "/sys/fs/cgroup/kubepods/memory.max": str(500 << 30),
        "/dev/shm/nccl-abc123": "x" * 99,
        "/dev/shm/other": "",
    }
    answers = {
        "statvfs:/dev/shm": [64 << 20, 10 << 20],
        "process:": {"uid": 1000},
        "now:": "2026-01-02T00:00:00Z",
    }
    host, _ = host_of(tmp_path, tree, answers)
    day_before = 1_767_225_600  # 2026-01-01T00:00:00Z
    os.utime(tmp_path / "dev/shm/nccl-abc123", (day_before, day_before))
    facts = limits.read(host)
    assert (facts.memlock_bytes, facts.nofile, facts.stack_bytes, facts.nproc) == (65536, 1024, 8388608, 1031199)
    assert facts.capabilities == ("IPC_LOCK", "SYS_NICE")  # bits 14 and 23 of 0x804000
    assert facts.seccomp == 2
    assert facts.memory_max_bytes == 64 << 30  # the pod's, the smallest on the way up
    assert (facts.shm_total_bytes, facts.shm_free_bytes) == (64 << 20, 10 << 20)
    assert facts.shm_leftovers == (("nccl-abc123", 100, os.getuid(), 86400),)
    assert facts.uid == 1000
    (quoted,) = facts.evidence("/proc/self/limits Max locked memory")
    assert quoted.raw == "65536 unlimited bytes"


def test_unlimited_is_none_not_minus_one(tmp_path: Path) -> None:
    table = "Max locked memory         unlimited            unlimited            bytes     "
    host, _ = host_of(tmp_path, {"/proc/self/limits": table})
    facts = limits.read(host)
    assert facts.memlock_bytes is None
    assert isinstance(facts.nofile, Missing)  # a line that is not there is not "no limit"


def test_nothing_there(tmp_path: Path) -> None:
    host, _ = host_of(tmp_path, {"/proc": None})
    facts = limits.read(host)
    for value in (facts.memlock_bytes, facts.shm_leftovers, facts.capabilities, facts.memory_max_bytes):
        assert isinstance(value, Missing)


def test_too_many_leftovers_are_counted(tmp_path: Path) -> None:
    names = [f"nccl-{n:05}" for n in range(1200)]
    shape = {"kind": "file", "size_bytes": 1, "uid": 0, "gid": 0, "mode": 0o600, "mtime": 0, "device": 1, "rdev": 0}
    answers = {"list:/dev/shm": names} | {f"stat:/dev/shm/{n}": shape for n in names}
    host, backend = host_of(tmp_path, {"/proc": None}, answers)
    facts = limits.read(host)
    assert isinstance(facts.shm_leftovers, tuple)
    assert (len(facts.shm_leftovers), facts.shm_leftovers_unlisted) == (1000, 200)
    assert len([q for q in backend.asked if q.startswith("stat:/dev/shm/")]) == 1000


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max", None),
        ("9223372036854771712", None),  # version 1, 4 KiB pages
        ("9223372036854710272", None),  # version 1, 64 KiB pages
        ("68719476736", 64 << 30),
        ("0", 0),
    ],
)
def test_memory_max(text: str, limit: int | None) -> None:
    assert limits.parse_memory_max(text) == limit


def test_version_1_memory(tmp_path: Path) -> None:
    tree = {
        "/proc/self/cgroup": "9:memory:/slurm/uid_7/job_1",
        "/sys/fs/cgroup/memory/slurm/uid_7/job_1/memory.limit_in_bytes": "9223372036854771712",
        "/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes": str(8 << 30),
    }
    host, _ = host_of(tmp_path, tree)
    assert limits.read(host).memory_max_bytes == 8 << 30


def test_capabilities_of_root_and_of_nobody() -> None:
    assert limits.parse_capabilities("0000000000000000") == ()
    everything = limits.parse_capabilities("000001ffffffffff")
    assert isinstance(everything, tuple)
    assert {"SYS_ADMIN", "SYS_NICE", "IPC_LOCK"} <= set(everything)
    assert limits.parse_capabilities("not hex").reason is Reason.UNPARSABLE  # type: ignore[union-attr]


@given(text=st.text(max_size=300))
def test_parsers_never_raise(text: str) -> None:
    limits.parse_limits(text)
    limits.parse_capabilities(text)
    limits.parse_memory_max(text)


def test_this_process_agrees_with_getrlimit() -> None:
    if not Path("/proc/self/limits").exists():
        pytest.skip("no /proc here")
    facts = limits.read(Host(LiveBackend()))
    for name, number in (("memlock_bytes", resource.RLIMIT_MEMLOCK), ("nofile", resource.RLIMIT_NOFILE)):
        soft = resource.getrlimit(number)[0]
        assert getattr(facts, name) == (None if soft == resource.RLIM_INFINITY else soft)
