"""Limits of this process: resource limits, shared memory, capabilities, the control group's memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from topocheck.host.base import Host, HostError
from topocheck.model.base import ABSENT, Missing, Reason, is_digits, unparsable
from topocheck.model.system import Limits
from topocheck.probes import cgroup

T = TypeVar("T")

SHM = "/dev/shm"
_MAX_LEFTOVERS = 1000
_V1_UNLIMITED = 1 << 62
"""A version 1 group without a limit says the largest page-aligned 64-bit number (PAGE_COUNTER_MAX)."""

CAPABILITIES = {12: "NET_ADMIN", 14: "IPC_LOCK", 15: "IPC_OWNER", 19: "SYS_PTRACE", 21: "SYS_ADMIN", 23: "SYS_NICE",
                24: "SYS_RESOURCE"}  # fmt: skip
"""Bit of the capability sets -> name (Linux include/uapi/linux/capability.h), those that matter to GPU jobs."""

_NAMES = {
    "memlock_bytes": "Max locked memory",
    "nofile": "Max open files",
    "stack_bytes": "Max stack size",
    "nproc": "Max processes",
}


def parse_limits(text: str) -> dict[str, int | None]:
    """Return name -> soft limit of /proc/self/limits; None is unlimited. Lines of other forms are skipped.

    The columns are padded to fixed widths and names hold blanks, so a line is read from its right end.
    """
    out: dict[str, int | None] = {}
    for line in text.splitlines():
        m = re.match(r"(\S+(?: \S+)*?)\s{2,}(unlimited|[0-9]{1,20})\s+(?:unlimited|[0-9]{1,20})(?:\s|$)", line)
        if m:
            out[m[1]] = None if m[2] == "unlimited" else int(m[2])
    return out


def parse_capabilities(text: str) -> tuple[str, ...] | Missing:
    """Return the names of the bits of a capability set (16 hex digits) that matter, lowest bit first."""
    if not re.fullmatch(r"[0-9a-fA-F]{1,16}", text.strip()):
        return unparsable(text)
    bits = int(text.strip(), 16)
    return tuple(name for bit, name in sorted(CAPABILITIES.items()) if bits >> bit & 1)


def parse_memory_max(text: str) -> int | Missing | None:
    """Return the limit of a control group in bytes, None for no limit (`max`, or version 1's largest number)."""
    text = text.strip()
    if text == "max":
        return None
    if not is_digits(text, 20):
        return unparsable(text)
    return None if int(text) >= _V1_UNLIMITED else int(text)


def read(host: Host) -> Limits:
    """Return the limits of this process."""
    raw: dict[str, str] = {}
    status = _status(host, raw)
    total, free = _shm(host, raw)
    leftovers, others = _leftovers(host)
    return Limits(
        source="",
        raw=raw,
        **_resource_limits(host, raw),
        shm_total_bytes=total,
        shm_free_bytes=free,
        shm_device=_device(host),
        shm_leftovers=leftovers,
        shm_leftovers_unlisted=others,
        capabilities=_field(status, "CapEff", parse_capabilities),
        seccomp=_field(status, "Seccomp", _number),
        memory_max_bytes=_memory_max(host, raw),
        uid=_uid(host),
    )


def _number(text: str) -> int | Missing:
    return int(text) if is_digits(text, 10) else unparsable(text)


def _field(status: dict[str, str] | Missing, name: str, parse: Callable[[str], T | Missing]) -> T | Missing:
    if isinstance(status, Missing):
        return status
    return parse(status[name]) if name in status else Missing(Reason.UNSUPPORTED, f"no {name} in /proc/self/status")


def _resource_limits(host: Host, raw: dict[str, str]) -> dict[str, Any]:
    try:
        text = host.read_text("/proc/self/limits")
    except HostError as e:
        return dict.fromkeys(_NAMES, e.missing())
    found = parse_limits(text)
    for name in _NAMES.values():
        line = next((line for line in text.splitlines() if line.startswith(name)), None)
        if line:
            raw[f"/proc/self/limits {name}"] = " ".join(line[len(name) :].split())
    none = Missing(Reason.UNPARSABLE, "no such line in /proc/self/limits")
    return {field: found.get(name, none) for field, name in _NAMES.items()}


def _status(host: Host, raw: dict[str, str]) -> dict[str, str] | Missing:
    try:
        lines = host.read_lines("/proc/self/status", "CapEff:", "Seccomp:")
    except HostError as e:
        return e.missing()
    found = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw.update({f"/proc/self/status {name}": value for name, value in found.items()})
    return found


def _shm(host: Host, raw: dict[str, str]) -> tuple[int | Missing, int | Missing]:
    try:
        total, free = host.statvfs(SHM)
    except HostError as e:
        return e.missing(), e.missing()
    if free is None:
        raw[f"statvfs {SHM}"] = f"{total} bytes"
        return total, Missing(Reason.NOT_RECORDED, "the size alone")
    raw[f"statvfs {SHM}"] = f"{total} bytes, {free} free"
    return total, free


def _device(host: Host) -> int | Missing:
    try:
        return host.stat(SHM).device
    except HostError as e:
        return e.missing()


def _leftovers(host: Host) -> tuple[tuple[tuple[str, int, int, int], ...] | Missing, int]:
    """Return the files that NCCL left in shared memory, and how many more there are than are listed.

    Ages are against the clock of this run; a file of the future is 0 seconds old. One that vanishes while it is
    looked at belongs to a running job and is left out.
    """
    try:
        names = [n for n in host.listdir(SHM) if n.startswith("nccl-")]
    except HostError as e:
        return e.missing(), 0
    now = _seconds(host)
    out = []
    for name in names[:_MAX_LEFTOVERS]:
        try:
            s = host.stat(f"{SHM}/{name}")
        except HostError:
            continue
        out.append((name, s.size_bytes, s.uid, max(0, now - s.mtime)))
    return tuple(out), max(0, len(names) - _MAX_LEFTOVERS)


def _seconds(host: Host) -> int:
    """Return the time of this run in seconds since 1970, 0 where it is not known."""
    import datetime  # strptime of `time` loads five modules and compiles its format

    try:
        return int(datetime.datetime.fromisoformat(host.now()).timestamp())
    except (HostError, ValueError):
        return 0


def _memory_max(host: Host, raw: dict[str, str]) -> int | Missing | None:
    """Return the smallest limit of this process's group and those above it."""
    name = "memory.limit_in_bytes" if "memory" in (groups := cgroup.read_groups(host)) else "memory.max"
    answers = cgroup.all_texts(host, [f"{d}/{name}" for d in cgroup.folders(groups, "memory")])
    if isinstance(answers, Missing):
        return answers
    smallest: int | Missing | None = None
    for path, text in answers.items():
        limit = parse_memory_max(text)
        if isinstance(limit, int) and (not isinstance(smallest, int) or limit < smallest):
            smallest = limit
            raw[path] = text
        elif isinstance(limit, Missing) and smallest is None:
            smallest = limit
    if smallest is None:
        path = next(iter(answers))
        raw[path] = answers[path]
    return smallest


def _uid(host: Host) -> int | Missing:
    try:
        return int(host.process()["uid"])
    except HostError as e:
        return e.missing()
    except (KeyError, TypeError, ValueError):
        return ABSENT
