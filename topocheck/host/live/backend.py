"""The live machine: the only place that opens files, runs programs or looks at the environment.

A question may block for ever (a read in a wedged driver, a mount whose server is gone). Nothing here tries to
prevent that: `host/gather/gather.py` asks from a child process that can be left behind.
"""

from __future__ import annotations

import errno
import os
import re
import stat as stat_module
import time
from typing import Any

from topocheck.host.base import Answer, HostError, key
from topocheck.host.live.command import run_command
from topocheck.host.live.filters import kept, kernel_option_allowed, variable_allowed
from topocheck.model.address import format_cpulist
from topocheck.model.base import Reason

_READ_LIMIT = 1 << 20
_LINES_LIMIT = 8 << 20  # /proc/cpuinfo of a thousand CPUs takes some 1.5 MB
_CHUNK = 1 << 16
_REASONS = {
    errno.ENOENT: Reason.ABSENT,
    errno.ENOTDIR: Reason.ABSENT,
    errno.ENODEV: Reason.ABSENT,
    errno.ENXIO: Reason.ABSENT,
    errno.EACCES: Reason.DENIED,
    errno.EPERM: Reason.DENIED,
    errno.ETIMEDOUT: Reason.TIMED_OUT,
}
_SETTING = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=")
_KINDS = {
    stat_module.S_IFREG: "file",
    stat_module.S_IFDIR: "dir",
    stat_module.S_IFCHR: "char",
    stat_module.S_IFBLK: "block",
    stat_module.S_IFLNK: "link",
    stat_module.S_IFIFO: "fifo",
    stat_module.S_IFSOCK: "socket",
}
_ACCESS = {"r": os.R_OK, "w": os.W_OK, "x": os.X_OK}


def reason_of(error: OSError) -> HostError:
    """Return the HostError for an error of the kernel; `detail` is the errno's name."""
    number = error.errno or 0
    return HostError(_REASONS.get(number, Reason.UNSUPPORTED), errno.errorcode.get(number, str(error)))


def text_of(name: str) -> str:
    """Return a name of the file system or environment as text that any encoder takes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class LiveBackend:
    """Answers questions from this machine.

    Args:
        root: the folder that stands for `/`. Any other than `/` is a captured tree: questions about files are
            answered from it and from nowhere else, all other questions are `not_recorded`.

    Attributes:
        until: time of `time.monotonic()` by which a command must be done, where the caller has such a time.
    """

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.realpath(root)
        self.until: float | None = None

    def ask(self, kind: str, *args: str | int) -> Answer:
        """Return the answer to one question (kinds: the methods of `Host`).

        Raises:
            HostError: there is no answer; says why.
        """
        method = getattr(self, f"_ask_{kind}", None)
        if method is None:
            raise HostError(Reason.UNSUPPORTED, f"no such question: {kind}")
        if self.root != "/" and kind in _PROCESS_KINDS:
            raise HostError(Reason.NOT_RECORDED, kind)
        try:
            return kept(key(kind, args), method(*args))
        except OSError as e:
            raise reason_of(e) from None
        except ValueError as e:  # a path with a NUL in it
            raise HostError(Reason.UNSUPPORTED, str(e)) from None

    def _path(self, path: str) -> str:
        if self.root == "/":
            return path
        inside = os.path.join(self.root, path.lstrip("/"))
        real = os.path.realpath(inside)
        if real != self.root and not real.startswith(self.root + "/"):
            raise HostError(Reason.ABSENT, "leads out of the captured tree")
        return inside

    def _read(self, path: str, limit: int) -> bytes:
        # Plain system calls: a broken driver may return EAGAIN for ever, and buffered files would retry.
        fd = os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            parts: list[bytes] = []
            left = limit
            while left > 0:
                part = os.read(fd, min(left, _CHUNK))
                if not part:
                    break
                parts.append(part)
                left -= len(part)
            return b"".join(parts)
        finally:
            os.close(fd)

    def _ask_read(self, path: str, limit: int = _READ_LIMIT) -> bytes:
        return self._read(path, limit)

    def _ask_lines(self, path: str, *prefixes: str) -> list[str]:
        text = self._read(path, _LINES_LIMIT).decode("utf-8", "replace")
        return [line for line in text.split("\n") if line.startswith(prefixes)]

    def _ask_list(self, path: str) -> list[str]:
        return sorted(text_of(n) for n in os.listdir(self._path(path)))

    def _ask_readlink(self, path: str) -> str:
        # The link itself may lead anywhere; only the folder that holds it must be inside.
        folder, name = os.path.split(path.rstrip("/"))
        return text_of(os.readlink(os.path.join(self._path(folder), name)))

    def _ask_realpath(self, path: str) -> str:
        real = os.path.realpath(self._path(path), strict=True)
        return text_of(real if self.root == "/" else real[len(self.root) :] or "/")

    def _ask_stat(self, path: str) -> dict[str, Any]:
        s = os.stat(self._path(path))
        return {
            "kind": _KINDS.get(stat_module.S_IFMT(s.st_mode), "file"),
            "size_bytes": s.st_size,
            "uid": s.st_uid,
            "gid": s.st_gid,
            "mode": stat_module.S_IMODE(s.st_mode),
            "mtime": int(s.st_mtime),
            "device": s.st_dev,
            "rdev": s.st_rdev,
        }

    def _ask_statvfs(self, path: str) -> list[int]:
        v = os.statvfs(self._path(path))
        return [v.f_blocks * v.f_frsize, v.f_bavail * v.f_frsize]

    def _ask_access(self, path: str, mode: str) -> bool:
        inside = self._path(path)
        os.stat(inside)  # what is absent is not the same as what is denied
        bits = 0
        for letter in mode:
            bits |= _ACCESS.get(letter, 0)
        return os.access(inside, bits)

    def _ask_conf(self, path: str) -> list[str]:
        out = []
        for number, line in enumerate(self._read(path, _READ_LIMIT).decode("utf-8", "replace").split("\n"), 1):
            m = _SETTING.match(line)
            if m and variable_allowed(m[1]):
                out.append(f"{number}\t{line}")
        return out

    def _ask_kernel_options(self) -> list[str]:
        words = self._read("/proc/cmdline", _READ_LIMIT).decode("utf-8", "replace").split()
        return [w for w in words if kernel_option_allowed(w)]

    def _ask_kernel_log(self) -> list[str]:
        from topocheck.host.live.kmsg import read_kmsg

        return read_kmsg(self._path("/dev/kmsg"))

    def _ask_environ(self) -> dict[str, str]:
        return {text_of(k): text_of(v) for k, v in sorted(os.environ.items()) if variable_allowed(k)}

    def _ask_run(self, timeout_s: int, *argv: str) -> dict[str, Any]:
        left = float(timeout_s)
        if self.until is not None:
            left = max(0.1, min(left, self.until - time.monotonic()))
        return run_command([str(a) for a in argv], left)

    def _ask_process(self) -> dict[str, Any]:
        import sys

        return {
            "uid": os.getuid(),
            "gid": os.getgid(),
            "home": text_of(_home()),
            "affinity": format_cpulist(os.sched_getaffinity(0)),
            "python_version": ".".join(map(str, sys.version_info[:3])),
            "sys_path": [text_of(p) for p in sys.path],
        }

    def _ask_psutil(self, call: str) -> Answer:
        from topocheck.host.live.psutil import ask

        return ask(call)

    def _ask_nvml(self, call: str, *args: str | int) -> Answer:
        from topocheck.host.live.nvml import ask

        return ask(call, *args)

    def _ask_cuda(self, call: str, *args: str | int) -> Answer:
        from topocheck.host.live.cuda import ask

        return ask(call, *args)

    def _ask_pci_names(self, *ids: str) -> dict[str, list[str | None]]:
        from topocheck.host.live.pci_ids import lookup

        return lookup(lambda path: self._read(path, _LINES_LIMIT), ids)

    def _ask_now(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def _ask_duration(self, probe: str) -> float:
        raise HostError(Reason.NOT_RECORDED, probe)


_PROCESS_KINDS = frozenset({"environ", "run", "process", "psutil", "nvml", "cuda", "statvfs", "kernel_log"})


def _home() -> str:
    """Return this user's home folder as the user database gives it, which is where NCCL looks."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return os.environ.get("HOME", "/")
