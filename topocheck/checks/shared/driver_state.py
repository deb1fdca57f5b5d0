"""Why NVIDIA's loaded driver told nothing: each reason is a reason of its own, with its own state and fix."""

from __future__ import annotations

import enum

import msgspec

from topocheck.checks.registry import Context, once
from topocheck.checks.visibility import driver_loaded
from topocheck.model.base import Evidence, Hung, Missing, ProbeStatus, Reason, is_crash, is_digits, is_lost, known
from topocheck.model.system import DeviceFile, gpu_file

MISMATCH = "NVMLError_LibRmVersionMismatch"
_NO_LIBRARY, _NO_BINDING = "libnvidia-ml.so.1 not found", "nvidia-ml-py not installed"
_PROC = "/proc/driver/nvidia"
_HANG_S = 5.0
"""Seconds for one answer of a driver; calls take milliseconds, and starting NVML two seconds a GPU."""
_DEADLINE_MS = 9500.0
"""A probe of the driver is given 10 s at least; recordings of version 1 hold no more than how long it took."""


class Cause(enum.StrEnum):
    """Why there is no answer."""

    HANGS = "hangs"
    SLOW = "slow"
    CRASHES = "crashes"
    NO_LIBRARY = "no library"
    NO_BINDING = "no binding"
    MISMATCH = "mismatch"
    NO_FILE = "no device file"
    REFUSED_BY_MODE = "refused by mode"
    REFUSED_BY_CGROUP = "refused by cgroup"
    REFUSED = "refused"
    ERROR = "error"
    NOT_TOLD = "not reported"


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """That the driver is loaded and NVML told nothing: why, what it said, and the child that hangs."""

    cause: Cause
    said: str
    hung: Hung | None = None
    files: tuple[DeviceFile, ...] = ()

    @property
    def dead(self) -> bool:
        """Whether no CUDA program can run: the driver was asked as programs ask it, and did not answer."""
        return self.cause in _DEAD


_DEAD = frozenset(
    {Cause.HANGS, Cause.CRASHES, Cause.MISMATCH, Cause.REFUSED_BY_MODE, Cause.REFUSED_BY_CGROUP, Cause.ERROR}
)


@once
def silence(c: Context) -> Silence | None:
    """Return why NVML told nothing although the driver is loaded; None where it answers, or no driver is loaded."""
    why = c.node.nvml.gpus
    if not isinstance(why, Missing) or not (driver_loaded(c.node) or _said_by_smi(c, why)):
        return None
    said = c.node.nvml.error or str(why)
    return _of_library(why, said) or _of_time(c, why, said) or _of_files(c, said) or _of_word(why, said)


def _said_by_smi(c: Context, why: Missing) -> bool:
    """Tell whether nvidia-smi's text holds an error of NVML that only a loaded driver gives."""
    return c.node.made_from is not None and why.detail.startswith("NVMLError_") and why.detail not in _NO_DRIVER


_NO_DRIVER = frozenset({"NVMLError_DriverNotLoaded", "NVMLError_LibraryNotFound", "NVMLError_NoPermission"})


def probe(c: Context, name: str) -> ProbeStatus | None:
    """Return how a probe went."""
    return next((p for p in c.node.probes if p.name == name), None)


def did_hang(status: ProbeStatus | None) -> Hung | None:
    """Return the child of a probe that waited in the driver, not one that was only late."""
    hung = status.hung if status is not None else None
    if hung is None or hung.cut_short or hung.waited_s < _HANG_S:
        return None
    return hung


def _of_library(why: Missing, said: str) -> Silence | None:
    causes = {_NO_LIBRARY: Cause.NO_LIBRARY, _NO_BINDING: Cause.NO_BINDING, MISMATCH: Cause.MISMATCH}
    if why.detail in causes:
        return Silence(cause=causes[why.detail], said=said)
    return Silence(cause=Cause.CRASHES, said=said) if is_crash(why) else None


def _of_time(c: Context, why: Missing, said: str) -> Silence | None:
    if why.reason is not Reason.TIMED_OUT:
        return None
    status = probe(c, "nvml")
    if status is not None and status.hung is not None:
        hung = did_hang(status)
        return Silence(cause=Cause.HANGS if hung else Cause.SLOW, said=said, hung=status.hung)
    late = status is not None and status.state == "timed_out" and status.ms < _DEADLINE_MS
    return Silence(cause=Cause.SLOW if late else Cause.HANGS, said=said)


def _of_files(c: Context, said: str) -> Silence | None:
    files = c.node.system.nvidia_files
    if isinstance(files, Missing):
        return None
    control = [f for f in files if f.path == "/dev/nvidiactl"]
    gpus = [f for f in files if is_digits(f.path.removeprefix("/dev/nvidia"))]
    refused = [f for f in files if f.refused]
    if any(f.refused for f in control) or all_refused(gpus):
        cause = Cause.REFUSED_BY_MODE if all(f.by_mode for f in refused) else Cause.REFUSED_BY_CGROUP
        return Silence(cause=cause, said=said, files=tuple(refused))
    if not control or not gpus:
        return Silence(cause=Cause.NO_FILE, said=said, files=files)
    return None


def all_refused(files: list[DeviceFile]) -> bool:
    """Tell whether there are files and none of them may be opened."""
    return bool(files) and all(f.refused for f in files)


def _of_word(why: Missing, said: str) -> Silence:
    if why.reason is Reason.DENIED:
        return Silence(cause=Cause.REFUSED, said=said)
    spoke = why.detail.startswith("NVMLError_")
    return Silence(cause=Cause.ERROR if spoke else Cause.NOT_TOLD, said=said)


def file_evidence(c: Context, files: tuple[DeviceFile, ...] | list[DeviceFile]) -> tuple[Evidence, ...]:
    """Quote whether device files may be opened."""
    return tuple(e for f in files[:8] for e in c.node.system.evidence(f.path))


def uvm_refused(c: Context) -> DeviceFile | None:
    """Return CUDA's file for unified memory where it may not be opened; None where it may, or is not there (yet)."""
    files = c.node.system.nvidia_files
    found = (f for f in files if f.path == "/dev/nvidia-uvm") if known(files) else ()
    return next((f for f in found if f.refused), None)


@once
def refused_gpus(c: Context) -> dict[str, DeviceFile]:
    """Return address -> device file of the GPUs on the bus that this process may not open, by the device cgroup."""
    found = {g.address: f for g in c.topology.gpus if (f := gpu_file(c.node.system, g.address)) is not None}
    return {a: f for a, f in found.items() if f.refused and not f.by_mode}


def unread_file(c: Context, address: str) -> Evidence | None:
    """Return the lost answer without which it is not known whether the device cgroup hides a GPU; None where it is."""
    system = c.node.system
    files, own = system.nvidia_files, gpu_file(system, address)
    if isinstance(files, Missing):
        return Evidence("/dev", str(files)) if is_lost(files) and c.node.made_from is None else None
    if own is not None:
        return Evidence(own.path, str(own.opens)) if _is_unread(own) else None
    gpus = [f for f in files if is_digits(f.path.removeprefix("/dev/nvidia"))]
    if address in system.nvidia_gpu_minors or not any((f.refused and not f.by_mode) or _is_unread(f) for f in gpus):
        return None
    asked = (f"read:{_PROC}/version", f"list:{_PROC}/gpus", f"lines:{_PROC}/gpus/{address}/")
    lost = next((x for x in c.node.lost if x.question.startswith(asked)), None)
    return Evidence(lost.shown, lost.why_text) if lost is not None else None


def _is_unread(file: DeviceFile) -> bool:
    return isinstance(file.opens, Missing) and is_lost(file.opens)
