"""What a GPU is doing and how it is set: clocks, MIG, ECC, modes, affinity, processes."""

from __future__ import annotations

from typing import Any

from topocheck.model.base import UNSUPPORTED, Missing, Reason, is_lost, unparsable
from topocheck.model.gpu import GpuProcess, MigInstance
from topocheck.probes.nvml import enums as words
from topocheck.probes.nvml.queries import Asked, as_flag, as_integer, as_text, member

CLOCK_SM, CLOCK_MEMORY = 1, 2
TEMPERATURE_GPU = 0
AFFINITY_SCOPE_NODE = 0
CPU_WORDS = 64
"""64-bit words of CPUs asked for: 4096 CPUs. NVML wants room for all CPUs, and more does no harm."""
NODE_WORDS = 16
"""64-bit words of NUMA nodes asked for: 1024 nodes, the kernel's own limit (CONFIG_NODES_SHIFT 10)."""

_PSTATE_UNKNOWN = 32  # NVML_PSTATE_UNKNOWN
_MAX_MIG = 64


def read(gpu: Asked) -> dict[str, Any]:
    """Return the state fields of NvmlGpu."""
    mig_current, mig_pending = gpu.pair("DeviceGetMigMode")
    ecc_current, ecc_pending = gpu.pair("DeviceGetEccMode")
    pstate = gpu.integer("DeviceGetPerformanceState")
    return {
        "performance_state": Missing(Reason.UNSUPPORTED, "unknown") if pstate == _PSTATE_UNKNOWN else pstate,
        "clock_sm_mhz": gpu.integer("DeviceGetClockInfo", CLOCK_SM),
        "clock_sm_max_mhz": gpu.integer("DeviceGetMaxClockInfo", CLOCK_SM),
        "clock_memory_max_mhz": gpu.integer("DeviceGetMaxClockInfo", CLOCK_MEMORY),
        "clock_sm_application_mhz": gpu.integer("DeviceGetApplicationsClock", CLOCK_SM),
        "power_limit_mw": gpu.integer("DeviceGetPowerManagementLimit"),
        "power_limit_default_mw": gpu.integer("DeviceGetPowerManagementDefaultLimit"),
        "clock_event_reasons": gpu.integer("DeviceGetCurrentClocksEventReasons"),
        "temperature_c": gpu.integer("DeviceGetTemperature", TEMPERATURE_GPU),
        "utilization_percent": member(gpu.struct("DeviceGetUtilizationRates"), "gpu"),
        "mig_current": as_flag(mig_current),
        "mig_pending": as_flag(mig_pending),
        **(_mig_instances(gpu) if mig_current == 1 else {}),
        "ecc_current": as_flag(ecc_current),
        "ecc_pending": as_flag(ecc_pending),
        "compute_mode": words.word(words.COMPUTE_MODES, gpu.integer("DeviceGetComputeMode")),
        "persistence_mode": gpu.flag("DeviceGetPersistenceMode"),
        "virtualization_mode": words.word(words.VIRTUALIZATION_MODES, gpu.integer("DeviceGetVirtualizationMode")),
        "addressing_mode": words.word(words.ADDRESSING_MODES, gpu.integer("DeviceGetAddressingMode")),
        "cpu_affinity": gpu.words("DeviceGetCpuAffinity", CPU_WORDS),
        "memory_affinity": gpu.words("DeviceGetMemoryAffinity", NODE_WORDS, AFFINITY_SCOPE_NODE),
        "numa_node": _node(gpu),
        "processes": _processes(gpu),
    }


def _node(gpu: Asked) -> int | Missing:
    answer = gpu.answer("DeviceGetNumaNodeId")
    return Missing(Reason.ABSENT, "-1") if answer == -1 else as_integer(answer)


def _mig_instances(gpu: Asked) -> dict[str, Any]:
    """Numbers of instances may have gaps: an instance that was removed leaves its number free."""
    count = gpu.integer("DeviceGetMaxMigDeviceCount")
    found = []
    untold = count if isinstance(count, Missing) else None
    for m in range(min(count, _MAX_MIG) if isinstance(count, int) else 0):
        answer = gpu.struct("DeviceGetMigDeviceHandleByIndex", m)
        uuid = answer if isinstance(answer, Missing) else as_text(answer.get("uuid", UNSUPPORTED))
        if isinstance(answer, Missing) or isinstance(uuid, Missing):
            if isinstance(answer, Missing) and is_lost(answer):
                untold = answer
            continue
        found.append(MigInstance(uuid=uuid, name=as_text(answer.get("name", UNSUPPORTED))))
    return {"mig_instances": tuple(found), "mig_untold": untold}


def _processes(gpu: Asked) -> tuple[GpuProcess, ...] | Missing:
    """Missing only where neither kind could be read; a process that does both stands there twice."""
    compute = parse_processes(gpu.answer("DeviceGetComputeRunningProcesses"), "compute")
    graphics = parse_processes(gpu.answer("DeviceGetGraphicsRunningProcesses"), "graphics")
    if isinstance(compute, Missing):
        return graphics if not isinstance(graphics, Missing) else compute
    return compute if isinstance(graphics, Missing) else compute + graphics


def parse_processes(answer: Any, kind: str) -> tuple[GpuProcess, ...] | Missing:
    """Return the processes in a list of {pid, usedGpuMemory}; an entry without a pid is left out. Never raises."""
    if isinstance(answer, Missing):
        return answer
    if not isinstance(answer, list):
        return unparsable(repr(answer))
    found = []
    for entry in answer:
        pid = as_integer(entry.get("pid")) if isinstance(entry, dict) else UNSUPPORTED
        if isinstance(pid, Missing):
            continue
        used = entry.get("usedGpuMemory")
        memory = Missing(Reason.UNSUPPORTED, "not available") if used is None else as_integer(used)
        found.append(GpuProcess(pid=pid, kind=kind, used_memory_bytes=memory))
    return tuple(found)
