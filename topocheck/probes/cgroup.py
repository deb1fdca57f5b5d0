"""Where this process's control group shows its files, for both versions of cgroups.

`/proc/self/cgroup` has one line per hierarchy, `number:controllers:path` (cgroups(7)). Without a cgroup namespace
a container sees the host's path there while only its own group is mounted, so the mount point itself is tried too.
"""

from __future__ import annotations

from topocheck.host.base import Host, HostError
from topocheck.model.base import ABSENT, Missing

MOUNT = "/sys/fs/cgroup"


def parse_cgroup(text: str) -> dict[str, str]:
    """Return controller -> path; the unified hierarchy of version 2 is the controller with the empty name."""
    out: dict[str, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not number.strip().isdigit() or not path.startswith("/"):
            continue
        for controller in controllers.split(","):
            if not controller.startswith("name="):
                out[controller] = path
    return out


def folders(groups: dict[str, str], controller: str) -> list[str]:
    """Return the folders in which the files of a controller may be, the most likely first."""
    out = []
    if controller in groups:  # version 1, one mount per controller
        out += [f"{MOUNT}/{controller}{groups[controller].rstrip('/')}", f"{MOUNT}/{controller}"]
    if "" in groups:
        out += [f"{MOUNT}{groups[''].rstrip('/')}", MOUNT]
    return list(dict.fromkeys(p for p in out if "/../" not in f"{p}/"))


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
            return path, host.read_text(path, 1 << 14).strip()
        except HostError as e:
            why = why or e.missing()
    return why or ABSENT
