"""NUMA nodes, sockets, and this process's share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probes.trees import host_of
from topocheck.host.base import Host
from topocheck.host.live.backend import LiveBackend
from topocheck.model.base import Missing, Reason
from topocheck.probes import cgroup, numa

NODE = "/sys/devices/system/node"
CPU = "/sys/devices/system/cpu"


def meminfo(node: int, total_kb: int, free_kb: int) -> str:
    return (
        f"Node {node} MemTotal:       {total_kb} kB\nNode {node} MemFree:        {free_kb} kB\nNode {node} Active: 1 kB"
    )


def node(number: int, cpus: str, distance: str, total_kb: int = 1024) -> dict[str, str]:
    here = f"{NODE}/node{number}"
    return {f"{here}/cpulist": cpus, f"{here}/distance": distance, f"{here}/meminfo": meminfo(number, total_kb, 512)}


def power9() -> dict[str, str]:
    """Return an AC922: nodes 0 and 8 have CPUs, 252 to 255 are memory of four GPUs; its numactl -H gives 80 and 40."""
    far = {0: "10 40 80 80 80 80", 8: "40 10 80 80 80 80"}
    tree = {
        f"{NODE}/online": "0,8,252-255",
        f"{NODE}/has_cpu": "0,8",
        f"{NODE}/has_memory": "0,8,252-255",
        f"{CPU}/online": "0-7",
    }
    tree |= node(0, "0-3", far[0], 267_000_000) | node(8, "4-7", far[8], 268_000_000)
    for place, number in enumerate((252, 253, 254, 255), 2):
        row = ["80"] * 6
        row[place] = "10"
        tree |= node(number, "", " ".join(row), 16_515_072)
    for cpus, package in (("0-3", "0"), ("4-7", "8")):
        first = cpus[0]
        tree |= {
            f"{CPU}/cpu{first}/topology/package_cpus_list": cpus,
            f"{CPU}/cpu{first}/topology/physical_package_id": package,
            f"{CPU}/cpu{first}/topology/core_cpus_list": cpus,
        }
    return tree


def test_gaps_and_memory_only_nodes(tmp_path: Path) -> None:
    host, _ = host_of(tmp_path, power9())
    facts = numa.read(host)
    assert isinstance(facts.nodes, tuple)
    assert [n.node for n in facts.nodes] == [0, 8, 252, 253, 254, 255]
    assert [n.cpulist for n in facts.nodes] == ["0-3", "4-7", "", "", "", ""]
    assert facts.nodes[1].distances == (40, 10, 80, 80, 80, 80)  # by order of the online nodes, not by number
    assert facts.nodes[5].memory_total_bytes == 16_515_072 * 1024
    assert facts.sockets == 2
    assert facts.cpu_packages == {"0": "0-3", "8": "4-7"}
    assert facts.cores == 2  # one core of four threads in each
    assert facts.has_cpu == "0,8"


def test_sockets_take_a_few_questions(tmp_path: Path) -> None:
    tree = {f"{CPU}/online": "0-255", f"{NODE}/online": "0"}
    even = ",".join(str(n) for n in range(0, 256, 2))  # interleaved, as Dell numbers them
    odd = ",".join(str(n) for n in range(1, 256, 2))
    for first, cpus, package in (("0", even, "0"), ("1", odd, "1")):
        tree |= {
            f"{CPU}/cpu{first}/topology/package_cpus_list": cpus,
            f"{CPU}/cpu{first}/topology/physical_package_id": package,
            f"{CPU}/cpu{first}/topology/core_cpus_list": f"{first},{int(first) + 128}",
        }
    host, backend = host_of(tmp_path, tree)
    facts = numa.read(host)
    assert facts.sockets == 2
    assert facts.cores == 128  # 256 CPUs, two threads in each core
    assert facts.cpu_packages["1"] == odd
    assert len([q for q in backend.asked if "/topology/" in q]) == 6


def test_old_kernels_name_the_files_otherwise(tmp_path: Path) -> None:
    tree = {
        f"{CPU}/online": "0-3",
        f"{CPU}/cpu0/topology/core_siblings_list": "0-3",
        f"{CPU}/cpu0/topology/physical_package_id": "-1",  # some firmware gives none
        f"{CPU}/cpu0/topology/thread_siblings_list": "0-1",
    }
    host, _ = host_of(tmp_path, tree)
    facts = numa.read(host)
    assert (facts.sockets, facts.cores) == (1, 2)
    assert list(facts.cpu_packages.values()) == ["0-3"]


def test_cores_of_x86_come_from_cpuinfo(tmp_path: Path) -> None:
    # A hybrid laptop: eight threads, two big cores of two threads and four small ones of one: six cores.
    tree = {
        "/proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu cores\t: 6\n\nprocessor\t: 1",
        f"{CPU}/online": "0-7",
        f"{CPU}/cpu0/topology/package_cpus_list": "0-7",
        f"{CPU}/cpu0/topology/physical_package_id": "0",
        f"{CPU}/cpu0/topology/core_cpus_list": "0-1",
    }
    host, _ = host_of(tmp_path, tree)
    assert numa.read(host).cores == 6


def test_kernel_without_numa(tmp_path: Path) -> None:
    host, _ = host_of(tmp_path, {f"{CPU}/online": "0-1"})
    facts = numa.read(host)
    assert isinstance(facts.nodes, Missing)
    assert facts.nodes.reason is Reason.ABSENT
    assert isinstance(facts.sockets, Missing)
    assert facts.online_cpus == "0-1"


def test_one_unreadable_node_loses_only_itself(tmp_path: Path) -> None:
    tree = {f"{NODE}/online": "0-1"} | node(0, "0-3", "10 21")
    host, _ = host_of(tmp_path, tree)
    facts = numa.read(host)
    assert isinstance(facts.nodes, tuple)
    assert facts.nodes[0].distances == (10, 21)
    assert isinstance(facts.nodes[1].cpulist, Missing)
    assert isinstance(facts.nodes[1].memory_total_bytes, Missing)


STATUS = "Name:\tpython\nUid:\t1000\t1000\nCpus_allowed:\tff\nCpus_allowed_list:\t8-11,40\nMems_allowed_list:\t1\n"


def test_allowed_cpus_and_version_2_cpuset(tmp_path: Path) -> None:
    job = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
    tree = {
        "/proc/self/status": STATUS,
        "/proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        f"{job}/cpuset.cpus.effective": "8-11,40",
        f"{job}/cpuset.mems.effective": "1",
        "/sys/fs/cgroup/cpuset.cpus.effective": "0-63",
    }
    host, backend = host_of(tmp_path, tree)
    facts = numa.read(host)
    assert (facts.allowed_cpus, facts.allowed_mems) == ("8-11,40", "1")
    # The controller is not enabled in the step: the job's group rules, not the machine's.
    assert (facts.cgroup_cpus, facts.cgroup_mems) == ("8-11,40", "1")
    assert "lines:/proc/self/status|Cpus_allowed_list:|Mems_allowed_list:" in backend.asked
    assert "read:/proc/self/status" not in backend.asked


def test_version_1_cpuset_of_a_container_without_a_namespace(tmp_path: Path) -> None:
    tree = {
        "/proc/self/cgroup": "11:cpuset:/docker/0123456789ab\n3:memory:/docker/0123456789ab\n1:name=systemd:/x\n0::/",
        "/sys/fs/cgroup/cpuset/cpuset.effective_cpus": "2-3",
        "/sys/fs/cgroup/cpuset/cpuset.effective_mems": "0",
    }
    host, _ = host_of(tmp_path, tree)
    facts = numa.read(host)
    assert (facts.cgroup_cpus, facts.cgroup_mems) == ("2-3", "0")


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("0::/user.slice/a.scope", {"": "/user.slice/a.scope"}),
        ("4:memory:/a\n3:cpu,cpuacct:/b\n1:name=systemd:/c", {"memory": "/a", "cpu": "/b", "cpuacct": "/b"}),
        ("", {}),
        ("x:y", {}),
    ],
)
def test_cgroup_lines(text: str, groups: dict[str, str]) -> None:
    assert cgroup.parse_cgroup(text) == groups


def test_groups_above_rule_too() -> None:
    assert cgroup.folders({"": "/a/b"}, "memory") == ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]
    assert cgroup.folders({"memory": "/a", "": "/"}, "memory") == ["/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"]
    assert cgroup.folders({"": "/../../outside"}, "memory") == ["/sys/fs/cgroup"]
    assert cgroup.folders({}, "memory") == []


@given(text=st.text(max_size=200))
def test_parsers_never_raise(text: str) -> None:
    numa.parse_list(text)
    numa.parse_distances(text)
    numa.parse_meminfo(text.split("\n"))
    numa.parse_status(text.split("\n"))
    for path in cgroup.parse_cgroup(text).values():
        assert all(p.startswith("/sys/fs/cgroup") for p in cgroup.folders({"": path}, "cpuset"))


@given(numbers=st.sets(st.integers(0, 4096), max_size=64))
def test_list_of_single_numbers_is_the_set(numbers: set[int]) -> None:
    from topocheck.model.address import parse_cpulist

    answer = numa.parse_list(",".join(map(str, numbers)))
    assert isinstance(answer, str)
    assert parse_cpulist(answer) == numbers


def test_this_machine_agrees_with_its_own_affinity() -> None:
    import os

    from topocheck.model.address import parse_cpulist

    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc here")
    allowed = numa.read(Host(LiveBackend())).allowed_cpus
    assert isinstance(allowed, str)
    assert parse_cpulist(allowed) == os.sched_getaffinity(0)
