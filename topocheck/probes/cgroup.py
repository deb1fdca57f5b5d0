"""Where this process's control group shows its files, for both versions of cgroups.

`/proc/self/cgroup` has one line per hierarchy, `number:controllers:path` (cgroups(7)). Without a cgroup namespace
a container sees the host's path there while only its own group is mounted at the mount point.
"""

from __future__ import annotations

from topocheck.host.base import Host, HostError
from topocheck.model.base import ABSENT, Missing, is_digits

MOUNT = "/sys/fs/cgroup"
_MAX_DEPTH = 16


def parse_cgroup(text: str) -> dict[str, str]:
    """Return controller -> path; the unified hierarchy of version 2 is the controller with the empty name."""
    out: dict[str, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not is_digits(number.strip()) or not path.startswith("/"):
            continue
        for controller in controllers.split(","):
            if not controller.startswith("name="):
                out[controller] = path
    return out


def folders(groups: dict[str, str], controller: str) -> list[str]:
    """Return the folders that rule over this process for a controller: its own group first, then those above it.

    A group where a controller is not enabled has no files of it and lives by those above, and a limit holds for
    everything below, so the ancestors count. What is not mounted here simply gives no answer.
    """
    out: list[str] = []
    if controller in groups:  # version 1, one mount per controller
        out += _upwards(f"{MOUNT}/{controller}", groups[controller])
    elif "" in groups:
        out += _upwards(MOUNT, groups[""])
    return out


def _upwards(mount: str, path: str) -> list[str]:
    parts = [p for p in path.split("/") if p]
    if ".." in parts:  # the group lies outside of this cgroup namespace
        return [mount]
    return ["/".join((mount, *parts[:n])) for n in range(min(len(parts), _MAX_DEPTH), -1, -1)]


def read_groups(host: Host) -> dict[str, str]:
    """Return the groups of this process; empty where they cannot be read."""
    try:
        return parse_cgroup(host.read_text("/proc/self/cgroup"))
    except HostError:
        return {}


def first_text(host: Host, paths: list[str]) -> tuple[str, str] | Missing:
    """Return (path, stripped text) of the first file that can be read; else why the first could not."""
    why: Missing | None = None
    for path in paths:
        try:
            return path, host.read_text(path).strip()
        except HostError as e:
            why = why or e.missing()
    return why or ABSENT


def all_texts(host: Host, paths: list[str]) -> dict[str, str] | Missing:
    """Return path -> stripped text of every file that can be read; else why the first could not."""
    out: dict[str, str] = {}
    why: Missing | None = None
    for path in paths:
        try:
            out[path] = host.read_text(path).strip()
        except HostError as e:
            why = why or e.missing()
    return out or why or ABSENT
