"""NUMA nodes, sockets, and the CPUs and memory nodes that this process may use.

From /sys/devices/system/node (Linux Documentation/ABI/stable/sysfs-devices-node), the topology of one CPU per
socket, /proc/self/status and the cpuset of this process's control group.
"""

from __future__ import annotations

import re

from topocheck.host.base import Host, HostError
from topocheck.model.address import parse_cpulist, short_cpulist
from topocheck.model.base import Missing, Reason, is_digits, is_lost, unparsable, value_or
from topocheck.model.system import NumaFacts, NumaNode
from topocheck.probes import cgroup
from topocheck.probes.cpuinfo import CPUINFO_BYTES, parse_cpuinfo
from topocheck.probes.sysfs_reader import Folder, parse_int, text_or_missing

NODES = "/sys/devices/system/node"
CPUS = "/sys/devices/system/cpu"
_MEMINFO = re.compile(r"Node\s+\d+\s+(\w+):\s*(\d{1,18})\s*kB", re.ASCII)
_MAX_SOCKETS = 64
_MAX_NODES = 1 << 10
"""NODES_SHIFT is at most 10 (Linux arch/x86/Kconfig, arch/arm64/Kconfig)."""


def parse_list(text: str) -> str | Missing:
    """Return a kernel list in its shortest form (`0-3,8`); the empty text stands for the empty set."""
    try:
        return short_cpulist(text)
    except ValueError:
        return unparsable(text)


def parse_nodes(text: str) -> str | Missing:
    """Return a list of memory nodes in its shortest form; each is asked, so a list no kernel can give is refused."""
    found = parse_list(text)
    if isinstance(found, str) and max(parse_cpulist(found), default=0) >= _MAX_NODES:
        return unparsable(text)
    return found


def parse_distances(text: str) -> tuple[int, ...] | Missing:
    """Return the distances to the online nodes in their order (10 is local; ACPI 6.5, 5.2.17)."""
    words = text.split()
    if not words or not all(is_digits(w, 4) for w in words):
        return unparsable(text)
    return tuple(map(int, words))


def parse_meminfo(lines: list[str]) -> dict[str, int]:
    """Return name -> bytes of the lines of a node's `meminfo` (the kernel's kB are 1024 bytes)."""
    return {m[1]: int(m[2]) * 1024 for line in lines if (m := _MEMINFO.match(line.strip()))}


def parse_status(lines: list[str]) -> dict[str, str]:
    """Return name -> text of `Name: value` lines of /proc/self/status."""
    return {name.strip(): value.strip() for name, sep, value in (line.partition(":") for line in lines) if sep}


def read(host: Host) -> NumaFacts:
    """Return the NUMA nodes and sockets of this machine, and this process's share of them."""
    raw: dict[str, str] = {}
    nodes = Folder(host, NODES, raw)
    online = nodes.value("online", parse_nodes)
    online_cpus = Folder(host, CPUS, raw).value("online", parse_list)
    packages = _packages(host, online_cpus)
    allowed = _status(host, raw)
    groups = cgroup.read_groups(host)
    return NumaFacts(
        source="",
        raw=raw,
        nodes=tuple(_node(host, n) for n in sorted(parse_cpulist(online))) if isinstance(online, str) else online,
        online_nodes=online,
        has_cpu=nodes.value("has_cpu", parse_list),
        has_memory=nodes.value("has_memory", parse_list),
        online_cpus=online_cpus,
        sockets=len(packages) if packages else _no_socket(host, online_cpus),
        cores=_cores(host, packages, online_cpus),
        cpu_packages=packages,
        allowed_cpus=allowed if isinstance(allowed, Missing) else allowed.get("Cpus_allowed_list", _NO_LINE),
        allowed_mems=allowed if isinstance(allowed, Missing) else allowed.get("Mems_allowed_list", _NO_LINE),
        cgroup_cpus=_cpuset(host, groups, "cpus", raw),
        cgroup_mems=_cpuset(host, groups, "mems", raw),
    )


def _node(host: Host, number: int) -> NumaNode:
    folder = Folder(host, f"{NODES}/node{number}")
    try:
        names = (f"Node {number} MemTotal", f"Node {number} MemFree")
        lines = host.read_lines(f"{folder.path}/meminfo", *names)
        folder.raw["meminfo"] = "; ".join(" ".join(line.split()) for line in lines)
        memory: dict[str, int] | Missing = parse_meminfo(lines)
    except HostError as e:
        memory = e.missing()
    total: int | Missing
    free: int | Missing
    if isinstance(memory, Missing):
        total = free = memory
    else:
        none = Missing(Reason.UNPARSABLE, folder.raw["meminfo"][:80])
        total, free = memory.get("MemTotal", none), memory.get("MemFree", none)
    return NumaNode(
        source=folder.path,
        raw=folder.raw,
        node=number,
        cpulist=folder.value("cpulist", parse_list),
        distances=folder.value("distance", parse_distances),
        memory_total_bytes=total,
        memory_free_bytes=free,
    )


def _no_socket(host: Host, online: str | Missing) -> Missing:
    """Return why no CPU reports its socket: lost where what would tell was."""
    told = online
    if isinstance(online, str) and (cpus := parse_cpulist(online)):
        told = text_or_missing(host, f"{CPUS}/cpu{min(cpus)}/topology/core_siblings_list")
    lost = isinstance(told, Missing) and is_lost(told)
    return told if isinstance(told, Missing) and lost else Missing(Reason.ABSENT, "no CPU reports its socket")


def _packages(host: Host, online: str | Missing) -> dict[str, str]:
    """Return package -> its CPUs, asking one CPU of each: a server has hundreds of CPUs and a handful of sockets."""
    left = set(parse_cpulist(online)) if isinstance(online, str) else set()
    out: dict[str, str] = {}
    for _ in range(_MAX_SOCKETS):
        if not left:
            break
        cpu = min(left)
        left.discard(cpu)
        folder = Folder(host, f"{CPUS}/cpu{cpu}/topology")
        members = folder.value("package_cpus_list", parse_list)
        if isinstance(members, Missing):
            members = folder.value("core_siblings_list", parse_list)  # its name before Linux 5.3
        package = folder.value("physical_package_id", parse_int)
        if isinstance(members, Missing) or not members:
            break
        # Some Arm and Power firmware gives every package the id -1.
        name = str(package) if isinstance(package, int) and package >= 0 else f"of CPU {cpu}"
        out[name if name not in out else f"of CPU {cpu}"] = members
        left -= parse_cpulist(members)
    return out


def _cores(host: Host, packages: dict[str, str], online: str | Missing) -> int | Missing:
    """Return the number of cores: `cpu cores` of /proc/cpuinfo (x86 has it) for each socket.

    Elsewhere from the number of threads of each socket's first core, as cores are of one kind there.
    """
    per_socket = parse_cpuinfo(value_or(text_or_missing(host, "/proc/cpuinfo", CPUINFO_BYTES), "")).get("cpu cores", "")
    if packages and is_digits(per_socket, 6):
        return int(per_socket) * len(packages)
    total = 0
    for members in packages.values():
        cpus = parse_cpulist(members)  # not empty: _packages leaves such a list out
        folder = Folder(host, f"{CPUS}/cpu{min(cpus)}/topology")
        threads = folder.value("core_cpus_list", parse_list)
        if isinstance(threads, Missing):
            threads = folder.value("thread_siblings_list", parse_list)  # its name before Linux 5.3
        if isinstance(threads, Missing):
            return threads
        total += len(cpus) // max(1, len(parse_cpulist(threads)))
    return total or _no_socket(host, online)


_NO_LINE = Missing(Reason.ABSENT, "not in /proc/self/status")


def _status(host: Host, raw: dict[str, str]) -> dict[str, str] | Missing:
    try:
        lines = host.read_lines("/proc/self/status", "Cpus_allowed_list:", "Mems_allowed_list:")
    except HostError as e:
        return e.missing()
    found = parse_status(lines)
    raw |= {f"/proc/self/status {name}": value for name, value in found.items()}
    return {n: v for n, v in ((n, parse_list(v)) for n, v in found.items()) if isinstance(v, str)}


def _untold(host: Host) -> Missing:
    told = text_or_missing(host, "/proc/self/cgroup")
    return told if isinstance(told, Missing) else Missing(Reason.ABSENT)


def _cpuset(host: Host, groups: dict[str, str], what: str, raw: dict[str, str]) -> str | Missing:
    files = (f"cpuset.effective_{what}", f"cpuset.{what}") if "cpuset" in groups else (f"cpuset.{what}.effective",)
    if not groups and is_lost(why := _untold(host)):
        return why
    answer = cgroup.first_text(host, [f"{d}/{f}" for d in cgroup.folders(groups, "cpuset") for f in files])
    if isinstance(answer, Missing):
        return answer
    raw[answer[0]] = answer[1]
    return parse_list(answer[1])
