"""The driver's device files: which are there, and which this process may open.

access(2) with R_OK and W_OK answers for the file's mode, for capabilities and for the device cgroup, without opening
anything: `inode_permission` in Linux fs/namei.c calls `devcgroup_inode_permission`. F_OK answers for none of them.
"""

from __future__ import annotations

import re
from typing import Any

from topocheck.host.base import FileStat, Host, HostError
from topocheck.model.base import Missing, small_number
from topocheck.model.system import DeviceFile
from topocheck.probes.sysfs_reader import list_or_missing

NAMES = re.compile(r"nvidia(?:[0-9]{1,3}|ctl|-uvm)", re.ASCII)
"""What a CUDA program opens; other files (nvidia-modeset, nvidia-caps) are not needed to compute."""
MAX_FILES = 1 << 9


def read_device_files(host: Host, raw: dict[str, str]) -> tuple[DeviceFile, ...] | Missing:
    """Return NVIDIA's device files, nvidiactl first and the GPUs' last; Missing where /dev cannot be listed."""
    names = list_or_missing(host, "/dev")
    if isinstance(names, Missing):
        return names
    named = sorted((n for n in names if NAMES.fullmatch(n)), key=_order)
    found = host.at_most(named, MAX_FILES, "files of NVIDIA's driver in /dev")
    user = _user(host)
    out = tuple(_file(host, f"/dev/{n}", user) for n in found)
    raw |= {f.path: _words(f) for f in out}
    return out


def _order(name: str) -> tuple[int, str]:
    number = small_number(name.removeprefix("nvidia"))
    return (-1, name) if number is None else (number, name)


def _user(host: Host) -> int | None:
    try:
        uid = host.process().get("uid")
    except HostError:
        return None
    return uid if isinstance(uid, int) else None


def _file(host: Host, path: str, user: int | None) -> DeviceFile:
    fields: dict[str, Any] = {}
    status: FileStat | None = None
    try:
        status = host.stat(path)
        fields = {"mode": status.mode, "uid": status.uid, "gid": status.gid}
    except HostError as e:
        fields = dict.fromkeys(("mode", "uid", "gid"), e.missing())
    try:
        opens: bool | Missing = host.access(path, "rw")
    except HostError as e:
        opens = e.missing()
    by_mode = opens is False and status is not None and user is not None and not _mode_allows(status, user)
    return DeviceFile(path=path, opens=opens, by_mode=by_mode, **fields)


def _mode_allows(status: FileStat, user: int) -> bool:
    """Tell whether the mode alone lets a user read and write; a member of the group would not have been refused."""
    if user == 0:
        return True
    return status.mode & (0o600 if status.uid == user else 0o006) in (0o600, 0o006)


def _words(f: DeviceFile) -> str:
    if isinstance(f.opens, Missing):
        return f"!{f.opens}"
    mode = f" (mode {f.mode:04o})" if isinstance(f.mode, int) else ""
    return ("may be opened" if f.opens else "may not be opened") + mode
