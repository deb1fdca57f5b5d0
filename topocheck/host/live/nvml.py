"""Questions to NVML, answered as plain values through NVIDIA's own `nvidia-ml-py` (module `pynvml`).

`ask(call, *args)`: `call` is NVML's function name without the `nvml` prefix, devices are NVML indices, and only the
calls below are known; all of them read. Nothing is ever set, reset, or opened for writing. A function that this
pynvml or this driver does not have is `unsupported: NVMLError_FunctionNotFound`.

`i`, `j` are device indices. Answers are as NVML numbers them; the words are put to them by the probe.

| call | arguments | answer |
| --- | --- | --- |
| SystemGetDriverVersion, SystemGetNVMLVersion | | str: `580.159.04`, `13.580.159.04` |
| SystemGetCudaDriverVersion_v2 | | int: 13000 is 13.0 |
| SystemGetConfComputeState | | {environment, ccFeature, devToolsMode}: int (ccFeature 1: on) |
| DeviceGetCount | | int |
| DeviceGetPciInfo | i | {busId: `00000000:3B:00.0`, domain, bus, device, pciDeviceId, pciSubSystemId} |
| DeviceGetUUID, Name, Serial, VbiosVersion, BoardPartNumber | i | str |
| DeviceGetMinorNumber, BoardId, ModuleId, MultiGpuBoard, Architecture | i | int (architecture 9: Hopper) |
| DeviceGetCudaComputeCapability | i | [major, minor] |
| DeviceGetMemoryInfo | i | {total, free, used, reserved}: bytes (no `reserved` on drivers before 510) |
| DeviceGetBAR1MemoryInfo | i | {bar1Total, bar1Free, bar1Used}: bytes |
| DeviceGetCurrPcieLinkGeneration, CurrPcieLinkWidth, MaxPcieLinkGeneration, MaxPcieLinkWidth, | i | int |
| ... GpuMaxPcieLinkGeneration, PcieReplayCounter | i | int |
| DeviceGetPcieThroughput | i, direction (0 sent, 1 received) | int: 1000 bytes a second over 20 ms, which it waits |
| DeviceGetPerformanceState, ComputeMode, PersistenceMode, VirtualizationMode, AddressingMode | i | int (enums) |
| DeviceGetClockInfo, MaxClockInfo, ApplicationsClock | i, clock (1: SM, 2: memory) | int: MHz |
| DeviceGetPowerManagementLimit, PowerManagementDefaultLimit | i | int: milliwatts |
| DeviceGetTemperature | i, sensor (0: GPU) | int: degrees C |
| DeviceGetCurrentClocksEventReasons | i | int: bit mask |
| DeviceGetUtilizationRates | i | {gpu, memory}: percent |
| DeviceGetMigMode, EccMode | i | [current, pending]: 0 or 1 |
| DeviceGetMaxMigDeviceCount | i | int |
| DeviceGetMigDeviceHandleByIndex | i, m | {uuid, name}; `absent: NVMLError_NotFound` where there is no m-th |
| DeviceGetC2cModeInfoV | i | {isC2cEnabled}: 0 or 1 |
| DeviceGetGpuFabricInfoV | i | {clusterUuid: `8-4-4-4-12` hex, status, cliqueId, state, healthMask, healthSummary}: |
| | | the last two only where the driver knows struct v2, v3 |
| DeviceGetCpuAffinity | i, words | list of 64-bit words, lowest CPUs first, zero words at the end left out |
| DeviceGetMemoryAffinity | i, words, scope (0: node) | list of 64-bit words of NUMA nodes, as above |
| DeviceGetNumaNodeId | i | int |
| DeviceGetFieldValues | i, `id:scope,id:scope` | list of [id, scope, value or None, NVML return code], in that order |
| DeviceGetNvLinkState, NvLinkVersion, NvLinkRemoteDeviceType | i, link | int (version 6: NVLink 4.0; type 2: switch) |
| DeviceGetNvLinkRemotePciInfo | i, link | as DeviceGetPciInfo; busId `FFFFFFFF:FF:FF.0` where a hypervisor masks it |
| DeviceGetNvLinkCapability | i, link, capability | int: 0 or 1 |
| DeviceGetP2PStatus | i, j, index (0 read, 1 write, 2 NVLink, 3 atomics, 4 PCIe) | int: 0 OK ... 6 unknown |
| DeviceGetTopologyCommonAncestor | i, j | int: 0, 10, 20, 30, 40, 50 |
| EventSetRegister | i, mask | int: the event types of the mask that the GPU has, which are sent from now on |
| EventSetWait | milliseconds | list of [i, type, data, GPU instance, compute instance], at most 64; the last two None |
| | | where the event is of no MIG device |
| DeviceGetComputeRunningProcesses, GraphicsRunningProcesses | i | list of {pid, usedGpuMemory: bytes or None} |

Errors: see `REASONS`; the detail is the name of pynvml's exception (`NVMLError_GpuIsLost`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from topocheck.host.base import Answer, HostError
from topocheck.model.base import Reason

LIBRARY_NOT_FOUND = "libnvidia-ml.so.1 not found"
"""Detail of the error where the driver's library is not on this machine."""

_NO_FUNCTION = "NVMLError_FunctionNotFound"

REASONS: dict[str, Reason] = {
    "NVMLError_NoPermission": Reason.DENIED,
    "NVMLError_LibraryNotFound": Reason.ABSENT,
    "NVMLError_DriverNotLoaded": Reason.ABSENT,
    "NVMLError_NotFound": Reason.ABSENT,
    "NVMLError_Timeout": Reason.TIMED_OUT,
}
"""NVML error -> reason; every other error is `unsupported`, and its name says which it was."""

_PCI = ("busId", "domain", "bus", "device", "pciDeviceId", "pciSubSystemId")
STRUCTS: dict[str, tuple[str, ...]] = {
    "SystemGetConfComputeState": ("environment", "ccFeature", "devToolsMode"),
    "DeviceGetPciInfo": _PCI,
    "DeviceGetNvLinkRemotePciInfo": _PCI,
    "DeviceGetBAR1MemoryInfo": ("bar1Total", "bar1Free", "bar1Used"),
    "DeviceGetUtilizationRates": ("gpu", "memory"),
    "DeviceGetC2cModeInfoV": ("isC2cEnabled",),
}
"""Calls that fill a struct -> the fields of it that are answered."""

PLAIN = frozenset(
    "SystemGetDriverVersion SystemGetNVMLVersion SystemGetCudaDriverVersion_v2 DeviceGetCount DeviceGetUUID "
    "DeviceGetName DeviceGetSerial DeviceGetVbiosVersion DeviceGetBoardPartNumber DeviceGetMinorNumber "
    "DeviceGetBoardId DeviceGetModuleId DeviceGetMultiGpuBoard DeviceGetArchitecture DeviceGetCudaComputeCapability "
    "DeviceGetCurrPcieLinkGeneration DeviceGetCurrPcieLinkWidth DeviceGetMaxPcieLinkGeneration "
    "DeviceGetMaxPcieLinkWidth DeviceGetGpuMaxPcieLinkGeneration DeviceGetPcieReplayCounter DeviceGetPcieThroughput "
    "DeviceGetPerformanceState DeviceGetComputeMode DeviceGetPersistenceMode DeviceGetVirtualizationMode "
    "DeviceGetAddressingMode DeviceGetClockInfo DeviceGetMaxClockInfo DeviceGetApplicationsClock "
    "DeviceGetPowerManagementLimit DeviceGetPowerManagementDefaultLimit DeviceGetTemperature "
    "DeviceGetCurrentClocksEventReasons DeviceGetMigMode DeviceGetEccMode DeviceGetMaxMigDeviceCount "
    "DeviceGetNumaNodeId DeviceGetNvLinkState DeviceGetNvLinkVersion DeviceGetNvLinkRemoteDeviceType "
    "DeviceGetNvLinkCapability DeviceGetP2PStatus DeviceGetTopologyCommonAncestor".split()
)
"""Calls whose answer pynvml gives as a number, a text or a list of numbers."""


def ask(call: str, *args: str | int) -> Answer:
    """Return NVML's answer to one call of the table above.

    Raises:
        HostError: no answer; the detail is NVML's own name for why.
    """
    nvml = _library()
    try:
        return _answer(nvml, call, args)
    except nvml.NVMLError as e:
        raise _host_error(e) from None
    except getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError):
        # pynvml's word, in place of FunctionNotFound, for a function of which this driver has another version.
        raise HostError(Reason.UNSUPPORTED, _NO_FUNCTION) from None
    except UnicodeDecodeError as e:
        raise HostError(Reason.UNPARSABLE, repr(e.object)[:80]) from None
    except (TypeError, ValueError, IndexError) as e:
        # An argument that the installed pynvml does not take: its signatures change between versions.
        raise HostError(Reason.UNSUPPORTED, f"{type(e).__name__}: {e}") from None


@functools.cache
def _library() -> Any:
    """Return pynvml, initialised. Never shut down: the process ends with it, and a shutdown can hang too."""
    try:
        import pynvml
    except ImportError:
        raise HostError(Reason.ABSENT, "nvidia-ml-py not installed") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        raise _host_error(e) from None
    return pynvml


@functools.cache
def _handle(index: int) -> Any:
    """Return NVML's handle of a device; errors are not kept, so a device is asked for again."""
    nvml = _library()
    return nvml.nvmlDeviceGetHandleByIndex(index)


def _host_error(error: Exception) -> HostError:
    name = type(error).__name__
    if name == "NVMLError":  # a code that this pynvml has no class for
        name = f"NVMLError_{getattr(error, 'value', '')}"
    detail = LIBRARY_NOT_FOUND if name == "NVMLError_LibraryNotFound" else name
    return HostError(REASONS.get(name, Reason.UNSUPPORTED), detail)


def _function(nvml: Any, call: str) -> Callable[..., Any]:
    found = getattr(nvml, f"nvml{call}", None)
    if found is None:
        raise HostError(Reason.UNSUPPORTED, _NO_FUNCTION)
    return found  # type: ignore[no-any-return]


def _answer(nvml: Any, call: str, args: tuple[str | int, ...]) -> Answer:
    if call in _SPECIAL:
        return _SPECIAL[call](nvml, *args)
    if call not in PLAIN and call not in STRUCTS:
        raise HostError(Reason.UNSUPPORTED, f"{call} is not among the calls of topocheck")
    answer = _function(nvml, call)(*_with_handles(call, args))
    if call in STRUCTS:
        return {name: _plain(getattr(answer, name)) for name in STRUCTS[call] if hasattr(answer, name)}
    return _plain(answer)


def _with_handles(call: str, args: tuple[str | int, ...]) -> list[Any]:
    """Return the arguments with indices replaced by handles: one device, or two for calls about a pair."""
    if call.startswith("System") or call == "DeviceGetCount":
        devices = 0
    else:
        devices = 2 if call in ("DeviceGetP2PStatus", "DeviceGetTopologyCommonAncestor") else 1
    return [_handle(int(a)) if n < devices else int(a) for n, a in enumerate(args)]


def _plain(value: Any) -> Answer:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def _memory(nvml: Any, index: int) -> Answer:
    """Version 2 tells reserved memory apart from used; drivers before 510 have only version 1."""
    handle = _handle(int(index))
    try:
        m = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        return {"total": m.total, "free": m.free, "used": m.used, "reserved": m.reserved}
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_ArgumentVersionMismatch, TypeError, AttributeError):
        m = nvml.nvmlDeviceGetMemoryInfo(handle)
        return {"total": m.total, "free": m.free, "used": m.used}


def _mig_device(nvml: Any, index: int, number: int) -> Answer:
    handle = _function(nvml, "DeviceGetMigDeviceHandleByIndex")(_handle(int(index)), int(number))
    answer = {"uuid": _plain(nvml.nvmlDeviceGetUUID(handle))}
    with contextlib.suppress(nvml.NVMLError):
        answer["name"] = _plain(nvml.nvmlDeviceGetName(handle))
    return answer


def _fabric(nvml: Any, index: int) -> Answer:
    """The newest struct that this driver takes: v3 and v2 through ...InfoV, then the first form without a mask."""
    handle = _handle(int(index))
    for struct, function in (
        ("c_nvmlGpuFabricInfo_v3_t", "DeviceGetGpuFabricInfoV"),
        ("c_nvmlGpuFabricInfo_v2_t", "DeviceGetGpuFabricInfoV"),
        ("c_nvmlGpuFabricInfo_t", "DeviceGetGpuFabricInfo"),
    ):
        make = getattr(nvml, struct, None)
        if make is None:
            continue
        info = make()
        try:
            _function(nvml, function)(handle, nvml.byref(info))
        except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_ArgumentVersionMismatch):
            continue
        h = bytes(info.clusterUuid).hex()
        answer = {"clusterUuid": f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"}
        names = ("status", "cliqueId", "state", "healthMask", "healthSummary")
        return answer | {n: int(getattr(info, n)) for n in names if hasattr(info, n)}
    raise HostError(Reason.UNSUPPORTED, _NO_FUNCTION)


def _words(call: str) -> Callable[..., Answer]:
    def answer(nvml: Any, index: int, words: int, *scope: int) -> Answer:
        found = [int(w) for w in _function(nvml, call)(_handle(int(index)), int(words), *map(int, scope))]
        while found and found[-1] == 0:
            found.pop()
        return found

    return answer


_VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of nvmlValue_t by nvmlValueType_t (nvml.h)."""


def _field_values(nvml: Any, index: int, fields: str) -> Answer:
    wanted = [(int(f), int(s)) for f, s in (pair.split(":") for pair in str(fields).split(","))]
    answers = []
    for (field, scope), v in zip(wanted, nvml.nvmlDeviceGetFieldValues(_handle(int(index)), wanted), strict=True):
        member = _VALUE_TYPES[v.valueType] if 0 <= v.valueType < len(_VALUE_TYPES) else None
        value = getattr(v.value, member, None) if member and v.nvmlReturn == 0 else None
        answers.append([field, scope, value, int(v.nvmlReturn)])
    return answers


def _processes(call: str) -> Callable[..., Answer]:
    """The struct grew with each version (450, 510), and a version answers only where the driver knows it."""

    def answer(nvml: Any, index: int) -> Answer:
        handle = _handle(int(index))
        for version in ("_v3", "_v2"):
            try:
                found = _function(nvml, call + version)(handle)
            except nvml.NVMLError_FunctionNotFound:
                continue
            return [{"pid": int(p.pid), "usedGpuMemory": p.usedGpuMemory} for p in found]
        raise HostError(Reason.UNSUPPORTED, _NO_FUNCTION)

    return answer


_MOST_EVENTS = 64
_NO_INSTANCE = 0xFFFFFFFF
"""gpuInstanceId and computeInstanceId of an event of the whole GPU (nvml.h, nvmlEventData_t)."""


@functools.cache
def _event_set() -> Any:
    """Return this process's event set: the driver sends it what was registered, until the process ends."""
    return _function(_library(), "EventSetCreate")()


def _register(nvml: Any, index: int, mask: int) -> Answer:
    handle = _handle(int(index))
    types = int(_function(nvml, "DeviceGetSupportedEventTypes")(handle)) & int(mask)
    if types:
        _function(nvml, "DeviceRegisterEvents")(handle, types, _event_set())
    return types


def _wait(nvml: Any, milliseconds: int) -> Answer:
    """Waits for the first event alone; those that came with it are there at once."""
    found: list[list[int | None]] = []
    timeout = min(max(int(milliseconds), 0), 1000)
    while len(found) < _MOST_EVENTS:
        try:
            e = _function(nvml, "EventSetWait_v2")(_event_set(), timeout)
        except nvml.NVMLError_Timeout:
            break
        timeout = 0
        instances = [None if n == _NO_INSTANCE else int(n) for n in (e.gpuInstanceId, e.computeInstanceId)]
        found.append([int(nvml.nvmlDeviceGetIndex(e.device)), int(e.eventType), int(e.eventData), *instances])
    return found


_SPECIAL: dict[str, Callable[..., Answer]] = {
    "DeviceGetMemoryInfo": _memory,
    "DeviceGetMigDeviceHandleByIndex": _mig_device,
    "DeviceGetGpuFabricInfoV": _fabric,
    "DeviceGetCpuAffinity": _words("DeviceGetCpuAffinity"),
    "DeviceGetMemoryAffinity": _words("DeviceGetMemoryAffinity"),
    "DeviceGetFieldValues": _field_values,
    "EventSetRegister": _register,
    "EventSetWait": _wait,
    "DeviceGetComputeRunningProcesses": _processes("DeviceGetComputeRunningProcesses"),
    "DeviceGetGraphicsRunningProcesses": _processes("DeviceGetGraphicsRunningProcesses"),
}
"""Calls that need more than one struct version, a reshaped argument or a reshaped answer."""

CALLS = frozenset({*PLAIN, *STRUCTS, *_SPECIAL})
"""Every call that can be asked."""
