"""A described machine as a backend: the same questions, shapes and errors as host/live/backend.py."""

from __future__ import annotations

import re
from typing import Any

from tests.machines.cuda_answers import Cuda
from tests.machines.net_files import own_addresses
from tests.machines.nvml_answers import Nvml
from tests.machines.tree import Dir, Error, File, Tree, TreeError
from topocheck.host.base import Answer, HostError, key
from topocheck.host.live.backend import reason_of
from topocheck.host.live.filters import kept, kernel_option_allowed, variable_allowed
from topocheck.host.live.kmsg import message, of_interest
from topocheck.model.base import Reason

_SETTING = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=")
_OF_FILES = frozenset(
    "read lines list readlink realpath stat statvfs access conf kernel_options kernel_log pci_names".split()
)
"""Kinds of questions whose answers are made of the tree and of who asks."""


def host_error(errno_name: str) -> HostError:
    """Return what the live backend makes of an errno."""
    import errno

    return reason_of(OSError(getattr(errno, errno_name), errno_name))


class TreeBackend:
    """Answers from a tree and tables. `hangs` are questions (`read:/path`) that never come back: timed_out."""

    def __init__(self, tree: Tree, nvml: Nvml, cuda: Cuda, d: dict[str, Any]) -> None:
        self.tree = tree
        self.nvml = nvml
        self.cuda = cuda
        self.description = d
        self.hangs = set(d.get("hangs", []))
        system = d.get("system", {})
        self.uid = 0 if system.get("root") else int(d.get("process", {}).get("uid", 1000))

    def ask(self, kind: str, *args: str | int) -> Answer:
        """Return the answer to one question.

        Raises:
            HostError: there is none; says why.
        """
        if self.hangs and f"{kind}:{'|'.join(map(str, args))}" in self.hangs:
            raise HostError(Reason.TIMED_OUT, f"{kind} {args[0] if args else ''}".strip())
        method = getattr(self, f"_ask_{kind}", None)
        if method is None:
            raise HostError(Reason.UNSUPPORTED, f"no such question: {kind}")
        try:
            return kept(key(kind, args), method(*args))
        except TreeError as e:
            raise host_error(e.errno) from None

    def alike(self, other: TreeBackend) -> frozenset[str]:
        """Return the kinds of questions to which another backend is sure to give the same answers.

        They are told by comparing what the answers are made of; the trees of variants share their entries.
        """
        a, b = self.description, other.description
        if self.hangs != other.hangs or self.uid != other.uid:
            return frozenset()
        kinds = set[str]()
        if self.tree.entries == other.tree.entries and self.tree.file_systems == other.tree.file_systems:
            kinds |= _OF_FILES
        shared = self.nvml.functions is other.nvml.functions  # one object: made of the same tables
        if shared and all(a.get(t) == b.get(t) for t in ("nvml", "p2p")):
            kinds.add("nvml")
            if self.cuda.order == other.cuda.order and a.get("cuda") == b.get("cuda"):
                kinds.add("cuda")
        return frozenset(kinds)

    def _file(self, path: str) -> File:
        try:
            entry = self.tree.get(path)
        except TreeError as e:
            raise host_error(e.errno) from None
        if isinstance(entry, Error):
            raise host_error(entry.errno)
        if not isinstance(entry, File):
            raise host_error("EISDIR")
        if self.uid and not entry.mode & 0o004 and entry.uid != self.uid:
            raise host_error("EACCES")
        return entry

    def _ask_read(self, path: str, limit: int = 1 << 20) -> bytes:
        return self._file(path).data[: int(limit)]

    def _ask_lines(self, path: str, *prefixes: str) -> list[str]:
        text = self._file(path).data.decode("utf-8", "replace")
        return [line for line in text.split("\n") if line.startswith(prefixes)]

    def _ask_list(self, path: str) -> list[str]:
        return self.tree.names(path)

    def _ask_readlink(self, path: str) -> str:
        at = self.tree.resolve(path, follow_last=False)
        entry = self.tree.entries[at]
        target = getattr(entry, "target", None)
        if target is None:
            raise host_error("EINVAL")
        return str(target)

    def _ask_realpath(self, path: str) -> str:
        return self.tree.resolve(path)

    def _ask_stat(self, path: str) -> dict[str, Any]:
        entry = self.tree.get(path)
        base = {"uid": 0, "gid": 0, "mtime": 1_767_225_600, "device": 20, "rdev": 0}
        if isinstance(entry, Dir):
            return {**base, "kind": "dir", "size_bytes": 0, "mode": entry.mode}
        if isinstance(entry, File):
            size = len(entry.data) if entry.size is None else entry.size
            own = {"kind": entry.kind, "size_bytes": size, "mode": entry.mode, "uid": entry.uid, "mtime": entry.mtime}
            return {**base, **own, "rdev": entry.rdev, "device": entry.device}
        if path.startswith("/dev/"):  # a device file that is there and may not be opened
            return {**base, "kind": "char", "size_bytes": 0, "mode": 0o666}
        return {**base, "kind": "file", "size_bytes": 4096, "mode": 0o400}

    def _ask_statvfs(self, path: str) -> list[int]:
        real = self.tree.resolve(path)
        best = max((p for p in self.tree.file_systems if real == p or real.startswith(p + "/")), key=len, default=None)
        return list(self.tree.file_systems[best]) if best else [1 << 40, 1 << 39]

    def _ask_access(self, path: str, mode: str) -> bool:
        entry = self.tree.get(path)
        if isinstance(entry, Error):
            return False
        bits = getattr(entry, "mode", 0o755)
        shift = 6 if getattr(entry, "uid", 0) == self.uid else 0
        want = sum({"r": 4, "w": 2, "x": 1}[m] for m in mode)
        if self.uid == 0:  # may do all but run what nobody may run
            return "x" not in mode or bool(bits & 0o111)
        return (bits >> shift) & want == want

    def _ask_conf(self, path: str) -> list[str]:
        out = []
        for number, line in enumerate(self._file(path).data.decode("utf-8", "replace").split("\n"), 1):
            m = _SETTING.match(line)
            if m and variable_allowed(m[1]):
                out.append(f"{number}\t{line}")
        return out

    def _ask_kernel_options(self) -> list[str]:
        words = self._file("/proc/cmdline").data.decode("utf-8", "replace").split()
        return [w for w in words if kernel_option_allowed(w)]

    def _ask_kernel_log(self) -> list[str]:
        if self.uid:
            raise host_error("EPERM")  # kernel.dmesg_restrict is 1 nearly everywhere
        text = self._file("/dev/kmsg").data.decode("utf-8", "replace")
        return [line for record in text.split("\n") if (line := of_interest(message(record))) is not None]

    def _ask_environ(self) -> dict[str, str]:
        environment = self.description.get("environment", {})
        return {k: str(v) for k, v in sorted(environment.items()) if variable_allowed(k)}

    def _services(self, argv: tuple[str, ...]) -> dict[str, Any]:
        """Answer `systemctl show --property=Id,LoadState,ActiveState UNIT...` from `[services]`."""
        told = self.description["services"]
        blocks = []
        for unit in (a for a in argv[1:] if a.endswith(".service")):
            state = told.get(unit.removesuffix(".service"))
            load = "not-found" if state is None else "loaded"
            blocks.append(f"Id={unit}\nLoadState={load}\nActiveState={state or 'inactive'}\n")
        return {"rc": 0, "stdout": "\n".join(blocks), "stderr": ""}

    def _ask_run(self, timeout_s: int, *argv: str) -> dict[str, Any]:
        if argv and argv[0] == "systemctl" and "services" in self.description:
            return self._services(argv)
        told = self.description.get("commands", {}).get(" ".join(map(str, argv)))
        if told is None:
            raise HostError(Reason.ABSENT, f"{argv[0] if argv else 'an empty command'}: no such program")
        if isinstance(told, str):
            return {"rc": 0, "stdout": told, "stderr": ""}
        if told.get("hangs"):
            raise HostError(Reason.TIMED_OUT, f"{argv[0]} was not done within {timeout_s} s")
        return {"rc": 0, "stdout": "", "stderr": "", **told}

    def _ask_process(self) -> dict[str, Any]:
        process = self.description.get("process", {})
        status = self.tree.text("/proc/self/status")
        allowed = re.search(r"Cpus_allowed_list:\t(.*)", status)
        return {
            "uid": self.uid,
            "gid": self.uid,
            "home": process.get("home", "/root" if self.uid == 0 else "/home/user"),
            "affinity": allowed[1] if allowed else "0",
            "python_version": process.get("python_version", "3.11.9"),
            "sys_path": process.get("sys_path", ["/usr/lib/python3/dist-packages"]),
        }

    def _ask_psutil(self, call: str) -> Answer:
        nodes = self.description.get("numa", [])
        told = self.description.get("psutil", {})
        if call in told:
            return told[call]
        from topocheck.model.address import parse_cpulist

        logical = sum(len(parse_cpulist(n.get("cpus", ""))) for n in nodes) or 1
        threads = int(self.description.get("system", {}).get("threads_per_core", 2))
        if call == "cpu_count_logical":
            return logical
        if call == "cpu_count_physical":
            return max(1, logical // threads)
        if call == "virtual_memory":
            kb = dict(re.findall(r"(\w+): +(\d+) kB", self.tree.text("/proc/meminfo")))
            return {"total": int(kb["MemTotal"]) << 10, "available": int(kb["MemAvailable"]) << 10}
        if call in ("net_addresses", "net_netmasks", "net_stats"):
            return self._network(call)
        raise HostError(Reason.UNSUPPORTED, f"psutil: no such question: {call}")

    def _network(self, call: str) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for i, name in enumerate(self.tree.names("/sys/class/net")):
            at = f"/sys/class/net/{name}"
            if call == "net_stats":
                up = bool(int(self.tree.text(f"{at}/flags"), 16) & 1)
                out[name] = {"up": up, "speed_mbit_s": 0, "mtu": int(self.tree.text(f"{at}/mtu"))}
                continue
            own = own_addresses(self.description, name, i)
            entries = [["inet6" if ":" in a else "inet", a.split("/")[0], _mask(a)] for a in own]
            entries.append(["link", self.tree.text(f"{at}/address"), ""])
            out[name] = [e[:2] for e in entries] if call == "net_addresses" else entries
        return out

    def _ask_nvml(self, call: str, *args: str | int) -> Answer:
        return self.nvml.ask(call, *args)

    def _ask_cuda(self, call: str, *args: str | int) -> Answer:
        return self.cuda.ask(call, *args)

    def _ask_pci_names(self, *ids: str) -> dict[str, list[str | None]]:
        from topocheck.host.live.pci_ids import lookup

        return lookup(lambda path: self._file(path).data, ids)

    def _ask_probe(self, probe: str) -> dict[str, Any]:
        if probe == "smi_topo" and not any("nvidia-smi" in c for c in self.description.get("commands", {})):
            raise HostError(Reason.NOT_RECORDED, probe)  # as a machine that was not asked for a cross-check
        return {"state": "ok", "ms": 1.0, "detail": ""}

    def _ask_now(self) -> str:
        return str(self.description.get("now", "2026-01-01T00:00:00Z"))

    def _ask_duration(self, probe: str) -> float:
        return 1.0


def _mask(address: str) -> str:
    import ipaddress

    return str(ipaddress.ip_interface(address).netmask)
